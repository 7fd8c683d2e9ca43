"""The tools as Python functions: what a framework sees of them, and what they do."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import msgspec
import pytest
from pydantic import BaseModel

from onward.client import tools
from onward.client.errors import ProblemError, Unreachable
from onward.client.functions import ToolFunction
from onward.client.http import Client
from onward.client.service import Service
from onward.native.tools.tools import tools_of
from onward.services.catalog import Declared
from tests.client.conftest import served
from tests.processes import free_port


class Order(BaseModel):
    """An order as the shop keeps it."""

    item: str


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with served() as url, Client(url) as client:
        request = client._api.request(
            "POST",
            "/api/v2/services",
            body={
                "name": "report",
                "task_types": ["report"],
                "schema": {
                    "report": {
                        "type": "object",
                        "properties": {"quarter": {"type": "string"}},
                        "required": ["quarter"],
                    }
                },
            },
        )
        await client._api.send(request)
        yield url


async def named(url: str, session: str | None = "ada") -> Mapping[str, ToolFunction]:
    return {tool.__name__: tool for tool in await asyncio.to_thread(tools, url, session)}


@pytest.mark.contract("S2-1")
async def test_a_function_looks_as_its_definition_says(url: str) -> None:
    by_name = await named(url, None)
    report = by_name["report_task_tool"]
    signature = inspect.signature(report)
    assert list(signature.parameters) == ["task_type", "parameters", "session_id"]
    assert signature.parameters["task_type"].annotation == Literal["report"]
    assert signature.parameters["parameters"].annotation == dict[str, Any]
    assert "quarter" in (report.__doc__ or "")
    assert report.schema["function"]["name"] == "report_task_tool"
    result = inspect.signature(by_name["get_task_result_tool"]).parameters
    assert result["task_id"].default is inspect.Parameter.empty
    assert result["session_id"].default is None
    listing = inspect.signature(by_name["list_user_tasks_tool"]).parameters
    assert list(listing) == ["session_id", "status_filter", "limit"]


@pytest.mark.contract("S2-1")
async def test_functions_hand_off_look_and_list(url: str) -> None:
    by_name = await named(url)
    assert "session_id" not in inspect.signature(by_name["report_task_tool"]).parameters

    def work() -> None:
        handed = by_name["report_task_tool"](task_type="report", parameters={"quarter": "Q4"})
        id = handed["task_id"]
        assert by_name["get_task_result_tool"](task_id=id)["status"] == "pending"
        (only,) = by_name["list_user_tasks_tool"](status_filter="PENDING")["tasks"]
        assert only["task_id"] == id

    await asyncio.to_thread(work)


@pytest.mark.contract("S2-1")
async def test_the_same_with_an_event_loop(url: str) -> None:
    async with Client(url) as client:
        by_name = {tool.__name__: tool for tool in await client.tools("ada")}
        assert all(inspect.iscoroutinefunction(tool) for tool in by_name.values())
        handed = await by_name["report_task_tool"](task_type="report", parameters={"quarter": "Q4"})
        said = await by_name["get_task_result_tool"](task_id=handed["task_id"])
        assert said["status"] == "pending"


@pytest.mark.contract("S2-1")
async def test_only_the_tools_of_chosen_services_are_made(url: str) -> None:
    follow_up = {"cancel_task_tool", "get_task_result_tool", "list_user_tasks_tool"}
    chosen = await asyncio.to_thread(tools, url, "ada", services=["report"])
    assert {tool.__name__ for tool in chosen} == {"report_task_tool", *follow_up}
    async with Client(url) as client:
        none = await client.tools("ada", services=["mail", "flow:x"])
        assert {tool.__name__ for tool in none} == follow_up
    (report,) = [tool for tool in chosen if tool.__name__ == "report_task_tool"]
    handed = await asyncio.to_thread(report, task_type="report", parameters={"quarter": "Q4"})
    assert handed["task_id"]


async def test_what_goes_wrong_is_raised_in_words(url: str) -> None:
    by_name = await named(url)

    def wrong() -> Any:
        return by_name["report_task_tool"](task_type="report", parameters={"quarter": 4})

    with pytest.raises(ProblemError, match="parameters/quarter"):
        await asyncio.to_thread(wrong)
    with pytest.raises(TypeError, match="urgent"):
        by_name["get_task_result_tool"](task_id="x", urgent=True)
    with pytest.raises(Unreachable):
        await asyncio.to_thread(tools, f"http://127.0.0.1:{free_port()}", "ada")


@pytest.mark.contract("S2-1", "N-7")
def test_tools_say_what_a_function_does_and_returns() -> None:
    async def add(a: int, b: int) -> int:
        """Adds two
        numbers.

        Use it for whole numbers only.

        Args:
            a: the first one
        """
        return a + b

    service = msgspec.convert(Service(add).declaration(), Declared)
    hand_off, *_, direct = tools_of([service], direct=True)
    purpose = "Adds two numbers. Use it for whole numbers only."
    assert direct.description == f"{purpose} By the service add."
    assert hand_off.description.startswith(f"{purpose} Hands a task to the service add")
    assert direct.parameters["properties"]["a"]["description"] == "the first one"
    assert hand_off.parameters["properties"]["parameters"]["properties"]["a"]["description"]
    result = direct.output["properties"]["result"]
    assert result == {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@pytest.mark.contract("S2-1")
def test_a_description_ends_where_model_providers_would_cut_it() -> None:
    long = "\n\n".join(f"Paragraph {number}. {'word ' * 50}" for number in range(10))
    service = Declared(name="report", task_types=("report",), description=long)
    for tool in tools_of([service], direct=True):
        assert len(tool.description) <= 1_024
    assert "Paragraph 1." in tools_of([service])[0].description


@pytest.mark.contract("S2-1")
def test_a_handlers_own_words_come_before_those_of_its_model() -> None:
    async def charge(order: Order) -> None:
        """Charge an order."""

    service = msgspec.convert(Service(charge).declaration(), Declared)
    *_, direct = tools_of([service], direct=True)
    assert direct.description == "Charge an order. By the service charge."
