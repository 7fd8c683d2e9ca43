"""Dead letters and approvals from a shell: real processes, real exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.shell import ONWARD, Shell
from tests.processes import HTTP, Process, serving
from tests.support import poll_until

pytestmark = pytest.mark.slow

REFUSING = """
from typing import Any
from onward import Worker

worker = Worker()

class NotFound(Exception): ...

@worker.service
async def nothing(payload: Any) -> None:
    raise NotFound("there is nothing")
"""


def died(shell: Shell, note: str) -> str:
    """A task that its worker refuses for good."""
    id: str = shell.json("submit", "nothing", json.dumps({"note": note}))["id"]
    shell.wait_for(id, "dead")
    return id


def all_dead(shell: Shell, count: int) -> bool:
    return len(shell.read("tasks?state=dead")["items"]) == count


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
            yield Shell(server.url, place)
        finally:
            worker.stop()


@pytest.mark.contract("S1-10")
def test_dlq_replay_is_a_command_of_its_own(shell: Shell) -> None:
    id = died(shell, "mended")
    tool = str(Path(sys.executable).with_name("dlq_replay"))
    mended = [tool, "replay", id, "--payload", '{"note": "mended"}', "--json"]
    env = {**os.environ, "ONWARD_URL": shell.url}
    done = subprocess.run(mended, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout)["replayed"] == 1, done.stderr
    shell.wait_for(id, "dead")
    gone = [tool, "abandon", id, "--json"]
    done = subprocess.run(gone, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout)["abandoned"] == 1, done.stderr


@pytest.mark.contract("S1-10", "N-1", "N-5")
def test_dead_letters_are_listed_shown_mended_and_given_up(shell: Shell) -> None:
    ids = [died(shell, "one"), died(shell, "two"), died(shell, "three")]
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
    shell.wait_for(ids[0], "dead")
    again = shell.json("task", "get", ids[0])
    assert (again["generation"], again["payload"]) == (2, {"note": "mended"})
    assert "attempt 1, replay 1" in shell.run("dlq", "show", ids[0]).stdout

    patch = ("dlq", "replay", "--type", "nothing", "--patch", '{"more": 1}')
    dry = shell.run(*patch, "--dry-run")
    assert (dry.returncode, dry.stdout.startswith("3 dead letters would be replayed")) == (0, True)
    assert '{"note":"two","more":1}' in dry.stdout
    assert shell.json(*patch, "--yes")["replayed"] == 3
    poll_until(lambda: all_dead(shell, 3))
    assert shell.json("task", "get", ids[1])["payload"] == {"note": "two", "more": 1}

    dry = shell.run("dlq", "abandon", "--all", "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, "3 dead letters would be abandoned\n")
    no = shell.run("dlq", "abandon", "--all", input="n\n")
    assert (no.returncode, "Abandon 3 dead letters?" in no.stderr) == (1, True)
    rated = shell.run("dlq", "replay", "--type", "nothing", "--rate", "1000", "--yes")
    assert (rated.returncode, rated.stdout) == (0, "3 dead letters replayed\n")
    poll_until(lambda: all_dead(shell, 3))
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
    body = {"type": "echo", "payload": {"sum": 500}, "approval": {"reason": "money"}}
    task = HTTP.post(f"{shell.url}/api/v2/tasks", json=body).json()["id"]
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
    shell.wait_for(task, "succeeded")
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
    assert (resumed.returncode, resumed.stdout.startswith("echo  active")) == (0, True)
    poll_until(lambda: shell.json("task", "get", id)["state"] == "succeeded")
    nowhere = shell.run("queue", "resume", "nowhere")
    assert (nowhere.returncode, "onward queue list" in nowhere.stderr) == (3, True)
