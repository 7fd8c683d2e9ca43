"""Dead letters and approvals from a shell: real processes, real exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Process, Server, serving
from tests.support import poll_until

pytestmark = pytest.mark.slow

ONWARD = [sys.executable, "-m", "onward.cli"]
REFUSING = """
from typing import Any
from onward import Worker

worker = Worker()

class NotFound(Exception): ...

@worker.service
async def nothing(payload: Any) -> None:
    raise NotFound("there is nothing")
"""


class Shell:
    def __init__(self, server: Server, place: Path) -> None:
        self.server = server
        self.place = place

    def run(self, *arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        env = {**kept, "PYTHONWARNINGS": "error", "ONWARD_URL": self.server.url, "USER": "ada"}
        return subprocess.run(
            [*ONWARD, *arguments],
            cwd=self.place,
            env=env,
            input=input,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def json(self, *arguments: str, code: int = 0) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def died(self, note: str) -> str:
        """A task that its worker refuses for good."""
        id: str = self.json("submit", "nothing", json.dumps({"note": note}))["id"]
        poll_until(lambda: self.json("task", "get", id)["state"] == "dead")
        return id

    def asked(self, payload: str = '{"sum": 500}') -> str:
        (self.place / "ask.py").write_text(
            "import asyncio, sys\n"
            "from onward import Client\n"
            "async def main():\n"
            "    async with Client() as client:\n"
            "        task = await client.submit(\n"
            "            'echo', __import__('json').loads(sys.argv[1]),\n"
            "            approval={'reason': 'money'},\n"
            "        )\n"
            "        print(task.id)\n"
            "asyncio.run(main())\n"
        )
        done = subprocess.run(
            [sys.executable, "ask.py", payload],
            cwd=self.place,
            env={**os.environ, "ONWARD_URL": self.server.url},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.strip()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    place = tmp_path_factory.mktemp("shell")
    (place / "refusing.py").write_text(REFUSING)
    with serving(place, up=True) as server:
        worker = Process(
            *(*ONWARD, "worker", f"{place}/refusing.py:worker", "--server", server.url),
            log=place / "worker.log",
        )
        try:
            yield Shell(server, place)
        finally:
            worker.stop()


@pytest.mark.contract("S1-10", "N-1", "N-5")
def test_dead_letters_are_listed_shown_mended_and_given_up(shell: Shell) -> None:
    ids = [shell.died("one"), shell.died("two"), shell.died("three")]
    (group,) = shell.json("dlq", "list")["items"]
    assert (group["count"], group["types"]) == (3, ["nothing"])
    table = shell.run("dlq", "list").stdout
    assert group["fingerprint"] in table
    tasks = shell.json("dlq", "list", "--fingerprint", group["fingerprint"])["items"]
    assert [task["id"] for task in tasks] == ids[::-1]
    assert ids[0] in shell.run("dlq", "list", "--fingerprint", group["fingerprint"]).stdout

    shown = shell.run("dlq", "show", ids[0])
    assert '{"note":"one"}' in shown.stdout
    assert "NotFound" in shown.stdout
    assert f"onward dlq replay {ids[0]}" in shown.stderr

    (shell.place / "mended.json").write_text('{"note": "mended"}')
    done = shell.json("dlq", "replay", ids[0], "--payload", "@mended.json")
    assert (done["matched"], done["replayed"]) == (1, 1)
    poll_until(lambda: shell.json("task", "get", ids[0])["state"] == "dead")
    again = shell.json("task", "get", ids[0])
    assert (again["generation"], again["payload"]) == (2, {"note": "mended"})
    assert "attempt 1, replay 1" in shell.run("dlq", "show", ids[0]).stdout

    patch = ("dlq", "replay", "--type", "nothing", "--patch", '{"more": 1}')
    dry = shell.run(*patch, "--dry-run")
    assert (dry.returncode, dry.stdout.startswith("3 dead letters would be replayed")) == (0, True)
    assert '{"note":"two","more":1}' in dry.stdout
    assert shell.json(*patch, "--yes")["replayed"] == 3
    poll_until(lambda: len(shell.json("task", "list", "--state", "dead")["items"]) == 3)
    assert shell.json("task", "get", ids[1])["payload"] == {"note": "two", "more": 1}

    dry = shell.run("dlq", "abandon", "--all", "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, "3 dead letters would be abandoned\n")
    no = shell.run("dlq", "abandon", "--all", input="n\n")
    assert (no.returncode, "Abandon 3 dead letters?" in no.stderr) == (1, True)
    rated = shell.run("dlq", "replay", "--type", "nothing", "--rate", "1000", "--yes")
    assert (rated.returncode, rated.stdout) == (0, "3 dead letters replayed\n")
    poll_until(lambda: len(shell.json("task", "list", "--state", "dead")["items"]) == 3)
    gone = shell.run("dlq", "abandon", "--all", input="y\n")
    assert (gone.returncode, gone.stdout) == (0, "3 dead letters abandoned\n")
    assert shell.json("dlq", "list")["items"] == []
    assert shell.json("dlq", "replay", "--all", "--yes")["replayed"] == 0

    refused = shell.run("dlq", "replay", ids[0])
    assert refused.returncode == 4
    assert "a task that is failed is no dead letter" in refused.stderr
    assert shell.json("dlq", "replay", ids[0], "nothing", code=4)["replayed"] == 0
    assert shell.run("dlq", "show", ids[0]).returncode == 3
    assert shell.run("dlq", "show", "nothing").returncode == 3


@pytest.mark.contract("S1-10")
@pytest.mark.parametrize(
    "arguments",
    [("dlq", "replay"), ("dlq", "abandon"), ("dlq", "replay", "x", "--all"),
     ("dlq", "replay", "x", "--payload", "1", "--patch", "{}"),
     ("dlq", "replay", "x", "--payload", "{")],
)  # fmt: skip
def test_nothing_is_changed_that_was_not_named(shell: Shell, arguments: tuple[str, ...]) -> None:
    done = shell.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("✗ ")


def test_a_patch_that_is_not_json_is_called_a_patch(shell: Shell) -> None:
    done = shell.run("dlq", "replay", "x", "--patch", '{"x": 50')
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "✗ the patch is not JSON")


@pytest.mark.contract("S1-11", "N-1", "N-5")
def test_approvals_are_listed_shown_and_decided_once(shell: Shell) -> None:
    task = shell.asked()
    (item,) = shell.json("approvals", "list")["items"]
    assert (item["task_id"], item["reason"]) == (task, "money")
    assert item["id"] in shell.run("approvals", "list").stdout
    shown = shell.run("approvals", "show", item["id"])
    assert '{"sum":500}' in shown.stdout
    assert f"onward approvals approve {item['id']}" in shown.stderr
    explained = shell.run("task", "explain", task)
    assert f"onward approvals approve {item['id']}" in explained.stdout

    assert shell.run("approvals", "approve", item["id"], "--digest", "0").returncode == 4
    done = shell.json("approvals", "approve", item["id"], "--payload", '{"sum": 50}', "-m", "less")
    assert (done["status"], done["by"], done["comment"]) == ("approved", "ada", "less")
    poll_until(lambda: shell.json("task", "get", task)["state"] == "succeeded")
    assert shell.json("task", "get", task)["result"] == {"sum": 50}
    assert shell.run("approvals", "reject", item["id"]).returncode == 4
    unknown = shell.run("approvals", "show", "nothing.1")
    assert (unknown.returncode, "→ onward approvals list" in unknown.stderr) == (3, True)


@pytest.mark.contract("S1-11", "N-5")
def test_a_rejected_task_says_so(shell: Shell) -> None:
    task = shell.run("submit", "echo", '{"sum": 500}', "--approval").stdout.strip()
    done = shell.run("approvals", "reject", task, "-m", "too dear", "--by", "bob")
    assert (done.returncode, done.stdout.split()) == (0, ["rejected", task])
    assert shell.run("task", "watch", task).returncode == 1
    assert "too dear" in shell.run("task", "get", task).stdout
    assert shell.json("approvals", "list", "--status", "rejected")["items"][0]["by"] == "bob"
    assert "no approvals with this status" in shell.run("approvals", "list").stderr


@pytest.mark.contract("N-1")
@pytest.mark.parametrize(
    "command",
    [f"dlq {verb}" for verb in ("list", "show", "replay", "abandon")]
    + [f"approvals {verb}" for verb in ("list", "show", "approve", "reject")],
)
def test_every_command_has_help(shell: Shell, command: str) -> None:
    done = shell.run(*command.split(), "--help")
    assert done.returncode == 0
    assert f"onward {command}" in done.stdout.partition("Example")[2]


@pytest.mark.contract("N-5")
def test_a_queue_rests_until_it_is_resumed(shell: Shell) -> None:
    said = shell.run("queue", "pause", "echo", "-m", "new model")
    assert (said.returncode, said.stdout.startswith("echo  paused ")) == (0, True), said.stderr
    assert "ada, new model" in said.stdout
    id = shell.json("submit", "echo", '"later"')["id"]
    why = shell.json("task", "explain", id)
    assert why["reason"] == "queue_paused"
    assert "paused" in shell.run("queue", "list").stdout
    (echo,) = [q for q in shell.json("queue", "list")["items"] if q["name"] == "echo"]
    assert (echo["paused"]["by"], echo["queued"]) == ("ada", 1)

    resumed = shell.run(*why["hint"].split()[1:])
    assert (resumed.returncode, resumed.stdout.startswith("echo  open")) == (0, True)
    poll_until(lambda: shell.json("task", "get", id)["state"] == "succeeded")
    nowhere = shell.run("queue", "resume", "nowhere")
    assert (nowhere.returncode, "onward queue list" in nowhere.stderr) == (3, True)
