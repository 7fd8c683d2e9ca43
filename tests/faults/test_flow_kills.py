"""A server killed at every step of a flow with every node kind: the run ends all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from onward.flow.nodes import KINDS
from tests.faults.flow_steps import FLOW
from tests.faults.flow_steps import KINDS as USED
from tests.faults.invariants import check_invariants, check_ledger_invariants
from tests.servers import PostgresServer

pytestmark = pytest.mark.slow

EVERY = 1 if "ONWARD_FULL_FAULTS" in os.environ else 7  # write of those on Postgres
ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, first: int, every: int, *postgres: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.faults.flow_steps"]
    done = subprocess.run(
        [*command, str(folder), str(first), str(every), *postgres],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_flow_has_every_node_kind() -> None:
    assert set(KINDS) == USED
    assert len(FLOW["nodes"]) == len(USED)


@pytest.mark.contract("S4-11")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_server_killed_at_any_write_leaves_a_run_that_ends_the_same(
    tmp_path: Path, moment: str
) -> None:
    (unbroken,) = run(tmp_path, 0, 1_000_000)
    assert unbroken["state"] == "succeeded"
    kills = run(tmp_path, 2 if moment == "before" else 3, 2)
    # How many writes a run takes depends on what meets in a batch, so on the machine; a process
    # is killed at each, up to one that had none left, and every node takes at least one.
    assert len(kills) > len(FLOW["nodes"])
    check_same_ends(kills, unbroken, moment)
    for ledger in tmp_path.glob("*/ledger.db"):
        check_invariants(ledger, ["run"])


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer("postgres15")  # its own: it is left with a database for every kill
    yield server
    server.close()


@pytest.mark.contract("S4-11")
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_so_it_does_on_postgres(
    tmp_path: Path, postgres: PostgresServer, moment: str
) -> None:
    server = postgres.url("postgres")
    (unbroken,) = run(tmp_path, 0, 1_000_000, server)
    assert unbroken["state"] == "succeeded"
    kills = run(tmp_path, 2 if moment == "before" else 3, 2 * EVERY, server)
    check_same_ends(kills, unbroken, moment)
    for killed in kills:
        await check_ledger_invariants(killed["ledger"], ["run"])


def check_same_ends(
    kills: Sequence[Mapping[str, Any]], unbroken: Mapping[str, Any], moment: str
) -> None:
    assert [killed["how"] for killed in kills] == [-SIGKILL] * (len(kills) - 1) + [0]
    for killed in kills:
        where = f"killed {moment} write {killed['at'] // 2}"
        for what in ("state", "shared", "nodes", "children"):
            assert killed[what] == unbroken[what], f"{what} differ, {where}"
        assert killed["done_again"] == [], f"a finished node ran again, {where}"
