"""MCP as its own SDK's client speaks it, with a server and a worker that are real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, Request, RequestParams, Result

from onward.client.address import http_options
from tests.client.conftest import served
from tests.processes import HTTP, Process, Server, serving
from tests.support import poll_until, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("S2-1")]

TASKS = "io.modelcontextprotocol/tasks"
WORKER = Path(__file__).with_name("reporter.py")


@contextmanager
def app(folder: Path, wait_ms: int, **more: Any) -> Iterator[Server]:
    """A server with a worker, whose calls wait so long for their answer."""
    with serving(folder, ONWARD_MCP_WAIT_MS=wait_ms, **more) as server:
        command = (sys.executable, "-m", "onward.cli", "worker", f"{WORKER}:worker")
        env = {"ONWARD_URL": server.url}
        worker = Process(*command, env=env, log=folder / "worker.log")
        try:
            poll_until(lambda: HTTP.get(f"{server.url}/api/v2/workers").json()["items"])
            yield server
        finally:
            worker.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with app(tmp_path_factory.mktemp("mcp"), 60_000) as server:
        yield server


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with app(tmp_path_factory.mktemp("hurried"), 1_000) as server:
        yield server


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(**http_options(server.url)) as http:
        yield http


async def until(http: httpx2.AsyncClient, path: str, holds: Any) -> Any:
    async def body() -> Any:
        return (await http.get(path)).json()

    return await wait_until(body, holds=holds)


async def state(http: httpx2.AsyncClient, task: str, wanted: str) -> Any:
    path = f"/api/v2/tasks/{task}"
    return await until(http, path, lambda body: body["state"] == wanted)


@asynccontextmanager
async def speaking(server: Server, session: str | None, **options: Any) -> AsyncIterator[Client]:
    query = "" if session is None else f"?session_id={session}"
    async with Client(f"{server.url}/mcp{query}", **options) as client:
        yield client


def text(result: CallToolResult) -> str:
    return str(result.content[0].text)  # type: ignore[union-attr]


class Handle(Result):
    """A task instead of a result: what the extension adds."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    poll_interval_ms: int


class AboutTask(RequestParams):
    task_id: str


class Answers(AboutTask):
    input_responses: dict[str, Any]


class TaskRequest(Request[AboutTask, str]):
    name_param = "taskId"


class UpdateRequest(Request[Answers, str]):
    name_param = "taskId"


class Told(Result):
    status: str = ""
    status_message: str | None = None
    input_requests: dict[str, Any] | None = None
    result: dict[str, Any] | None = None


class TasksExtension(ClientExtension):
    """As a client would have it: takes the handle, and gives it to the test."""

    identifier = TASKS

    def __init__(self) -> None:
        self.handles: list[Handle] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Handle, resolve=self._resolve)]

    async def _resolve(self, handle: Handle, ctx: ClaimContext) -> CallToolResult:
        self.handles.append(handle)
        return CallToolResult(content=[])


async def ask(client: Client, method: str, params: AboutTask) -> Told:
    request: Request[Any, str]
    if isinstance(params, Answers):
        request = UpdateRequest(method=method, params=params)
    else:
        request = TaskRequest(method=method, params=params)
    return await client.session.send_request(request, Told)


async def handed(client: Client, extension: TasksExtension, name: str, **args: Any) -> Handle:
    await client.call_tool(name, args)
    return extension.handles.pop()


MODES = ["2026-07-28", "legacy"]


