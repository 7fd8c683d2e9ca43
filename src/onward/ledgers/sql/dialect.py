"""How one text of SQL becomes a statement of SQLite or of Postgres.

Statements stand in .sql files, by name. Arguments are `?`, or `?1`, `?2` and so on. `{rows}` stands
for a batch of rows, `{in:type}` for a list of values after all arguments; both are of any length.
The other words in braces are those that differ between the databases.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple, Protocol

from onward.ledgers.sql.schema import TYPES
from onward.ledgers.sql.schema import Row as Row


class Step(NamedTuple):
    """One statement on its way."""

    name: str
    args: Sequence[Any] = ()
    rows: Sequence[Row] | None = None  # for {rows}
    values: Sequence[Any] | None = None  # for {in}
    fields: tuple[str, ...] = ()  # columns of `task`; of a batch, at the end of each row
    changes: str = ""  # what else is set
    where: str = ""
    also: tuple[Step, ...] = ()  # sent along with it (Postgres); their rows are not wanted


class Template(NamedTuple):
    text: str
    columns: tuple[tuple[str, str], ...]  # of {rows}: names and types


class Dialect(Protocol):
    words: Mapping[str, str]

    # `shape` is the database's own: how many rows or values there are, or how they are sent.
    def rows(self, types: Sequence[str], shape: Any) -> str: ...

    def values(self, type_: str, shape: Any, before: int) -> str: ...

    def numbered(self, text: str) -> str: ...


def named(text: str) -> dict[str, Template]:
    """The statements of a file, by the names above them."""
    parts = re.split(r"^-- :name (\w+)\n", text, flags=re.M)
    return {name: _template(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _template(body: str) -> Template:
    rows = re.search(r"^-- :rows (.*)\n", body, flags=re.M)
    columns = [column.split() for column in rows[1].split(",")] if rows else []
    text = re.sub(r"^--.*\n", "", body, flags=re.M).strip().removesuffix(";")
    return Template(text, tuple((name, type_) for name, type_ in columns))


def load(package: str, name: str) -> str:
    return (files(package) / name).read_text()


SHARED = named(load("onward.ledgers.sql", "queries.sql"))


class Statements:
    """The statements of one database: the shared ones, and its own beside or instead."""

    def __init__(self, dialect: Dialect, own: str) -> None:
        self._dialect = dialect
        self._templates = {**SHARED, **named(own)}
        self._rendered = lru_cache(maxsize=1_024)(self._render)

    def text(self, step: Step, shape: Hashable) -> str:
        before, also = len(step.args), (step.fields, step.changes, step.where)
        return self._rendered(step.name, shape, before, *also)

    def _render(
        self,
        name: str,
        shape: Hashable,
        before: int,
        fields: tuple[str, ...],
        changes: str,
        where: str,
    ) -> str:
        template, dialect = self._templates[name], self._dialect
        row = [*template.columns, *((f"new_{field}", TYPES[field]) for field in fields)]
        text = template.text
        if "{rows}" in text:
            text = text.replace("{rows}", dialect.rows([type_ for _, type_ in row], shape))
        text = (
            text.replace("{row}", ", ".join(column for column, _ in row))
            .replace("{fields}", ", ".join(fields))
            .replace("{changes}", changes)
            .replace("{where}", where)
        )
        text = re.sub(r"\{in:(\w+)\}", lambda found: dialect.values(found[1], shape, before), text)
        return dialect.numbered(with_words(text, dialect.words))


def ledger_tables(words: Mapping[str, str], own: str, after: str) -> tuple[str, str]:
    """What makes the tables of a ledger, a database's own among them; and what is made whenever it
    is missing: the indexes of tasks, and a database's own again.
    """
    tables, indexes = (load("onward.ledgers.sql", name) for name in ("schema.sql", "indexes.sql"))
    return with_words(tables, words) + own, with_words(indexes, words) + after


def with_words(text: str, words: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: words[found[1]], text)
