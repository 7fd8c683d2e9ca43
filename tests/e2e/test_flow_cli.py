"""Flows from a shell: written, published, run, watched, mended; real processes, real exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.shell import ONWARD, Shell
from tests.processes import HTTP, Process, free_port, serving
from tests.support import poll_until

pytestmark = pytest.mark.slow

ECHO = {"kind": "local", "service": "echo", "prep": {"input_key": "$params.text"}}
REVIEW: dict[str, Any] = {
    "name": "review",
    "start": "draft",
    "nodes": {
        "draft": {**ECHO, "post": {"output_key": "draft"}},
        "route": {
            "kind": "choice",
            "choice_cases": [{"action": "ask", "expr": {"eq": ["$params.ask", True]}}],
            "default_action": "go",
        },
        "sign": {"kind": "approval", "params": {"reason": "may it?"}},
        "paid": {"kind": "wait_event", "params": {"signal_key": "$shared.payment"}},
        "send": {**ECHO, "prep": {"input_key": "draft"}, "post": {"output_key": "sent"}},
    },
    "edges": [
        {"from": "draft", "to": "route"},
        {"from": "route", "action": "ask", "to": "sign"},
        {"from": "route", "action": "go", "to": "send"},
        {"from": "sign", "action": "approved", "to": "paid"},
        {"from": "paid", "to": "send"},
    ],
}
BUILT = """
from onward.flow.builder import Flow, params
flow = Flow("built")
flow.local("echo", "echo", input=params.text, output="said") >> flow.timer("nap", 10)
broken = Flow("broken")
broken.timer("nap", "soon")
"""


class FlowShell(Shell):
    def begin(self, **params: Any) -> str:
        done = self.run("flow", "run", "review", "--params", json.dumps({"text": "hi", **params}))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def at(self, run: str, node: str) -> bool:
        found = self.read(f"runs/{run}")
        return (found["current_node"], found["state"]) == (node, "waiting")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowShell]:
    place = tmp_path_factory.mktemp("flows")
    with serving(place, up=True) as server:
        shell = FlowShell(server.url, place)
        shell.write("review.json", REVIEW)
        shell.write("flows.py", BUILT)
        assert shell.run("flow", "apply", "review.json").returncode == 0
        yield shell


@pytest.fixture
def alone(tmp_path: Path) -> FlowShell:
    """A shell where no server is."""
    return FlowShell(f"http://127.0.0.1:{free_port()}", tmp_path)


@pytest.mark.contract("S4-6", "N-1")
def test_a_definition_is_validated_without_a_server(alone: FlowShell) -> None:
    alone.write("review.json", REVIEW)
    alone.write("flows.py", BUILT)
    good = alone.run("flow", "validate", "review.json")
    assert (good.returncode, good.stdout) == (0, "✓ review.json: 5 nodes, 5 edges\n")
    assert alone.run("flow", "validate", "-", input=json.dumps(REVIEW)).returncode == 0
    assert alone.run("flow", "validate", "flows.py:flow").returncode == 0
    assert alone.run("flow", "validate", "flows:flow").returncode == 0
    drawn = alone.run("flow", "graph", "review.json")
    assert (drawn.returncode, "├─ ask ─ " in drawn.stdout) == (0, True)

    bad = {**REVIEW, "start": "darft", "edges": [{"from": "draft", "to": "nowhere"}]}
    alone.write("bad.json", bad)
    done = alone.run("flow", "validate", "bad.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("✗ bad.json: 2 faults\n")
    assert re.search(
        r"bad\.json:3:3 +start names no node: 'darft'; did you mean 'draft'", done.stderr
    )
    assert "edges[0].to names no node: 'nowhere'" in done.stderr
    told = alone.json("flow", "validate", "bad.json", code=1)
    assert (told["valid"], [fault["field"] for fault in told["faults"]]) == (
        False,
        ["edges[0].to", "start"],
    )
    doubtful = {**REVIEW, "nodes": {**REVIEW["nodes"], "lost": ECHO}}
    warned = alone.run("flow", "validate", alone.write("doubt.json", doubtful))
    assert (warned.returncode, "node lost" in warned.stderr) == (0, True)


@pytest.mark.contract("S4-6", "N-1")
@pytest.mark.parametrize(
    ("mistake", "place"),
    [
        ("flow.timer('nap', 10\n", "flows.py:7: '(' was never closed"),
        ("flow.timer('rest', 10, unit='s')\n", "flows.py:7: TypeError: timer() takes no 'unit'"),
        ("fow.timer('rest', 10)\n", "flows.py:7: NameError: name 'fow' is not defined"),
        ("import helping\n", "flows.py:7: ModuleNotFoundError: No module named 'helping'"),
        ("import helper\n", "helper.py:2: ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.parametrize("source", ["flows.py:flow", "flows:flow"])
def test_a_mistake_in_a_python_file_is_named_with_its_line(
    alone: FlowShell, source: str, mistake: str, place: str
) -> None:
    alone.write("flows.py", f"{BUILT.strip()}\n\n{mistake}")
    alone.write("helper.py", "\nhalf = 1 / 0\n")
    done = alone.run("flow", "validate", source)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False)
    assert done.stderr.startswith(f"✗ {source.removesuffix(':flow')} cannot be loaded\n")
    assert place in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("flow", "validate", "nothing.json"), 2, "there is no such file"),
        (("flow", "validate", "flows.py:nothing"), 2, "'nothing' is missing there"),
        (("flow", "validate", "flows.py:params"), 2, "'params' is a Ref there"),
        (("flow", "validate", "flows.py:broken"), 1, "params.delay_ms"),
        (("flow", "apply", "flows.py:broken"), 1, "params.delay_ms"),
        (("flow", "apply", "-"), 1, "Expecting value"),
        (("flow", "show", "nothing"), 3, "no flow 'nothing'"),
        (("flow", "graph", "nothing"), 3, "onward flow list"),
        (("flow", "run", "nothing"), 3, "no flow 'nothing'"),
        (("flow", "run", "review", "--params", "[1]"), 2, "--params must be a JSON object"),
        (("flow", "run", "review", "--params", "{"), 2, "not JSON"),
        (("flow", "run", "review", "-p", "text"), 2, "there is no ="),
        (("flow", "run", "review", "-p", "items=[1,2"), 2, "--param items is not JSON"),
        (("flow", "run", "review", "-p", "items={a: 1}"), 2, "--param items is not JSON"),
        (("flow", "run", "review", "-p", 'text="hi'), 2, "--param text is not JSON"),
        (("flow", "validate", "flows.py"), 2, "as in flows.py:flow"),
        (("flow", "run", "review", "--version", "99"), 3, "onward flow list"),
        (("flow", "run", "review", "--shared", '{"_rt": 1}'), 2, "_rt"),
        (("run", "show", "nothing"), 3, "onward run list"),
        (("run", "cancel", "nothing"), 3, "no run 'nothing'"),
        (("run", "signal", "nothing", "x"), 3, "no run 'nothing'"),
        (("run", "fork", "nothing", "--from", "x"), 3, "no run 'nothing'"),
    ],
)
def test_what_cannot_be_done_is_said_with_the_next_step(
    shell: FlowShell, arguments: tuple[str, ...], code: int, why: str
) -> None:
    done = shell.run(*arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("✗ ")
    assert why in done.stderr


def test_without_a_server_the_next_step_is_to_start_one(alone: FlowShell) -> None:
    for arguments in (("flow", "list"), ("run", "list"), ("demo", "flow")):
        done = alone.run(*arguments)
        assert (done.returncode, "onward up" in done.stderr) == (5, True), done.stderr


@pytest.mark.contract("S4-1", "N-1", "N-5")
def test_apply_publishes_what_has_changed_and_says_it(shell: FlowShell) -> None:
    shell.write("steps.json", {**REVIEW, "name": ""})
    first = shell.run("flow", "apply", "steps.json")
    assert (first.returncode, first.stdout) == (0, "✓ steps version 1 is published\n")
    again = shell.run("flow", "apply", "steps.json")
    assert (again.returncode, again.stdout) == (0, "= steps version 1: nothing has changed\n")
    forced = shell.json("flow", "apply", "steps.json", "--force")
    assert (forced["version"], forced["changed"], forced["changes"]) == (2, True, [])

    nodes = {**REVIEW["nodes"], "send": {**REVIEW["nodes"]["send"], "max_retries": 2}}
    shell.write("steps.json", {**REVIEW, "name": "", "nodes": nodes, "edges": REVIEW["edges"][1:]})
    changed = shell.run("flow", "apply", "steps.json")
    assert changed.stdout.splitlines() == [
        "✓ steps version 3 is published",
        "  ~ node send: max_retries",
        "  - edge draft ─ default → route",
    ]
    assert "node route" in changed.stderr  # nothing leads there any more
    named = shell.json("flow", "apply", "steps.json", "--name", "other")
    assert (named["flow"], named["version"]) == ("other", 1)

    assert {"steps", "other"} <= {flow["name"] for flow in shell.json("flow", "list")["items"]}
    assert "steps" in shell.run("flow", "list").stdout
    assert [each["version"] for each in shell.json("flow", "show", "steps")["versions"]] == [
        3,
        2,
        1,
    ]
    old = shell.run("flow", "show", "steps", "--version", "1", "--definition")
    assert json.loads(old.stdout)["edges"] == REVIEW["edges"]
    assert "no edge leads here:" in shell.run("flow", "show", "steps").stdout
    assert shell.run("flow", "apply", "flows.py:flow").stdout.startswith("✓ built version 1")


@pytest.mark.contract("S4-14", "N-5")
def test_a_graph_is_drawn_on_the_terminal_and_as_mermaid(shell: FlowShell) -> None:
    drawn = shell.run("flow", "graph", "review").stdout
    rows = [line.rstrip() for line in drawn.splitlines()]
    assert rows[0].startswith("● draft")
    assert any(re.match(r"├─ ask ─ \? sign +approval +may it\?", row) for row in rows), drawn
    assert "│        │ approved" in rows
    text = shell.run("flow", "graph", "review", "--mermaid").stdout
    assert text.startswith("flowchart TD\n")
    assert '|"ask"|' in text


@pytest.mark.contract("S4-2", "S4-3", "N-1", "N-5")
def test_a_run_is_waited_for_and_shown(shell: FlowShell) -> None:
    done = shell.run("flow", "run", "review", "-p", "text=hello", "-p", "n=1", "--wait")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"draft": "hello", "sent": "hello"})
    shell.write("params.json", {"text": "hi"})
    run = shell.json("flow", "run", "review", "--params", "@params.json", "--wait")
    assert (run["state"], run["flow"], run["result"]["sent"]) == ("succeeded", "review", "hi")
    assert {node["key"]: node["status"] for node in run["nodes"]} == {
        "draft": "ok", "route": "ok", "send": "ok", "sign": None, "paid": None
    }  # fmt: skip

    shown = shell.run("run", "show", run["id"]).stdout
    assert re.search(r"^✓ succeeded +review v1 .*" + run["id"], shown, flags=re.M)
    assert re.search(r"^├━ go ━━ ↓ send", shown, flags=re.M), shown
    assert re.search(r"^✓ send +echo +ok", shown, flags=re.M), shown
    assert re.search(r"^├─ ask ─ · sign", shown, flags=re.M)
    assert re.search(r"^send +1 +✓ ok +\d+ ms +builtin-\w+ +default +\"hi\"", shown, flags=re.M)
    assert re.search(r'^sent +"hi"', shown, flags=re.M)
    newest = shell.run("run", "show").stdout
    assert run["id"] in newest

    listed = shell.json("run", "list", "--flow", "review", "--state", "succeeded")["items"]
    assert listed[0]["id"] == run["id"]
    assert run["id"] in shell.run("run", "list").stdout
    first = shell.json("flow", "run", "review", "-p", "text=x", "--request-id", "monday")
    assert (
        shell.json("flow", "run", "review", "-p", "text=y", "--request-id", "monday")["id"]
        == first["id"]
    )


@pytest.mark.contract("S4-10", "S4-11", "N-5")
def test_a_run_is_approved_signalled_and_forked(shell: FlowShell) -> None:
    run = shell.begin(ask=True)
    poll_until(lambda: shell.at(run, "sign"))
    shown = shell.run("run", "show", run)
    assert "‖ waiting" in shown.stdout
    (command,) = re.findall(r"→ onward (approvals approve \S+)", shown.stderr)
    early = shell.run("run", "watch", run, "--timeout", "200ms")
    assert (early.returncode, f"onward run watch {run}" in early.stderr) == (124, True)
    assert shell.run(*command.split()).returncode == 0
    poll_until(lambda: shell.at(run, "paid"))
    assert f"onward run signal {run} paid" in shell.run("run", "show", run).stderr
    assert shell.run("run", "signal", run, "payment", '{"sum": 12.5}').returncode == 0
    poll_until(lambda: shell.read(f"runs/{run}")["state"] == "succeeded")
    ended = shell.json("run", "show", run)
    assert ended["result"] == {"draft": "hi", "payment": {"sum": 12.5}, "sent": "hi"}
    late = shell.run("run", "signal", run, "payment")
    assert (late.returncode, f"onward run show {run}" in late.stderr) == (4, True)

    fork = shell.json("run", "fork", run, "--from", "send", "--wait")
    assert (fork["forked_from"], fork["result"]["sent"]) == (run, "hi")
    change = ("run", "fork", run, "--from", "send", "--shared", '{"draft": "mended"}')
    refused = shell.run(*change)
    assert (refused.returncode, "sign was not approved with this state" in refused.stderr) == (
        4,
        True,
    )
    mended = shell.run(*change, "--anyway", "--wait")
    assert json.loads(mended.stdout) == {"draft": "mended", "sent": "mended"}
    wrong = shell.run("run", "fork", run, "--from", "nothing")
    assert (wrong.returncode, "there are draft, route" in wrong.stderr) == (2, True)


def test_a_refused_fork_ends_with_the_next_step(shell: FlowShell) -> None:
    run = shell.begin(ask=True)
    poll_until(lambda: shell.at(run, "sign"))
    wrong = shell.run("run", "fork", run, "--from", "nothing")
    assert (wrong.returncode, wrong.stderr.splitlines()[-1]) == (2, f"  → onward run show {run}")
    refused = shell.run("run", "fork", run, "--from", "send")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "sign was not approved" in refused.stderr
    step = refused.stderr.splitlines()[-1]
    assert step.startswith("  → fork from 'sign' (--from sign), or ")
    assert step.endswith("(--anyway)")
    assert shell.run("run", "fork", run, "--from", "send", "--anyway", "--wait").returncode == 0
    assert "--anyway[/]" not in (shown := shell.run("run", "fork", "--help").stdout)
    assert "--from publish --anyway" in shown


@pytest.mark.contract("S4-12")
def test_a_run_is_canceled_and_says_so(shell: FlowShell) -> None:
    run = shell.begin(ask=True)
    poll_until(lambda: shell.at(run, "sign"))
    assert shell.run("run", "cancel", run).returncode == 0
    ended = shell.run("run", "watch", run)
    assert (ended.returncode, "review canceled" in ended.stderr) == (1, True)
    assert shell.json("run", "show", run)["state"] == "canceled"
    assert shell.run("run", "cancel", run).returncode == 4


@pytest.mark.contract("S4-6")
def test_a_run_that_fails_names_the_node_and_the_way_back(shell: FlowShell) -> None:
    broken = {
        "start": "a",
        "nodes": {"a": {"kind": "local", "service": "countdown", "params": {"seconds": -1}}},
    }
    assert shell.run("flow", "apply", shell.write("broken.json", broken)).returncode == 0
    done = shell.run("flow", "run", "broken", "--wait")
    assert (done.returncode, done.stdout) == (1, "")
    (run,) = re.findall(r"onward run fork (\S+) --from a", done.stderr)
    assert "node 'a': seconds: Input should be greater than or equal to 0" in done.stderr
    assert re.search(r"^✗ a +countdown +error", shell.run("run", "show", run).stdout, flags=re.M)
    assert shell.json("flow", "run", "broken", "--watch", code=1)["error"]["message"]


@pytest.mark.contract("S4-6", "N-1")
def test_a_run_that_was_undone_names_the_first_node_to_do_again(shell: FlowShell) -> None:
    undone = {
        "start": "look",
        "nodes": {
            "look": {"kind": "local", "service": "echo"},
            "take": {"kind": "local", "service": "echo", "compensate": {"service": "echo"}},
            "fail": {"kind": "local", "service": "countdown", "params": {"seconds": -1}},
        },
        "edges": [{"from": "look", "to": "take"}, {"from": "take", "to": "fail"}],
    }
    assert shell.run("flow", "apply", shell.write("undone.json", undone)).returncode == 0
    done = shell.run("flow", "run", "undone", "--wait")
    (named,) = re.findall(r"onward (run fork \S+ --from \S+)", done.stderr)
    assert named.endswith("--from take")
    assert shell.run(*named.split()).returncode == 0, "it is not refused"


@pytest.mark.contract("N-1")
def test_watching_without_a_terminal_is_a_line_a_step(shell: FlowShell) -> None:
    done = shell.run("flow", "run", "review", "-p", "text=hi", "--watch")
    assert done.returncode == 0
    *lines, last = done.stderr.splitlines()
    steps = [line.split(maxsplit=2)[2] for line in lines]
    assert last.startswith("✓ succeeded in ")
    assert steps == ["● draft", "✓ draft", "✓ route  → go", "● send", "✓ send"]
    assert json.loads(done.stdout)["sent"] == "hi"
    run = shell.begin()
    spoken = shell.run("run", "watch", run, "--json")
    events = [json.loads(line) for line in spoken.stdout.splitlines()]
    assert events[-1]["type"] == "task.succeeded"
    assert {"node.started", "node.finished"} <= {event["type"] for event in events}


def first_in(said: Path, pattern: str) -> str | None:
    found = re.search(pattern, said.read_text())
    return None if found is None else found[1]


@pytest.mark.contract("N-1")
def test_watching_without_a_terminal_names_what_a_person_can_do(
    shell: FlowShell, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    review = ("flow", "run", "review", "-p", "text=hi", "-p", "ask=true", "--watch")
    watching = Process(*ONWARD, *review, env={"ONWARD_URL": shell.url}, log=said)
    try:
        for pattern in (r"→ onward (approvals approve \S+)", r"→ onward (run signal \S+ paid)"):
            command = poll_until(partial(first_in, said, pattern))
            assert shell.run(*command.split()).returncode == 0
        assert watching.popen.wait(60) == 0
    finally:
        watching.kill()


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, shell: FlowShell, *arguments: str) -> None:
        self._raw = b""
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.chdir(shell.place)
            os.execvpe(  # noqa: S606
                sys.executable,
                [*ONWARD, *arguments],
                shell.environment(TERM="xterm-256color", COLUMNS="120", LINES="40"),
            )

    def shows(self, text: str) -> bool:
        self._read()
        return text in self.seen

    def _read(self) -> bool:
        while select.select([self._end], [], [], 0.05)[0]:
            try:
                some = os.read(self._end, 65536)
            except OSError:  # nobody holds the other end any more
                return False
            if not some:
                return False
            self._raw += some
        return True

    @property
    def seen(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._raw.decode(errors="replace"))

    def press(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def code(self) -> int:
        poll_until(lambda: not self._read())
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.contract("N-1")
def test_the_graph_lives_on_a_terminal_and_leaving_it_ends_no_run(
    shell: FlowShell,
) -> None:
    watching = Terminal(
        shell, "flow", "run", "review", "-p", "text=hi", "-p", "ask=true", "--watch"
    )
    poll_until(lambda: watching.shows("onward approvals approve"))
    assert watching.shows("├━ ask ━ ‖ sign")
    watching.press(b"\x03")
    assert watching.code() == 130
    (run,) = set(re.findall(r"onward run watch (\S+)", watching.seen))
    assert shell.json("run", "show", run)["state"] == "waiting"

    back = Terminal(shell, "run", "watch", run)
    poll_until(lambda: back.shows("onward approvals approve"))
    (command,) = set(re.findall(r"onward (approvals approve \S+)", back.seen))
    assert shell.run(*command.split()).returncode == 0
    poll_until(lambda: back.shows(f"onward run signal {run} paid"))
    assert shell.run("run", "signal", run, "paid").returncode == 0
    assert back.code() == 0
    assert back.shows("✓ succeeded")


@pytest.mark.contract("S4-13", "S4-5")
def test_the_demo_brings_its_own_worker_and_takes_it_away_again(shell: FlowShell) -> None:
    for _ in range(2):
        done = shell.run("demo", "flow", ONWARD_URL="http://127.0.0.1:9", SCHEDULER_BASE=shell.url)
        assert done.returncode == 0, done.stderr
        assert "starting one (onward exec-worker)" in done.stderr
        assert '→ {"result":"HAND OFF WORK"}' in done.stdout
        assert '→ {"result":"and move on"}' in done.stdout
        assert re.search(r"^B +1 +✓ ok", done.stdout, flags=re.M)
        assert re.search(r"^C +1 +✓ ok", done.stdout, flags=re.M)
        assert "demo-branching version 1" in done.stdout
    queues = [worker["queues"] for worker in _items(shell, "workers")]
    assert not any("route" in each for each in queues)


@pytest.mark.contract("S4-13")
def test_the_demo_uses_a_worker_that_is_there(shell: FlowShell) -> None:
    worker = Process(
        *ONWARD, "exec-worker", "--listen", f"http://127.0.0.1:{free_port()}", "--id", "there",
        env={"ONWARD_URL": shell.url}, log=shell.place / "worker.log",
    )  # fmt: skip
    try:
        poll_until(lambda: any(each["id"] == "there" for each in _items(shell, "workers")))
        done = shell.run("demo", "flow", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        runs = json.loads(done.stdout)["runs"]
        assert [(run["branch"], run["result"]["result"]) for run in runs] == [
            ("B", "HAND OFF WORK"),
            ("C", "and move on"),
        ]
        for run in runs:
            assert [row["node_key"] for row in run["node_runs"]] == ["route", run["branch"]]
            assert {row["worker_id"] for row in run["node_runs"]} == {"there"}
    finally:
        worker.stop()


@pytest.mark.contract("S4-13")
def test_scheduler_db_names_the_ledger_of_a_server(tmp_path: Path) -> None:
    port = free_port()
    server = Process(
        *ONWARD, "serve", "--port", str(port),
        env={"SCHEDULER_DB": f"{tmp_path}/scheduler.db"}, log=tmp_path / "log",
    )  # fmt: skip
    try:
        poll_until((tmp_path / "scheduler.db").exists)
    finally:
        server.signal(signal.SIGKILL)
        server.popen.wait()


def _items(shell: FlowShell, what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = HTTP.get(f"{shell.url}/api/v2/{what}").json()["items"]
    return found