@pytest.mark.parametrize("mode", MODES)
async def test_tools_are_those_of_the_door_and_one_a_type(
    server: Server, http: httpx2.AsyncClient, mode: Any
) -> None:
    async with speaking(server, "lister", mode=mode) as client:
        names = {tool.name: tool for tool in (await client.list_tools()).tools}
    told = (await http.get("/api/v2/tools?session_id=lister")).json()["items"]
    assert {tool["name"] for tool in told} < set(names)
    assert {"report", "pay", "say"} <= set(names)
    assert names["report"].input_schema["required"] == ["quarter"]
    assert names["say"].input_schema["required"] == ["payload"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_without_the_extension_gets_its_answer(
    server: Server, http: httpx2.AsyncClient, mode: Any
) -> None:
    seen: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async with speaking(server, None, mode=mode) as client:
        result = await client.call_tool(
            "report", {"quarter": "Q4", "seconds": 0.2}, progress_callback=hear
        )
        said = await client.call_tool("say", {"payload": "as it is"})
    assert not result.is_error
    assert text(result) == '{"file":"Q4.pdf"}'
    assert result.structured_content["status"] == "completed"
    assert (0.5, "half") in seen
    assert text(said) == "as it is"


@pytest.mark.parametrize("mode", MODES)
async def test_what_takes_long_is_fetched_later(hurried: Server, mode: Any) -> None:
    async with (
        httpx2.AsyncClient(**http_options(hurried.url)) as http,
        speaking(hurried, "later", mode=mode) as client,
    ):
        first = await client.call_tool("report", {"quarter": "Q4", "seconds": 3})
        task = first.structured_content["task_id"]
        assert first.structured_content["status"] == "processing"
        assert task in text(first)
        await state(http, task, "succeeded")
        fetched = await client.call_tool("get_task_result_tool", {"task_id": task})
    assert fetched.structured_content["result"] == {"file": "Q4.pdf"}


async def test_a_client_with_the_extension_gets_a_handle_and_polls(
    server: Server, http: httpx2.AsyncClient
) -> None:
    extension = TasksExtension()
    async with speaking(server, "handle", extensions=[extension]) as client:
        handle = await handed(client, extension, "report", quarter="Q4", seconds=3)
        about = AboutTask(task_id=handle.task_id)
        assert handle.status == "working"
        assert (await ask(client, "tasks/get", about)).status == "working"
        await state(http, handle.task_id, "succeeded")
        told = await ask(client, "tasks/get", about)
        assert told.status == "completed"
        assert told.result is not None
        assert told.result["structuredContent"]["result"] == {"file": "Q4.pdf"}
        # What is quick is answered at once, also to those who could wait.
        quick = await client.call_tool("report", {"quarter": "Q1"})
        assert text(quick) == '{"file":"Q1.pdf"}'


async def test_a_client_cannot_approve_what_it_handed_in(
    server: Server, http: httpx2.AsyncClient
) -> None:
    extension = TasksExtension()
    async with speaking(server, "payer", extensions=[extension]) as client:
        handle = await handed(client, extension, "pay", amount=3)
        assert handle.status == "working", "nothing that the client could answer is asked"
        asked = await ask(client, "tasks/get", AboutTask(task_id=handle.task_id))
        assert (asked.status, asked.input_requests) == ("working", None)
        assert asked.status_message is not None
        assert "/ui/approvals" in asked.status_message
        waiting = (await http.get(f"/api/v2/approvals/{handle.task_id}")).json()
        key = f"approval-0-{waiting['digest'][:16]}"
        for said in ({"action": "accept", "content": {"approve": True}}, {"action": "decline"}):
            answers = Answers(task_id=handle.task_id, input_responses={key: said})
            with pytest.raises(MCPError, match=r"cannot approve it.*onward approvals approve"):
                await ask(client, "tasks/update", answers)
        assert (await http.get(f"/api/v2/tasks/{handle.task_id}")).json()["state"] == "waiting"
        path = f"/api/v2/approvals/{handle.task_id}/approve"
        assert (await http.post(path, json={"by": "boss"})).status_code == 200
        await state(http, handle.task_id, "succeeded")
        told = await ask(client, "tasks/get", AboutTask(task_id=handle.task_id))
        assert told.result is not None
        assert told.result["content"][0]["text"] == "paid 3"


@pytest.mark.parametrize("mode", MODES)
async def test_no_caller_is_kept_waiting_for_a_person(mode: Any) -> None:
    service = {"name": "pay", "task_types": ["pay"], "requires_approval": True}
    async with served(mcp_wait_ms=600_000) as url, asyncio.timeout(30):
        async with httpx2.AsyncClient(**http_options(url)) as http:
            await http.post("/api/v2/services", json=service)
        async with Client(f"{url}/mcp", mode=mode) as client:
            result = await client.call_tool("pay", {"amount": 3})
    assert "approval" in text(result)
    assert result.structured_content["task_id"] in text(result)


@pytest.mark.contract("S2-9")
@pytest.mark.parametrize("session", ["eve", None])
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_another_sessions_handle_is_unknown(
    server: Server, http: httpx2.AsyncClient, method: str, session: str | None
) -> None:
    body = {"type": "nobody", "session_id": "ada"}
    task = (await http.post("/api/v2/tasks", json=body)).json()["id"]
    said = []
    async with speaking(server, session, mode="2026-07-28") as client:
        for id in (task, "01900000-0000-7000-8000-000000000000"):
            with pytest.raises(MCPError) as refused:
                await ask(client, method, Answers(task_id=id, input_responses={}))
            said.append((refused.value.code, refused.value.message))
    assert said[0] == said[1]
    assert said[0][0] == -32602
    assert (await http.get(f"/api/v2/tasks/{task}")).json()["state"] == "queued"


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_is_given_up_is_canceled(
    server: Server, http: httpx2.AsyncClient, mode: Any
) -> None:
    session = f"quitter-{mode}"
    path = f"/api/v2/sessions/{session}/tasks"
    async with speaking(server, session, mode=mode) as client:
        call = asyncio.create_task(client.call_tool("report", {"quarter": "Q4", "seconds": 60}))
        (task,) = (await until(http, path, lambda body: bool(body["items"])))["items"]
        call.cancel()
        await asyncio.wait([call])
        await state(http, task["id"], "canceled")


async def test_a_handle_is_canceled(server: Server, http: httpx2.AsyncClient) -> None:
    extension = TasksExtension()
    async with speaking(server, "stopper", extensions=[extension]) as client:
        handle = await handed(client, extension, "report", quarter="Q4", seconds=60)
        about = AboutTask(task_id=handle.task_id)
        await ask(client, "tasks/cancel", about)
        await state(http, handle.task_id, "canceled")
        assert (await ask(client, "tasks/get", about)).status == "cancelled"
        await ask(client, "tasks/cancel", about)  # over already: nothing to say


@pytest.mark.parametrize("mode", MODES)
async def test_bad_arguments_are_told_to_the_model(
    server: Server, http: httpx2.AsyncClient, mode: Any
) -> None:
    async with speaking(server, "clumsy", mode=mode) as client:
        result = await client.call_tool("report", {"quarter": 4})
        assert result.is_error
        assert "arguments/quarter" in text(result)
        missing = await client.call_tool("say", {})
        assert missing.is_error
        with pytest.raises(MCPError):
            await client.call_tool("no_such_tool", {})
    assert (await http.get("/api/v2/sessions/clumsy/tasks")).json()["items"] == []


async def test_an_older_client_is_given_a_session_that_outlives_the_connection(
    server: Server, http: httpx2.AsyncClient
) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "old", "version": "1"},
        },
    }
    accept = {"accept": "application/json, text/event-stream"}
    answer = await http.post("/mcp", json=hello, headers=accept)
    session = answer.headers["mcp-session-id"]
    async with speaking(server, session, mode="legacy") as client:
        handed_off = await client.call_tool(
            "report_task_tool", {"task_type": "report", "parameters": {"quarter": "Q2"}}
        )
    task = handed_off.structured_content["task_id"]
    assert (await http.get(f"/api/v2/tasks/{task}")).json()["session_id"] == session


