"""MCP calls whose connection is cut, or whose server dies: they are taken up again."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters

from onward.client.address import http_options
from tests.agents.test_mcp import app, asked, until
from tests.processes import Server

pytestmark = [pytest.mark.slow, pytest.mark.contract("S2-1")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with app(tmp_path_factory.mktemp("mcp"), 60_000) as server:
        yield server


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(**http_options(server.url)) as http:
        yield http


def as_older(version: str, **more: str) -> dict[str, str]:
    accept = {"accept": "application/json, text/event-stream"}
    return {**accept, "mcp-protocol-version": version, **more}


async def first_event(
    http: httpx2.AsyncClient, call: Any, headers: dict[str, str], session: str | None = None
) -> str:
    """Of the response, whose connection is then cut; if a session is named, once its task runs."""
    request = http.build_request("POST", "/mcp", json=call, headers=headers)
    response = await http.send(request, stream=True)
    try:
        async for piece in response.aiter_text():
            if session is not None:
                tasks = f"/api/v2/sessions/{session}/tasks?state=running"
                await until(http, tasks, lambda body: bool(body["items"]))
            return piece.partition("\n\n")[0]
    finally:
        await response.aclose()
    raise AssertionError("an empty response")


def id_in(event: str) -> str:
    id, retry, data = event.split("\n")
    assert (retry, data) == ("retry: 2000", "data: ")
    return id.removeprefix("id: ")


async def test_a_call_whose_connection_was_cut_is_taken_up_again(http: httpx2.AsyncClient) -> None:
    call = asked("report", {"quarter": "Q4", "seconds": 1}, id=7)
    headers = as_older("2025-11-25", **{"mcp-session-id": "cut-off"})
    id = id_in(await first_event(http, call, headers, "cut-off"))
    answer = await http.get("/mcp", headers={**headers, "last-event-id": id})
    assert answer.status_code == 200
    first, message, rest = answer.text.split("\n\n")
    assert (id_in(first), rest) == (id, "")
    body = json.loads(message.partition("data: ")[2])
    assert body["id"] == 7
    assert body["result"]["structuredContent"]["result"] == {"file": "Q4.pdf"}

    other = await http.get(
        "/mcp", headers={**headers, "mcp-session-id": "other", "last-event-id": id}
    )
    assert (other.status_code, other.headers["allow"]) == (405, "POST")


async def test_only_clients_that_read_it_are_sent_an_event_without_data(
    http: httpx2.AsyncClient,
) -> None:
    call = asked("say", {"payload": "hi"})
    for version in ("2025-03-26", "2025-06-18"):
        headers = as_older(version, **{"mcp-session-id": "old"})
        assert (await first_event(http, call, headers)).startswith("event: message")
    newer = as_older("2025-03-26", **{"mcp-session-id": "primed-x"})
    assert id_in(await first_event(http, call, newer)), "it agreed on a newer version before"


@pytest.mark.parametrize(("version", "primed"), [("2025-06-18", False), ("2025-11-25", True)])
async def test_a_session_id_remembers_what_a_client_can_read(
    http: httpx2.AsyncClient, version: str, primed: bool
) -> None:
    info = {"name": "old", "version": "1"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    accept = {"accept": "application/json, text/event-stream"}
    answer = await http.post("/mcp", json=hello, headers=accept)
    assert answer.headers["mcp-session-id"].startswith("primed-") == primed


@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_a_call_outlives_the_server_that_took_it(tmp_path: Path, over: str) -> None:
    """As the SDK's client has it, and `onward mcp`: they come back by themselves."""
    options: dict[str, Any] = {"ONWARD_MCP_WAIT_MS": 60_000, "ONWARD_LEASE_MS": 2_000}
    with app(tmp_path, 60_000, ONWARD_LEASE_MS=2_000) as server:
        bridge = ["-m", "onward.cli", "mcp", "--server", server.url]
        command = StdioServerParameters(command=sys.executable, args=bridge)
        where = command if over == "stdio" else f"{server.url}/mcp"
        async with Client(where, mode="legacy") as client:
            calling = asyncio.ensure_future(
                client.call_tool("report", {"quarter": "Q2", "seconds": 6})
            )
            async with httpx2.AsyncClient(**http_options(server.url)) as http:
                running = "/api/v2/tasks?type=report&state=running"
                await until(http, running, lambda body: bool(body["items"]))
            server.kill()
            again = Server(tmp_path, port=server.port, **options)
            try:
                again.wait_ready()
                done = await calling
            finally:
                again.kill()
    assert done.structured_content["result"] == {"file": "Q2.pdf"}
