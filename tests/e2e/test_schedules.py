"""Schedules from a shell, and two servers that share a ledger: real processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from onward import Client
from onward.wire.schedules import ScheduleView
from tests.e2e.shell import Shell
from tests.processes import serving
from tests.servers import RedisServer
from tests.support import wait_until

pytestmark = pytest.mark.slow


class Scheduling(Shell):
    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return super().run("schedule", *arguments, **more)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    place = tmp_path_factory.mktemp("schedules")
    with serving(place, up=True) as server:
        yield Scheduling(server.url, place)


@pytest.mark.contract("N-1", "N-5", "S2-11")
def test_a_schedule_from_a_shell(shell: Shell) -> None:
    rule = ("--cron", "30 9 * * MON-FRI", "--tz", "Europe/Berlin")
    added = shell.run("add", "report", "echo", '{"n": 1}', *rule)
    assert added.returncode == 0, added.stderr
    assert added.stdout.startswith("report  ")
    assert " 09:30 CE" in added.stdout, "in its own zone"
    assert ", in " in added.stdout, "and how far away"
    assert shell.run("add", "report", "echo", '{"n": 1}', *rule).returncode == 0
    other = shell.run("add", "report", "echo", "--every", "5m")
    assert (other.returncode, "--replace" in other.stderr) == (4, True)
    replaced = shell.json("add", "report", "echo", "[2]", "--every", "5m", "--replace")
    assert (replaced["every_ms"], replaced["payload"]) == (300_000, [2])

    once = shell.json("add", "launch", "echo", "--at", "2999-01-31T09:00", "--tz", "Asia/Tokyo")
    assert once["run_at"] == datetime(2999, 1, 31, tzinfo=UTC).timestamp() * 1000
    table = shell.run("list").stdout
    assert "Every 5 minutes" in table
    assert "Thu 2999-01-31 09:00 JST" in table
    assert [item["name"] for item in shell.json("list")["items"]] == ["launch", "report"]

    assert shell.run("pause", "report").stdout == "report  paused\n"
    assert "paused" in shell.run("list").stdout
    done = shell.run("trigger", "report", "--wait", "--json")
    assert (done.returncode, json.loads(done.stdout)["result"]) == (0, [2])
    card = shell.run("show", "report").stdout
    assert "triggered" in card
    assert json.loads(done.stdout)["id"] in card
    assert shell.json("resume", "report")["paused"] is False
    assert shell.run("remove", "report").stdout == "report is removed\n"
    gone = shell.run("show", "report")
    assert (gone.returncode, "onward schedule list" in gone.stderr) == (3, True)
    assert shell.json("remove", "launch") == {"name": "launch", "removed": True}
    assert "no schedules" in shell.run("list").stderr


@pytest.mark.contract("N-1")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cron", "61 * * * *"), "bad minute"),
        (("--every", "10ms"), "expected a whole number >= 1000"),
        (("--at", "tomorrow"), "--at tomorrow is not a time"),
        (("--at", "2030-01-01", "--tz", "Mars/Base"), "no time zone 'Mars/Base'"),
        (("--cron", "@daily", "--tz", "Europe/Berln"), "did you mean Europe/Berlin?"),
        ((), "exactly one of cron, every_ms and run_at"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    shell: Shell, arguments: tuple[str, ...], said: str
) -> None:
    done = shell.run("add", "wrong", "echo", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.contract("S2-11")
async def test_two_servers_run_each_instant_once_and_one_alone_goes_on(tmp_path: Path) -> None:
    redis = RedisServer("valkey")
    try:
        with (
            serving(_folder(tmp_path, "a"), up=True, ledger=redis.url, ONWARD_ARCHIVE="") as first,
            serving(_folder(tmp_path, "b"), up=True, ledger=redis.url, ONWARD_ARCHIVE="") as second,
        ):
            async with Client(first.url) as client:
                await client.schedules.create("tick", type="echo", every_ms=1_000, missed="all")
            async with Client(second.url) as client:
                await _until(client, lambda found, _: _seconds(found) >= 3)
                first.kill()
                await _until(client, lambda found, _: _seconds(found) >= 6)
                await client.schedules.pause("tick")
                # What was under way is written down in a moment; a second task never goes away.
                await _until(client, lambda found, tasks: _seconds(found) == tasks)
    finally:
        redis.close()


def _seconds(found: ScheduleView) -> float:
    """From its birth to the last instant that it ran for."""
    return 0 if found.last_run_at is None else (found.last_run_at - found.created_at) / 1000


async def _until(client: Client, holds: Callable[[ScheduleView, int], bool]) -> None:
    """Until it holds for the schedule and the number of its tasks."""

    async def seen() -> bool:
        found = await client.schedules.get("tick")
        return holds(found, len((await client.list(type="echo", limit=1000)).items))

    await wait_until(seen)


def _folder(place: Path, name: str) -> Path:
    folder = place / name
    folder.mkdir()
    return folder