@pytest.mark.contract("S2-1")
async def test_a_session_that_a_call_names_wins_over_the_one_it_was_given(
    http: httpx2.AsyncClient,
) -> None:
    """As the tools are called by a client that knows only their signatures."""
    arguments = {"task_type": "report", "parameters": {"quarter": "Q2"}, "session_id": "ada"}
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "report_task_tool", "arguments": arguments},
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2025-06-18",
        "mcp-session-id": "given-at-the-start",
    }
    reply = await http.post("/mcp", json=call, headers=headers)
    task = json.loads(reply.text.partition("data: ")[2])["result"]["structuredContent"]["task_id"]
    assert (await http.get(f"/api/v2/tasks/{task}")).json()["session_id"] == "ada"

    bound = await http.post("/mcp?session_id=eve", json=call, headers=headers)
    refused = json.loads(bound.text.partition("data: ")[2])["result"]
    assert refused["isError"], "a session that the client chose is the only one"


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_names_its_session_where_the_client_chose_none(
    server: Server, http: httpx2.AsyncClient, mode: Any
) -> None:
    session = f"grace-{mode}"
    async with speaking(server, None, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name in ("report", "say", "report_task_tool", "get_task_result_tool"):
            assert "session_id" in tools[name].input_schema["properties"], name
        assert tools["report"].input_schema["required"] == ["quarter"]
        done = await client.call_tool("report", {"quarter": "Q4", "session_id": session})
        said = await client.call_tool("say", {"payload": "hi", "session_id": session})
        refused = await client.call_tool("say", {"payload": "hi", "session_id": ""})
    assert text(done) == '{"file":"Q4.pdf"}'
    assert text(said) == "hi"
    assert refused.is_error
    items = (await http.get(f"/api/v2/sessions/{session}/tasks")).json()["items"]
    assert [(task["type"], task["payload"]) for task in items] == [
        ("say", "hi"),
        ("report", {"quarter": "Q4"}),
    ]


async def test_a_client_that_chose_a_session_is_shown_no_other(server: Server) -> None:
    async with speaking(server, "heidi") as client:
        for tool in (await client.list_tools()).tools:
            assert "session_id" not in tool.input_schema.get("properties", {}), tool.name


async def test_a_handle_is_given_only_where_it_is_found_again(
    server: Server, http: httpx2.AsyncClient
) -> None:
    """It is looked up in the session of the connection: another one's would be lost."""
    extension = TasksExtension()
    async with speaking(server, None, extensions=[extension]) as client:
        done = await client.call_tool(
            "report", {"quarter": "Q1", "seconds": 1.5, "session_id": "ivan"}
        )
    assert extension.handles == []
    assert done.structured_content["status"] == "completed"


async def test_a_flow_is_called_and_waited_for(server: Server, http: httpx2.AsyncClient) -> None:
    nodes = {"a": {"kind": "timer", "params": {"delay_ms": 10}}}
    definition = {"start": "a", "nodes": nodes, "tool": {"description": "Wind the clock."}}
    await http.post("/api/v2/flows", json={"name": "wind", "definition": definition})
    async with speaking(server, "judy") as client:

        async def offered() -> Any:
            return {tool.name: tool for tool in (await client.list_tools()).tools}

        tools = await wait_until(offered, holds=lambda found: "wind" in found)
        done = await client.call_tool("wind", {"clock": "hall"})
    assert tools["wind"].description == "Wind the clock. By the flow wind."
    assert done.structured_content["status"] == "completed"
    (run,) = (await http.get("/api/v2/runs?flow=wind")).json()["items"]
    assert (run["session_id"], run["params"]) == ("judy", {"clock": "hall"})


async def test_news_come_with_the_next_answer_and_once(
    server: Server, http: httpx2.AsyncClient
) -> None:
    async with speaking(server, "newsreader") as client:
        handed_off = await client.call_tool(
            "report_task_tool", {"task_type": "report", "parameters": {"quarter": "Q3"}}
        )
        task = handed_off.structured_content["task_id"]
        unread = "/api/v2/sessions/newsreader/notifications?unread=true"
        await until(http, unread, lambda body: bool(body["items"]))
        direct = await client.call_tool("report", {"quarter": "Q1"})
        (news,) = direct.structured_content["notifications"]
        assert news["task_id"] == task
        assert text(direct) == '{"file":"Q1.pdf"}'
        # Nor is the direct call told of: whoever called it has the answer.
        kept = "/api/v2/sessions/newsreader/notifications"
        await until(http, kept, lambda body: len(body["items"]) == 2)
        await until(http, unread, lambda body: body["items"] == [])
        listed = await client.call_tool("list_user_tasks_tool", {})
        assert listed.structured_content["notifications"] == []
        assert len(listed.structured_content["tasks"]) == 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"origin": "http://evil.example"}, 403), ({"host": "evil.example"}, 421)],
)
async def test_other_pages_and_other_names_are_refused(
    server: Server, http: httpx2.AsyncClient, headers: dict[str, str], status: int
) -> None:
    answer = await http.post("/mcp", json={}, headers=headers)
    assert answer.status_code == status


