"""The tools as Python functions: what a framework sees of them, and what they do."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import msgspec
import pytest

from onward.client import tools
from onward.client.errors import ProblemError, Unreachable
from onward.client.functions import ToolFunction
from onward.client.http import Client
from onward.client.service import Service
from onward.native.tools.tools import tools_of
from onward.services.catalog import Declared
from tests.client.conftest import served
from tests.processes import free_port


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

        Not for the agent.
        """
        return a + b

    service = msgspec.convert(Service(add).declaration(), Declared)
    hand_off, *_, direct = tools_of([service], direct=True)
    assert direct.description == "Adds two numbers. By the service add."
    assert hand_off.description.startswith("Adds two numbers. Hands a task to the service add")
    result = direct.output["properties"]["result"]
    assert result == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
