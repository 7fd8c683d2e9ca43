"""Docstrings in the forms that people write, and what a declaration takes from them."""

from __future__ import annotations

from inspect import cleandoc
from typing import Annotated

import pytest
from pydantic import Field

from onward.client import docstrings
from onward.client.service import Service

GOOGLE = """
    Charge a card.

    It is charged once, however often it is tried.

    Args:
        order: The order, as in
            `A-17`.
        amount (int): Cents: a whole number.
        **other: left alone

    Returns:
        order: not a parameter here.
    """
NUMPY = """
    Charge a card.

    It is charged once, however often it is tried.

    Parameters
    ----------
    order : str
        The order, as in
        `A-17`.
    amount : int, optional
        Cents: a whole number.

    Returns
    -------
    order
        Not a parameter here.
    """
SPHINX = """
    Charge a card.

    It is charged once, however often it is tried.

    :param str order: The order, as in
        `A-17`.
    :param amount: Cents: a whole number.
    :type amount: int
    :returns: a receipt
        of two lines
    """


@pytest.mark.contract("S2-1", "N-7")
@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_parameters_are_found_in_each_form_and_leave_the_text(doc: str) -> None:
    found = docstrings.read(cleandoc(doc), ["order", "amount"])
    assert found.text == "Charge a card.\n\nIt is charged once, however often it is tried."
    assert found.parameters == {
        "order": "The order, as in `A-17`.",
        "amount": "Cents: a whole number.",
    }


@pytest.mark.parametrize(
    "doc",
    [
        "",
        "One line: with a colon",
        "Example usage of it\n\nargs: are explained elsewhere",
        "Args",
        "-----",
        ":)",
        "Returns the sum:\n    always",
    ],
)
def test_text_in_no_such_form_stays_as_it_is(doc: str) -> None:
    assert docstrings.read(doc, ["order"]) == (doc.strip(), {})


def test_text_after_a_section_belongs_to_no_parameter() -> None:
    doc = "First.\n\nArgs:\n    order: its id\n\nLast."
    assert docstrings.read(doc, ["order"]) == ("First.\n\n\nLast.", {"order": "its id"})


@pytest.mark.contract("S2-1")
def test_an_annotation_wins_over_the_docstring() -> None:
    def charge(order: Annotated[str, Field(description="by annotation")], cents: int) -> None:
        """Charge a card.

        Args:
            order: by docstring
            cents: by docstring
        """

    properties = Service(charge).schema["properties"]
    assert properties["order"]["description"] == "by annotation"
    assert properties["cents"]["description"] == "by docstring"