async def test_a_session_that_cannot_be_is_refused(
    server: Server, http: httpx2.AsyncClient
) -> None:
    for query in ("", "%00", "x" * 129):
        assert (await http.post(f"/mcp?session_id={query}", json={})).status_code == 422


@pytest.mark.parametrize("mode", MODES)
async def test_the_same_over_stdio(
    server: Server, http: httpx2.AsyncClient, mode: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    command = StdioServerParameters(
        command=sys.executable,
        args=[
            *("-m", "onward.cli", "mcp", "--session", f"desk-{mode}", "--only", "report"),
            *("--server", server.url),
        ],
    )
    seen: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with Client(command, mode=mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert {"report", "pay"} & set(names) == {"report"}
        with pytest.raises(MCPError, match="no tool is called 'pay'"):
            await client.call_tool("pay", {})
        result = await client.call_tool(
            "report", {"quarter": "Q4", "seconds": 0.2}, progress_callback=hear
        )
        assert text(result) == '{"file":"Q4.pdf"}'
        assert 0.5 in seen
        path = f"/api/v2/sessions/desk-{mode}/tasks?status=processing"
        call = asyncio.create_task(client.call_tool("report", {"quarter": "Q4", "seconds": 60}))
        (task,) = (await until(http, path, lambda body: bool(body["items"])))["items"]
        call.cancel()
        await asyncio.wait([call])
        await state(http, task["id"], "canceled")
    assert capfd.readouterr().err == "", "all went well: nothing to complain of"


async def test_stdio_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "onward.cli", "mcp", "--server", first.url]
        )
        async with Client(command, mode="legacy") as client:
            before = await client.list_tools()
            first.kill()
            with pytest.raises(MCPError, match="onward up"):
                await client.call_tool("get_task_result_tool", {"task_id": "x"})
            with serving(tmp_path, port=first.port):
                assert (await client.list_tools()).tools == before.tools


@pytest.mark.parametrize("mode", MODES)
async def test_a_server_that_goes_down_cancels_nothing(tmp_path: Path, mode: Any) -> None:
    """Its clients see their connections close, which newer ones would take for their own cancel."""
    with serving(tmp_path, ONWARD_DRAIN_MS=0) as first:
        async with httpx2.AsyncClient(**http_options(first.url)) as http:
            await http.post("/api/v2/services", json={"name": "slow", "task_types": ["slow"]})
            with contextlib.suppress(MCPError, ExceptionGroup, httpx2.HTTPError):
                async with speaking(first, "stayer", mode=mode) as client:
                    call = asyncio.create_task(client.call_tool("slow", {}))
                    path = "/api/v2/sessions/stayer/tasks"
                    (task,) = (await until(http, path, lambda body: bool(body["items"])))["items"]
                    await asyncio.to_thread(first.stop)
                    await asyncio.wait([call])
                    call.result()
        with serving(tmp_path) as second:
            answer = HTTP.get(f"{second.url}/api/v2/tasks/{task['id']}")
            assert answer.json()["state"] == "queued"


def asked(tool: str, arguments: dict[str, Any], *, id: int = 1) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
