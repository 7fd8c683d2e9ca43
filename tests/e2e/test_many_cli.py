"""Many tasks at once from a shell: real processes, real exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.shell import Shell
from tests.processes import serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    place = tmp_path_factory.mktemp("shell")
    with serving(place, up=True) as server:
        yield Shell(server.url, place)


@pytest.mark.contract("B-5")
def test_a_task_is_submitted_for_each_row_and_broken_rows_are_named(shell: Shell) -> None:
    rows = [json.dumps({"seconds": 0}) for _ in range(5)]
    shell.write("rows.jsonl", "\n".join([*rows[:2], "", "{broken", *rows[2:]]))
    done = shell.run("submit", "countdown", "--from", "rows.jsonl", "--tag", "rows", "--wait")
    assert done.returncode == 1
    assert "line 4: not JSON" in done.stderr
    assert "5 tasks" in done.stdout
    shell.write("fine.jsonl", "\n".join(rows))
    found = shell.json("submit", "countdown", "--from", "fine.jsonl", "--wait", "--tag", "fine")
    assert found["batch"]["states"] == {"succeeded": 5}
    assert found["broken"] == []
    listed = shell.json("task", "list", "--batch", found["batch"]["id"], "--tag", "fine")
    assert len(listed["items"]) == 5
    shown = shell.json("batch", "show", found["batch"]["id"])
    assert (shown["total"], shown["done"]) == (5, 5)
    watched = shell.run("batch", "watch", found["batch"]["id"])
    assert (watched.returncode, "5 succeeded" in watched.stdout) == (0, True)
    assert shell.run("batch", "show", "nobody").returncode == 3
    missing = shell.run("submit", "countdown", "--from", "none.jsonl")
    assert missing.returncode == 2
    refused = shell.run("submit", "summarize", "--from", "fine.jsonl")
    assert refused.returncode == 1
    assert "line 1: " in refused.stderr


@pytest.mark.contract("B-3")
def test_tasks_are_canceled_and_deleted_by_a_filter(shell: Shell) -> None:
    shell.write("later.jsonl", "\n".join(str(n) for n in range(7)))
    shell.run("submit", "unserved", "--from", "later.jsonl", "--tag", "gone")
    which = ("--filter", "type=unserved", "--filter", "tag=gone")
    dry = shell.json("task", "cancel", *which, "--dry-run")
    assert dry == {"action": "cancel", "matched": 7}
    asked = shell.run("task", "cancel", *which, input="n\n")
    assert asked.returncode != 0
    begun = shell.json("task", "cancel", *which, "--yes", "--wait")
    assert (begun["state"], begun["done"], begun["failed"]) == ("succeeded", 7, 0)
    shown = shell.json("operation", "show", begun["id"])
    assert shown["matched"] == 7
    assert [each["id"] for each in shell.json("operation", "list")["items"]] == [begun["id"]]
    over = shell.run("operation", "cancel", begun["id"])
    assert over.returncode != 0
    gone = shell.json("task", "delete", *which, "--yes", "--wait")
    assert (gone["done"], gone["failed"]) == (7, 0)
    assert shell.read("tasks?type=unserved")["items"] == []


@pytest.mark.contract("B-3", "N-1")
def test_one_task_is_still_canceled_and_retried_by_its_id(shell: Shell) -> None:
    id = shell.json("submit", "nobody")["id"]
    assert shell.json("task", "cancel", id)["state"] == "canceled"
    assert shell.json("task", "retry", id)["state"] == "queued"
    assert shell.run("task", "cancel").returncode == 2
    assert shell.run("task", "cancel", id, "--filter", "type=x").returncode == 2
    wrong = shell.run("task", "cancel", "--filter", "colour=red", "--yes")
    assert (wrong.returncode, "FIELD=VALUE" in wrong.stderr) == (2, True)
