"""The command line, as a person or a script meets it: real processes, real exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from onward.ledgers import open_backend
from tests.e2e.shell import ONWARD, Shell, environment, run
from tests.processes import HTTP, free_port, serving
from tests.support import poll_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAP = """
import time
from pathlib import Path
from onward import Worker

worker = Worker()

@worker.service
def nap(until: str) -> str:
    Path(f"{until}.begun").touch()
    while not Path(until).exists():
        time.sleep(0.01)
    return "rested"
"""


@contextmanager
def process(
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str] = MappingProxyType({}),
    stderr: int = subprocess.STDOUT,
) -> Iterator[subprocess.Popen[str]]:
    """A process of ours; it alone is ended when the test is over."""
    started = subprocess.Popen(
        [*ONWARD, *arguments],
        cwd=cwd,
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=1) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        return False


class Machine(Shell):
    """A directory with a server in it."""

    def __init__(self, url: str, place: Path, server: subprocess.Popen[str]) -> None:
        super().__init__(url, place)
        self.server = server


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    place = tmp_path_factory.mktemp("machine")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with process("up", "--port", str(port), cwd=place) as server:
        poll_until(lambda: answers(url) or server.poll() is not None)
        assert server.poll() is None
        yield Machine(url, place, server)
        server.send_signal(signal.SIGTERM)
        said, _ = server.communicate(timeout=60)
        assert server.returncode == 0, said


@pytest.mark.contract("N-1")
def test_up_answers_the_first_submission(machine: Machine) -> None:
    done = machine.run("submit", "echo", '{"hello": "world"}', "--wait")

    assert done.returncode == 0
    assert json.loads(done.stdout) == {"hello": "world"}
    assert "succeeded" in done.stderr


@pytest.mark.contract("N-1", "R-3")
def test_up_answers_the_first_curl(machine: Machine) -> None:
    request = urllib.request.Request(  # noqa: S310
        f"{machine.url}/api/openai",
        data=b'{"data": {"hello": "world"}}',
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        assert json.load(answer)["result"] == {"hello": "world"}


@pytest.mark.contract("N-1")
def test_up_says_where_it_is_and_what_to_try(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with process("up", "--port", str(port), "--ledger", "sqlite:///x.db", cwd=tmp_path) as server:
        poll_until(lambda: answers(url))
        server.send_signal(signal.SIGINT)
        said, _ = server.communicate(timeout=60)

    assert f"{url}/ui" in said
    assert "sqlite:///x.db" in said
    assert "onward submit" in said
    assert f"curl -s {url}/api/openai" in said
    assert (tmp_path / "x.db").exists()


@pytest.mark.contract("N-1")
def test_a_payload_comes_from_a_file_or_from_stdin(machine: Machine) -> None:
    (machine.place / "payload.json").write_text("[1, 2]")

    assert machine.json("submit", "echo", "@payload.json", "--wait")["result"] == [1, 2]
    done = machine.run("submit", "echo", "-", "--wait", input='"piped"')
    assert json.loads(done.stdout) == "piped"


@pytest.mark.contract("N-1")
def test_a_task_can_be_looked_at_in_every_way(machine: Machine) -> None:
    id = machine.json("submit", "nobody.serves.this", '{"n": 1}', "--queue", "q")["id"]

    assert machine.json("task", "get", id)["payload"] == {"n": 1}
    assert id in [task["id"] for task in machine.json("task", "list", "--queue", "q")["items"]]
    assert machine.json("task", "events", id)["items"][0]["type"] == "task.created"
    assert machine.json("task", "explain", id)["reason"]
    for command in ("get", "events", "explain"):
        done = machine.run("task", command, id)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
    assert id in machine.run("task", "list", "--type", "nobody.serves.this").stdout


@pytest.mark.contract("N-1", "R-7")
def test_exit_codes_say_how_it_went(machine: Machine) -> None:
    bare = machine.run("submit", "later", "--idempotency-key", "once")
    id = bare.stdout.strip()

    assert bare.returncode == 0
    assert machine.run("task", "watch", id, "--timeout", "100ms").returncode == 124
    assert machine.run("submit", "later", "1", "--idempotency-key", "once").returncode == 4
    assert machine.run("task", "cancel", id).returncode == 0
    assert machine.run("task", "cancel", id).returncode == 4
    assert machine.run("task", "watch", id).returncode == 1
    assert machine.run("task", "retry", id).returncode == 0
    assert machine.run("task", "get", "nothing").returncode == 3
    assert machine.run("submit", "later", "{not json").returncode == 2
    assert machine.run("submit", "later", "--delay", "soon").returncode == 2
    assert machine.run("submit", "countdown", '{"seconds": "x"}').returncode == 2
    assert machine.run("task", "get", id, "--server", "http://127.0.0.1:9").returncode == 5


@pytest.mark.contract("N-1", "N-11")
def test_workers_services_and_sessions_are_listed_and_changed(machine: Machine) -> None:
    (worker,) = [each["id"] for each in machine.json("workers", "list")["items"]]
    assert worker in machine.run("workers", "list").stdout
    assert machine.json("workers", "drain", worker)["draining"] is True
    assert machine.run("workers", "undrain", worker).stdout == f"{worker}  ready\n"
    unknown = machine.run("workers", "drain", "nothing")
    assert (unknown.returncode, "→ onward workers list" in unknown.stderr) == (3, True)

    schema = {"make": {"type": "object", "required": ["n"]}}
    declared = {"name": "report", "task_types": ["make"], "schema": schema}
    (machine.place / "report.json").write_text(json.dumps(declared))
    assert machine.run("service", "declare", "report.json").stdout == "report  make\n"
    assert machine.json("service", "show", "report")["schema"] == schema
    refused = machine.run("submit", "make", "{}")
    assert (refused.returncode, "→ onward service show report" in refused.stderr) == (2, True)
    id = machine.run("submit", "make", '{"n": 1}', "--session", "ada").stdout.strip()
    assert machine.run("service", "delete", "report").stdout == "report is deleted\n"
    assert "report" not in machine.run("service", "list").stdout

    assert [each["id"] for each in machine.json("session", "list")["items"]] == ["ada"]
    assert "1 queued" in machine.run("session", "show", "ada").stdout
    assert id in machine.run("session", "tasks", "ada").stdout
    assert "no notifications" in machine.run("session", "notifications", "ada").stderr
    asks = machine.run("submit", "make", "--session", "ada", "--approval").stdout.strip()
    unread = ("session", "notifications", "ada", "--unread")
    (told,) = poll_until(lambda: machine.json(*unread)["items"])
    assert (told["task_id"], told["delivered_by"]) == (asks, None)
    assert told["message"] in machine.run("session", "notifications", "ada").stdout


@pytest.mark.contract("N-1")
def test_an_error_is_what_why_and_the_next_command(machine: Machine) -> None:
    for done in (
        machine.run("task", "get", "nothing"),
        machine.run("submit", "later", "{not json"),
        machine.run("task", "get", "x", "--server", "http://127.0.0.1:9"),
    ):
        what, why, then = done.stderr.splitlines()
        assert what.startswith("✗ ")
        assert why.strip()
        assert then.startswith("  → ")
        assert done.stdout == ""


def test_what_a_task_says_cannot_steer_the_terminal(machine: Machine) -> None:
    done = machine.run("submit", "later\x1b]0;owned\x07[red]", "--json")
    id = json.loads(done.stdout)["id"] if done.returncode == 0 else ""
    for command in ("get", "explain"):
        assert "\x1b]0" not in machine.run("task", command, id).stdout


@pytest.mark.contract("N-1")
def test_waiting_on_a_terminal_shows_progress(machine: Machine) -> None:
    said = on_a_terminal(machine, "submit", "countdown", '{"seconds": 1}', "--wait")

    assert "countdown" in said
    assert "s to go" in said
    assert "succeeded in" in said


def on_a_terminal(machine: Machine, *arguments: str) -> str:
    master, slave = pty.openpty()
    env = environment(ONWARD_URL=machine.url, TERM="xterm-256color", COLUMNS="100")
    started = subprocess.Popen(
        [*ONWARD, *arguments], stdin=slave, stdout=slave, stderr=slave, env=env, cwd=machine.place
    )
    os.close(slave)
    said = b""
    try:
        while data := os.read(master, 65536):
            said += data
    except OSError:  # Linux: the other end is closed
        pass
    os.close(master)
    assert started.wait(60) == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode())


@pytest.mark.contract("N-1", "N-7")
def test_a_worker_runs_from_its_file_and_drains_on_sigterm(machine: Machine) -> None:
    (machine.place / "jobs.py").write_text(NAP)
    with process(
        "worker", "jobs:worker", cwd=machine.place, env={"ONWARD_URL": machine.url}
    ) as worker:
        id = machine.json("submit", "nap", '{"until": "dawn"}')["id"]
        poll_until(lambda: (machine.place / "dawn.begun").exists())
        worker.send_signal(signal.SIGTERM)
        (machine.place / "dawn").touch()
        said, _ = worker.communicate(timeout=60)

        assert worker.returncode == 0, said
        assert machine.json("task", "get", id)["result"] == "rested"


def test_cancel_says_that_the_worker_was_asked_to_stop(machine: Machine) -> None:
    id = machine.json("submit", "countdown", '{"seconds": 60}')["id"]
    poll_until(lambda: machine.json("task", "get", id)["state"] == "running")
    done = machine.run("task", "cancel", id)
    assert (done.returncode, done.stdout) == (0, f"– canceling  {id}\n")
    assert done.stderr == f"its worker was asked to stop: onward task watch {id}\n"


@pytest.mark.contract("N-7")
def test_a_second_signal_ends_a_worker_at_once(machine: Machine) -> None:
    (machine.place / "stuck.py").write_text(
        "import time\n"
        "from onward import Worker\n"
        "worker = Worker(id='stuck')\n"
        "@worker.service\n"
        "def hang() -> None:\n"
        "    time.sleep(60)\n"
    )
    with process(
        "worker", "stuck.py:worker", cwd=machine.place, env={"ONWARD_URL": machine.url}
    ) as worker:
        id = machine.json("submit", "hang", "--max-retries", "0")["id"]
        poll_until(lambda: machine.json("task", "get", id)["state"] == "running")
        worker.send_signal(signal.SIGTERM)
        said = worker.stdout
        assert said is not None
        poll_until(lambda: "a second signal ends it at once" in said.readline())
        worker.send_signal(signal.SIGTERM)

        assert worker.wait(60) == 128 + signal.SIGTERM
    machine.run("task", "cancel", id)


@pytest.mark.contract("N-3", "N-7")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_waiting_callers_and_workers_outlive_a_server(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "jobs.py").write_text(NAP)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    env = {"ONWARD_URL": url, "ONWARD_LEASE_MS": "1000", "ONWARD_DRAIN_MS": "300"}
    serve = ("serve", "--port", str(port))
    submit = ("submit", "nap", '{"until": "dawn"}', "--wait")
    with ExitStack() as stack:
        stack.enter_context(process("worker", "jobs:worker", cwd=tmp_path, env=env))
        server = stack.enter_context(process(*serve, cwd=tmp_path, env=env))
        poll_until(lambda: answers(url))
        waiting = stack.enter_context(
            process(*submit, cwd=tmp_path, stderr=subprocess.DEVNULL, env=env)
        )
        poll_until(lambda: (tmp_path / "dawn.begun").exists())
        path = f"{url}/api/v2/tasks?wait_ms=60000"
        patient = stack.enter_context(ThreadPoolExecutor()).submit(
            HTTP.post, path, json={"type": "nobody"}, timeout=60
        )
        poll_until(lambda: HTTP.get(f"{url}/api/v2/tasks?type=nobody").json()["items"])
        server.send_signal(how)
        server.wait()
        if how is signal.SIGTERM:
            answer = patient.result()
            assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        else:
            assert patient.exception() is not None
        stack.enter_context(process(*serve, cwd=tmp_path, env=env))
        (tmp_path / "dawn").touch()
        said, _ = waiting.communicate(timeout=30)

    assert (waiting.returncode, json.loads(said)) == (0, "rested")


def test_who_stops_waiting_is_told_that_the_task_goes_on(machine: Machine) -> None:
    with process(
        "submit",
        "later",
        "--queue",
        "ctrl-c",
        "--wait",
        cwd=machine.place,
        env={"ONWARD_URL": machine.url},
    ) as waiting:
        (task,) = poll_until(lambda: machine.json("task", "list", "--queue", "ctrl-c")["items"])
        time.sleep(0.3)  # until it waits: nothing outside shows that
        waiting.send_signal(signal.SIGINT)
        said, _ = waiting.communicate(timeout=60)

    assert waiting.returncode == 130
    assert f"the task goes on; onward task watch {task['id']}" in said


@pytest.mark.contract("N-1", "N-7")
def test_the_example_worker_does_what_it_says(machine: Machine) -> None:
    example = str(ROOT / "examples" / "hello_worker.py")
    with process("worker", example, cwd=machine.place, env={"ONWARD_URL": machine.url}):
        greeting = machine.json("submit", "greet", '{"name": "Ada"}', "--wait")
        sum_ = machine.json("submit", "add", '{"numbers": [1, 2.5]}', "--wait")

    assert (greeting["result"], sum_["result"]) == ("hello Ada", 3.5)


def test_a_worker_that_is_not_there_is_said_in_three_lines(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    for where in ("no.such.module:worker", "empty:worker", "empty.py:x", "nothing.py:worker"):
        done = run("worker", where, cwd=tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 3), done.stderr


@pytest.mark.contract("R-9", "N-1")
@pytest.mark.parametrize(
    ("env", "arguments", "name"),
    [
        ({"ONWARD_PORT": "many"}, (), "ONWARD_PORT"),
        ({"TASK_TIMEOUT_MS": "-1"}, (), "TASK_TIMEOUT_MS"),
        ({"VISIBILITY_TIMEOUT_S": "inf"}, (), "VISIBILITY_TIMEOUT_S"),
        ({"REDIS_URL": "nowhere"}, (), "✗ REDIS_URL cannot be read"),
        ({"ONWARD_RETRY_SCHEDULES": '{"protocol": []}'}, (), "ONWARD_RETRY_SCHEDULES"),
        ({"ONWARD_RETRY_SCHEDULES": '{"GatewayBusy": [1]}'}, (), "'GatewayBusy' has no schedule"),
        ({}, ("--port", "99999"), "--port"),
    ],
)
def test_a_setting_that_cannot_be_read_stops_the_start_and_is_named(
    tmp_path: Path, env: dict[str, str], arguments: tuple[str, ...], name: str
) -> None:
    done = run("serve", *arguments, cwd=tmp_path, **env)

    assert done.returncode == 2
    assert name in done.stderr


def test_a_misspelt_setting_is_named_at_the_start_with_the_one_that_was_meant(
    tmp_path: Path,
) -> None:
    misspelt = {"ONWARD_LEASEMS": "secret", "ONWARD_QUUX": "1", "ONWARD_BY": "ada"}
    with serving(tmp_path, **misspelt) as server:
        log = server.log.read_text()
    warned = [line for line in log.splitlines() if "no such setting" in line]
    assert len(warned) == 2, log
    assert "ONWARD_LEASEMS" in warned[0]
    assert "did you mean ONWARD_LEASE_MS?" in warned[0]
    assert "ONWARD_QUUX" in warned[1]
    assert "did you mean" not in warned[1]
    assert "secret" not in log


def test_a_payload_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.bin").write_bytes(b"\xff\xfe")
    done = run("submit", "echo", "@bad.bin", cwd=tmp_path)

    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "UTF-8" in done.stderr


@pytest.mark.contract("N-1")
def test_a_port_or_ledger_that_is_taken_is_refused(machine: Machine, tmp_path: Path) -> None:
    port = machine.url.rpartition(":")[2]
    taken = run("serve", "--port", port, cwd=tmp_path)
    locked = run("serve", "--port", str(free_port()), cwd=machine.place)

    assert (taken.returncode, locked.returncode) == (4, 4)
    assert "already listens there" in taken.stderr
    assert f"process {machine.server.pid}" in locked.stderr


@pytest.mark.contract("N-1")
def test_doctor_finds_the_server_and_who_has_the_ledger(machine: Machine) -> None:
    found = {finding["about"]: finding for finding in machine.json("doctor")}

    assert {finding["mark"] for finding in found.values()} == {"✓"}
    assert f"process {machine.server.pid}" in found["ledger"]["found"]
    assert "served by Onward" in found["server"]["found"]
    assert "clock" in found
    assert machine.run("doctor").returncode == 0


@pytest.mark.contract("N-1")
def test_doctor_says_what_must_be_mended(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("this is no database, however long it may be" * 40)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        done = run("doctor", "--ledger", "sqlite:///note.txt", cwd=tmp_path, ONWARD_PORT=port)

    assert done.returncode == 1
    assert "not a database" in done.stdout
    assert f"port {port} is taken" in done.stdout
    absent = f"http://127.0.0.1:{free_port()}"
    done = run("doctor", "--server", absent, cwd=tmp_path)
    assert (done.returncode, f"no server answers at {absent}" in done.stdout) == (1, True)


@pytest.mark.contract("N-1")
def test_doctor_finds_a_damaged_or_open_ledger(tmp_path: Path) -> None:
    async def make() -> None:
        await open_backend(f"sqlite:///{tmp_path}/x.db").close()

    def findings() -> dict[str, dict[str, str]]:
        port = str(free_port())
        done = run("doctor", "--ledger", "sqlite:///x.db", "--json", cwd=tmp_path, ONWARD_PORT=port)
        return {finding["about"]: finding for finding in json.loads(done.stdout)}

    asyncio.run(make())
    found = findings()
    assert found["integrity"]["mark"] == "✓"
    assert "mode" not in found
    path = tmp_path / "x.db"
    path.chmod(0o644)
    raw = bytearray(path.read_bytes())
    raw[5 * 4096 : 20 * 4096] = b"\xa5" * (15 * 4096)
    path.write_bytes(raw)
    found = findings()
    assert (found["mode"]["mark"], found["integrity"]["mark"]) == ("!", "✗")
    assert "restore a backup" in found["integrity"]["todo"]
