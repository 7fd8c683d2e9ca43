"""A server killed at every step of a flow with every node kind: the run ends all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from onward.flow.nodes import KINDS
from tests.faults.flow_steps import FLOW
from tests.faults.flow_steps import KINDS as USED
from tests.faults.invariants import check_invariants

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, first: int, every: int) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.flow_steps", str(folder), str(first), str(every)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
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
    assert [killed["how"] for killed in kills] == [-SIGKILL] * (len(kills) - 1) + [0]
    assert len(kills) > len(FLOW["nodes"])
    for killed in kills:
        where = f"killed {moment} write {killed['at'] // 2}"
        for what in ("state", "shared", "nodes", "children"):
            assert killed[what] == unbroken[what], f"{what} differ, {where}"
        assert killed["done_again"] == [], f"a finished node ran again, {where}"
    for ledger in tmp_path.glob("*/ledger.db"):
        check_invariants(ledger, ["run"])
