"""The worker in TypeScript, under Node, against a real server: it does what the Python one does."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.server import ServerConnection, serve

from onward.client.address import http_options
from onward.client.http import Client, TaskEvent, TaskView
from tests.client.conftest import Line
from tests.processes import Process, free_port, serving
from tests.support import wait_until

PACKAGE = Path(__file__).parents[2] / "clients" / "typescript"
WAIT_S = 40.0

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-7")]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as `npm run build` makes it, in a folder of this run's own."""
    if shutil.which("node") is None or not (PACKAGE / "node_modules" / "typescript").exists():
        pytest.skip("no Node, or its packages are not installed (make page-tools)")
    folder = tmp_path_factory.mktemp("typescript") / "package"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (folder / "node_modules").symlink_to(PACKAGE / "node_modules")
    tsc = folder / "node_modules" / "typescript" / "bin" / "tsc"
    subprocess.run(["node", str(tsc)], cwd=folder, check=True, timeout=100)
    return folder / "dist"


class NodeWorker(Process):
    def __init__(self, program: Path, url: str, folder: Path, **env: Any) -> None:
        folder.mkdir()
        self.log = folder / "worker.log"
        self.notes = folder / "notes"
        self.notes.touch()
        said = {"ONWARD_URL": url, "NOTES": str(self.notes), **env}
        super().__init__(
            "node",
            str(program),
            env={name: str(value) for name, value in said.items()},
            log=self.log,
        )

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines()

    async def wait_noted(self, line: str) -> None:
        await self._wait(lambda: line in self.noted())

    async def wait_connected(self, times: int = 1) -> None:
        await self._wait(lambda: self.log.read_text().count("connected to") >= times)

    async def _wait(self, predicate: Callable[[], object]) -> None:
        await wait_until(lambda: predicate() or self.popen.poll() is not None, WAIT_S)
        assert predicate(), self.log.read_text()[-3000:]

    async def ended(self) -> int:
        await wait_until(lambda: self.popen.poll() is not None, WAIT_S)
        return int(self.popen.returncode)


class Workers:
    def __init__(self, dist: Path, folder: Path) -> None:
        self._dist = dist
        self._folder = folder
        self.all: list[NodeWorker] = []

    async def start(
        self, url: str, program: str = "test/services.js", *, connected: bool = True, **env: Any
    ) -> NodeWorker:
        folder = self._folder / f"worker-{len(self.all)}"
        worker = NodeWorker(self._dist / program, url, folder, **env)
        self.all.append(worker)
        if connected:
            await worker.wait_connected()
        return worker


