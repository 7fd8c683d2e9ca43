"""`onward demo`: everything there afterwards, and nothing left behind; real processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.cli.demo.scenario import SESSIONS
from onward.cli.demo.shop import TYPES
from tests.e2e.shell import ONWARD, run
from tests.processes import HTTP, Process, Server, free_port, serving
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PATIENCE_S = 90
UNDOING = ("demo-release", "demo-refund")


def items(url: str, path: str, **query: Any) -> list[dict[str, Any]]:
    answer = HTTP.get(f"{url}/api/v2/{path}", params=query, timeout=30)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def demo_workers(url: str) -> set[str]:
    return {each["id"] for each in items(url, "workers") if each["id"].startswith("demo-")}


def demo_schedules(url: str) -> set[str]:
    return {each["name"] for each in items(url, "schedules")}


@contextmanager
def playing(url: str, folder: Path, *more: str) -> Iterator[Process]:
    """A demo that goes on, from when its workers are there and its acts have begun."""
    log = folder / "demo.log"
    before = demo_workers(url)
    demo = Process(*ONWARD, "demo", "--server", url, *more, env={"PYTHONUNBUFFERED": "1"}, log=log)
    try:
        poll_until(
            lambda: len(demo_workers(url) - before) == 3 and len(demo_schedules(url)) == 3,
            PATIENCE_S,
        )
        poll_until(lambda: items(url, "tasks", type="demo-thumbnail"), PATIENCE_S)
        yield demo
    finally:
        demo.kill()


def interrupt(demo: Process) -> int:
    demo.signal(signal.SIGINT)
    return demo.popen.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("demo"), up=True) as server:
        yield server


def test_every_kind_of_thing_is_there_afterwards(server: Server, tmp_path: Path) -> None:
    url = server.url

    def there() -> bool:
        kinds = {group["kind"] for group in items(url, "dead-letters")}
        return (
            kinds >= {"AddressUnknown", "CardDeclined", "RuntimeError"}
            and bool(items(url, "approvals", status="open"))
            and bool(items(url, "runs", flow="demo-order", state="succeeded"))
            and {type for type in UNDOING if items(url, "tasks", type=type)} == set(UNDOING)
            and bool(items(url, "tasks", q="the shop window", state="succeeded"))  # by a schedule
            and bool(items(url, "tasks", queue="group:demo-shop", state="succeeded"))  # a chat
            and all(items(url, f"sessions/{each}/notifications") for each in SESSIONS)
        )

    with playing(url, tmp_path) as demo:
        poll_until(there, PATIENCE_S)
        assert interrupt(demo) == 0
    flows = {flow["name"]: flow["version"] for flow in items(url, "flows")}
    assert flows == {"demo-order": 1, "demo-poster": 1}
    assert _nothing_goes_on(url)


def _nothing_goes_on(url: str) -> bool:
    """Neither workers nor schedules; and nothing waits for anything but a person."""
    for state in ("queued", "scheduled", "running"):
        for type in TYPES:
            assert items(url, "tasks", type=type, state=state) == [], (type, state)
    waiting = items(url, "tasks", state="waiting")
    assert {task["phase"] for task in waiting} <= {"waiting_approval"}
    return not demo_workers(url) and not demo_schedules(url)


def test_ctrl_c_leaves_no_worker_and_no_schedule_behind(server: Server, tmp_path: Path) -> None:
    with playing(server.url, tmp_path) as demo:
        assert interrupt(demo) == 0
        assert demo_workers(server.url) == set()
        assert demo_schedules(server.url) == set()
    log = (tmp_path / "demo.log").read_text()
    assert f"{server.url}/ui" in log
    assert "3 schedules" in log


def test_a_demo_that_was_killed_is_cleared_up_by_the_next(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with playing(server.url, tmp_path) as demo:
            demo.kill()
        assert len(demo_schedules(server.url)) == 3
        done = run("demo", "--for", "100ms", cwd=tmp_path, ONWARD_URL=server.url)
        assert done.returncode == 0, done.stderr
        assert demo_schedules(server.url) == set()


def test_the_demo_goes_on_when_its_server_was_killed(tmp_path: Path) -> None:
    first = Server(tmp_path).wait_ready()
    try:
        with playing(first.url, tmp_path) as demo:
            first.kill()
            second = Server(tmp_path, port=first.port)
            try:
                second.wait_ready()
                before = len(items(second.url, "tasks", limit=1000))
                poll_until(lambda: len(items(second.url, "tasks", limit=1000)) > before, PATIENCE_S)
                assert interrupt(demo) == 0
                assert demo_schedules(second.url) == set()
            finally:
                second.kill()
    finally:
        first.kill()


def test_where_no_server_answers_it_starts_its_own(tmp_path: Path) -> None:
    port = free_port()
    done = run(
        *("demo", "--for", "1s", "--json", "--port", str(port)), cwd=tmp_path, TMPDIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout)["own_server"] is True
    assert _silent(port)
    assert list(tmp_path.iterdir()) == []  # neither a ledger here nor one in the temporary folder


def _silent(port: int) -> bool:
    try:
        HTTP.get(f"http://127.0.0.1:{port}/health", timeout=5)
    except httpx2.TransportError:
        return True
    return False


def test_a_server_that_was_named_and_is_not_there_is_not_replaced(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for named in (("--server", url), ()):
        done = run("demo", *named, cwd=tmp_path, ONWARD_URL=url)
        assert done.returncode == 5
        assert f"no server answers at {url}" in done.stderr
        assert "onward up" in done.stderr


def test_a_url_that_is_none_is_told(tmp_path: Path) -> None:
    done = run("demo", cwd=tmp_path, ONWARD_URL="ftp://nowhere")
    assert done.returncode == 2
    assert "'ftp://nowhere' is not the URL of a server" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_excludes_each_other_is_refused(tmp_path: Path) -> None:
    done = run("demo", "--port", "1", "--server", "http://127.0.0.1:2", cwd=tmp_path)
    assert done.returncode == 2
    assert "exclude each other" in done.stderr