@pytest.fixture
def workers(compiled: Path, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(compiled, tmp_path)
    yield workers
    for worker in workers.all:
        worker.kill()


async def over(
    client: Client, type: str, payload: Mapping[str, Any] = {}, **options: Any
) -> TaskView:
    task = await client.submit(type, payload, **{"backoff_ms": [1], **options})
    return await client.wait(task.id, timeout_ms=int(WAIT_S * 1000))


async def told(client: Client, task: TaskView, type: str) -> list[Any]:
    return [event.data for event in (await client.events(task.id)).items if event.type == type]


async def test_the_example_of_the_readme_does_its_task(
    url: str, client: Client, workers: Workers
) -> None:
    example = (PACKAGE / "examples" / "hello.ts").read_text()
    assert f"```ts\n{example}```" in (PACKAGE / "README.md").read_text()

    await workers.start(url, "examples/hello.js")

    assert await client.run("greet", {"name": "Ada"}) == "hello Ada"


@pytest.mark.contract("K-11")
async def test_a_worker_with_a_key_works_for_a_closed_server(
    tmp_path: Path, workers: Workers
) -> None:
    key = "an-admin-key-of-thirty-two-characters"
    (tmp_path / "server").mkdir()
    with serving(tmp_path / "server", ONWARD_ADMIN_KEY=key) as server:
        await workers.start(server.url, "examples/hello.js", ONWARD_KEY=key)
        async with Client(server.url, key=key) as client:
            assert await client.run("greet", {"name": "Ada"}) == "hello Ada"


async def test_a_handler_is_told_of_its_task_and_its_service_is_declared(
    url: str, client: Client, workers: Workers
) -> None:
    await workers.start(url)

    task = await over(client, "echo", {"n": 1}, idempotency_key="k")

    assert task.result["payload"] == {"n": 1}
    assert (task.result["taskId"], task.result["attempt"], task.result["key"]) == (task.id, 1, "k")
    declared = {service.name: service for service in await client.services()}["echo"]
    assert declared.schema["echo"]["properties"] == {"n": {"type": "integer"}}
    assert (declared.description, declared.output) == (
        "Says it again.",
        {"echo": {"type": "object"}},
    )
    assert (declared.timeout_ms, declared.max_retries) == (60_000, 7)


async def test_a_group_answers_http_clients(url: str, workers: Workers) -> None:
    await workers.start(url)
    async with httpx2.AsyncClient(**http_options(url), timeout=WAIT_S) as http:
        answer = await http.post("/api/openai", json={"data": {"a": 1}})
    assert answer.json()["result"] == {"echo": {"data": {"a": 1}}}


async def test_what_a_handler_throws_says_whether_to_try_again(
    url: str, client: Client, workers: Workers
) -> None:
    await workers.start(url)

    async def thrown(how: str) -> tuple[str, str, int]:
        task = await over(client, "fail", {"how": how}, max_retries=1)
        return task.error["kind"], task.error["message"], task.attempt

    assert await thrown("refused") == ("Refused", "never", 1)
    assert await thrown("status") == ("Error", "gone", 1)
    assert await thrown("own") == ("OutOfPaper", "tray 2", 2)
    assert await thrown("text") == ("Error", "just text", 2)
    assert await thrown("timeout") == ("NetworkTimeout", "slow", 2)
    assert await thrown("network") == ("NetworkTimeout", "fetch failed", 2)
    assert await thrown("halved") == ("Refused", "\ufffd", 1)
    assert await thrown("long") == ("Refused", "x" * 10_000, 1)

    later = await client.submit("fail", {"how": "tryAgain"}, backoff_ms=[1])
    retrying = await first(client, later, "task.retrying")
    assert retrying.data["run_at"] - retrying.at >= 60_000


async def first(client: Client, task: TaskView, type: str) -> TaskEvent:
    async with asyncio.timeout(WAIT_S), aclosing(client.stream(task.id)) as events:
        async for event in events:
            if event.type == type:
                return event
    raise AssertionError(f"no {type}")


async def test_a_result_that_cannot_be_sent_fails_alone(
    url: str, client: Client, workers: Workers
) -> None:
    worker = await workers.start(url)

    async def result(which: str) -> Any:
        task = await over(client, "result", {"which": which})
        return task.result if task.error is None else task.error["kind"]

    assert await result("nothing") is None
    assert await result("circle") == "ResultInvalid"
    assert await result("deep") == "ResultInvalid"
    assert await result("huge") == "ResultTooLarge"
    assert await result("halved") == {"😀 \\ud83d": "\ufffd!"}
    assert (await over(client, "emit-huge")).error["kind"] == "ResultTooLarge"
    assert worker.log.read_text().count("connected to") == 1


async def test_progress_is_throttled_and_the_last_word_is_kept(
    url: str, client: Client, workers: Workers
) -> None:
    await workers.start(url)
    task = await over(client, "hurry")

    progress = await told(client, task, "task.progress")
    assert task.started_at
    assert task.finished_at
    assert len(progress) <= (task.finished_at - task.started_at) / 100 + 2
    assert progress[0] == {"progress": 0.0, "message": "step 0"}
    assert progress[-1] == {"progress": 1.0, "message": "step 499"}


async def test_parts_are_seen_in_their_order_and_before_the_end(
    url: str, client: Client, workers: Workers
) -> None:
    await workers.start(url)
    task = await over(client, "write")

    assert await told(client, task, "task.chunk") == ["hel", {"more": "lo"}, None]
    assert [said["progress"] for said in await told(client, task, "task.progress")] == [1.0]
    assert task.result == "hello"


@pytest.mark.contract("N-4")
async def test_a_canceled_task_aborts_its_signal(
    url: str, client: Client, workers: Workers
) -> None:
    worker = await workers.start(url)
    task = await client.submit("wait", {})
    await worker.wait_noted("began 1")
    await client.cancel(task.id)

    assert (await client.wait(task.id, timeout_ms=int(WAIT_S * 1000))).state == "canceled"
    await worker.wait_noted("Canceled")


async def test_sigterm_finishes_what_runs_and_takes_nothing_more(
    url: str, client: Client, workers: Workers, tmp_path: Path
) -> None:
    worker = await workers.start(url)
    running = await client.submit("until", {"file": str(tmp_path / "go")})
    await worker.wait_noted("began 1")

    worker.signal(signal.SIGTERM)
    await wait_until(lambda: "finishing what runs" in worker.log.read_text(), WAIT_S)
    await draining(client)
    waiting = await client.submit("echo", {})
    (tmp_path / "go").touch()

    assert await worker.ended() == 0
    assert worker.noted() == ["began 1", "ended 1", "left"]
    assert (await client.get(running.id)).result == "done"
    assert (await client.get(waiting.id)).state == "queued"


async def draining(client: Client) -> None:
    """Until the server knows that its worker goes."""
    await wait_until(
        client.workers, WAIT_S, holds=lambda workers: all(worker.draining for worker in workers)
    )


async def test_a_second_signal_leaves_at_once_and_the_task_goes_back(
    url: str, client: Client, workers: Workers, tmp_path: Path
) -> None:
    worker = await workers.start(url)
    task = await client.submit("until", {"file": str(tmp_path / "go")})
    await worker.wait_noted("began 1")
    worker.signal(signal.SIGINT)
    await wait_until(lambda: "finishing what runs" in worker.log.read_text(), WAIT_S)
    worker.signal(signal.SIGTERM)

    assert await worker.ended() == 128 + signal.SIGTERM
    (tmp_path / "go").touch()
    await workers.start(url)
    assert (await client.wait(task.id, timeout_ms=int(WAIT_S * 1000))).result == "done"


async def test_a_handler_that_never_ends_does_not_keep_a_drained_process(
    url: str, client: Client, workers: Workers, tmp_path: Path
) -> None:
    worker = await workers.start(url, GRACE_MS=1)
    await client.submit("until", {"file": str(tmp_path / "never")})
    await worker.wait_noted("began 1")
    worker.signal(signal.SIGTERM)

    assert await worker.ended() == 0
    assert worker.noted() == ["began 1", "left"]


async def test_the_server_can_ask_it_to_go(url: str, client: Client, workers: Workers) -> None:
    worker = await workers.start(url, WORKER_ID="ts-1")
    async with httpx2.AsyncClient(**http_options(url), timeout=WAIT_S) as http:
        answer = await http.post("/api/v2/workers/ts-1/drain")
    assert answer.status_code == 200
    assert await worker.ended() == 0
    assert worker.noted() == ["left"]


async def test_a_worker_without_a_server_leaves_at_once(workers: Workers) -> None:
    worker = await workers.start(f"http://127.0.0.1:{free_port()}", connected=False)
    await wait_until(lambda: "no connection" in worker.log.read_text(), WAIT_S)
    worker.signal(signal.SIGTERM)

    assert await worker.ended() == 0
    assert worker.noted() == ["left"]


async def test_a_worker_whose_name_is_taken_stops(url: str, workers: Workers) -> None:
    older = await workers.start(url, WORKER_ID="twin")
    newer = await workers.start(url, WORKER_ID="twin")

    assert await older.ended() == 1
    assert "another worker has connected as 'twin'" in older.log.read_text()
    assert newer.popen.poll() is None


async def test_a_lost_attempt_is_dropped_and_still_keeps_its_slot(
    line: Line, client: Client, workers: Workers, tmp_path: Path
) -> None:
    worker = await workers.start(line.url, SLOTS=1)
    task = await client.submit("until", {"file": str(tmp_path / "go")})
    await worker.wait_noted("began 1")
    line.cut()
    await worker.wait_connected(times=2)
    await first(client, task, "task.reclaimed")
    (tmp_path / "go").touch()

    ended = await client.wait(task.id, timeout_ms=int(WAIT_S * 1000))
    assert (ended.result, ended.attempt) == ("done", 2)
    assert worker.noted() == ["began 1", "ended 1", "began 2", "ended 2"]
    assert "what came of it is dropped" in worker.log.read_text()


async def test_it_comes_back_to_a_server_that_was_killed(workers: Workers, tmp_path: Path) -> None:
    with serving(tmp_path, ONWARD_LEASE_MS=1_000) as server:
        async with Client(server.url) as client:
            worker = await workers.start(server.url)
            task = await client.submit("wait", {})
            await worker.wait_noted("began 1")
            server.kill()
            await worker.wait_noted("LostTask")
            with serving(tmp_path, port=server.port, ONWARD_LEASE_MS=1_000):
                assert (await over(client, "echo", {"n": 3})).result["payload"] == {"n": 3}
                await worker.wait_noted("began 2")
                await client.cancel(task.id)
                await worker.wait_noted("Canceled")
                assert worker.stop() == 0


@pytest.mark.contract("S1-8")
async def test_an_effect_happens_once_over_attempts(
    url: str, client: Client, workers: Workers
) -> None:
    worker = await workers.start(url)

    assert (await over(client, "pay")).result == {"at": "1970-01-01T00:00:00.000Z"}
    assert worker.noted() == ["charged"]
    assert (await over(client, "pay", {"fail": True})).attempt == 2
    assert worker.noted() == ["charged"] * 3


@pytest.mark.contract("S1-8")
async def test_an_effect_that_died_half_way_is_for_a_person(
    url: str, client: Client, workers: Workers
) -> None:
    doomed = await workers.start(url)
    task = await client.submit("pay", {"stuck": True}, backoff_ms=[1])
    assert await doomed.ended() == -signal.SIGKILL
    other = await workers.start(url)

    ended = await client.wait(task.id, timeout_ms=int(WAIT_S * 1000))
    assert ended.error["kind"] == "EffectUnknown"
    assert other.noted() == []


@pytest.mark.contract("S1-8")
async def test_a_lost_answer_does_not_free_an_effect_that_an_earlier_attempt_began(
    url: str, line: Line, client: Client, workers: Workers
) -> None:
    doomed = await workers.start(url)
    task = await client.submit("pay", {"stuck": True}, backoff_ms=[1], max_retries=5)
    assert await doomed.ended() == -signal.SIGKILL
    line.passing, line.swallow_answers = 1, 1  # its socket, then its request to begin
    other = await workers.start(line.url)

    ended = await client.wait(task.id, timeout_ms=int(WAIT_S * 1000))
    assert ended.error["kind"] == "EffectUnknown"
    assert other.noted() == []
    assert line.swallow_answers == 0


@pytest.mark.contract("S1-8")
async def test_an_effect_interrupted_by_a_cancel_is_for_a_person(
    url: str, client: Client, workers: Workers
) -> None:
    worker = await workers.start(url)
    task = await client.submit("pay-interrupted", {})
    await worker.wait_noted("charged")
    await client.cancel(task.id)
    assert (await client.wait(task.id, timeout_ms=int(WAIT_S * 1000))).state == "canceled"

    await client.retry(task.id)
    ended = await client.wait(task.id, timeout_ms=int(WAIT_S * 1000))
    assert ended.error["kind"] == "EffectUnknown"
    assert worker.noted() == ["charged"]


@pytest.mark.contract("S1-8")
async def test_an_effect_that_could_not_begin_is_begun_by_the_next_attempt(
    line: Line, client: Client, workers: Workers
) -> None:
    worker = await workers.start(line.url)
    line.swallow_answers = 1  # the next connection's: the one that notes the beginning

    task = await over(client, "pay")
    assert (task.state, task.attempt) == ("succeeded", 2)
    assert worker.noted() == ["charged"]


@pytest.mark.contract("S1-8")
async def test_an_effect_that_ended_while_the_server_was_away_is_noted(
    workers: Workers, tmp_path: Path
) -> None:
    with serving(tmp_path) as server:
        worker = await workers.start(server.url)
        async with Client(server.url) as client:
            await client.submit("pay-late", {"file": str(tmp_path / "go")})
        await worker.wait_noted("charged")
        server.kill()
        (tmp_path / "go").touch()
        with serving(tmp_path, port=server.port):
            await worker.wait_noted("noted 42")


# What a server would not do.


class Strange:
    """Speaks to one worker at a time, a frame after the other."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[ServerConnection] = asyncio.Queue()
        self.registration: Any = None
        self.url = ""

    async def take(self, connection: ServerConnection) -> None:
        await self.connections.put(connection)
        await connection.wait_closed()

    async def registered(self) -> ServerConnection:
        connection = await self.connection()
        await say(connection, type="registered", workerId="w")
        return connection

    async def connection(self) -> ServerConnection:
        async with asyncio.timeout(WAIT_S):
            connection = await self.connections.get()
            self.registration = json.loads(await connection.recv())
        return connection


async def say(connection: ServerConnection, **frame: Any) -> None:
    await connection.send(json.dumps(frame))


async def heard(connection: ServerConnection) -> Any:
    async with asyncio.timeout(WAIT_S):
        return json.loads(await connection.recv())


@asynccontextmanager
async def strange_server() -> AsyncIterator[Strange]:
    strange = Strange()
    async with serve(strange.take, "127.0.0.1", 0) as server:
        strange.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield strange


async def test_frames_that_make_no_sense_are_passed_over(workers: Workers) -> None:
    async with strange_server() as strange:
        await workers.start(strange.url, connected=False)
        connection = await strange.registered()
        for nonsense in ("", "{", "null", "7", "{}", '{"type": 3}', '{"type": "task"}', b"\xff"):
            await connection.send(nonsense)
        await say(connection, type="tomorrow")
        await say(connection, type="cancel", taskId="unknown")
        await say(connection, type="task", taskId="a", service="nobody", fence=1)
        await say(connection, type="task", taskId="b", service="echo", fence=2, traceparent="00-x")
        await say(connection, type="ping")

        answers = [await heard(connection) for _ in range(3)]
        by_task = {frame.get("taskId"): frame for frame in answers}
        assert by_task["a"]["errorType"] == "UnknownService"
        assert by_task["a"]["retryable"] is True
        assert by_task["b"]["result"] == {
            "payload": None,
            "key": "b",
            "taskId": "b",
            "traceparent": "00-x",
        }
        assert by_task[None] == {"type": "pong"}


async def test_only_the_newest_attempt_of_a_task_is_answered(
    workers: Workers, tmp_path: Path
) -> None:
    async with strange_server() as strange:
        worker = await workers.start(strange.url, connected=False)
        connection = await strange.registered()
        task = {"type": "task", "taskId": "t", "service": "until"}
        go = {"file": str(tmp_path / "go")}
        for attempt in (1, 2):
            await say(connection, **task, payload=go, attempt=attempt, fence=attempt)
            await worker.wait_noted(f"began {attempt}")
        (tmp_path / "go").touch()

        answer = await heard(connection)
        assert (answer["fence"], answer["result"]) == (2, "done")
        await say(connection, type="ping")
        assert await heard(connection) == {"type": "pong"}


async def test_only_what_was_said_of_a_service_is_declared(workers: Workers) -> None:
    async with strange_server() as strange:
        await workers.start(strange.url, connected=False, SLOTS=3)
        await strange.connection()

    said = strange.registration
    assert (said["type"], said["group"], said["concurrency"]) == ("register", "default", 3)
    assert {"echo", "pay"} < set(said["services"])
    assert [declared["name"] for declared in said["declare"]] == ["echo"]


async def test_a_registration_that_no_server_would_take_ends_it(url: str, workers: Workers) -> None:
    worker = await workers.start(url, connected=False, SLOTS=1200)
    assert await worker.ended() == 1
    assert "concurrency: expected a whole number <= 1000" in worker.log.read_text()


async def test_a_registration_that_is_refused_is_tried_again(workers: Workers) -> None:
    async with strange_server() as strange:
        worker = await workers.start(strange.url, connected=False)
        await say(await strange.connection(), type="error", message="not today")
        await strange.registered()
        await worker.wait_connected()
        assert "not today" in worker.log.read_text()
