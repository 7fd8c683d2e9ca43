"""The example agent, as its README says to run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import free_port, serving

pytestmark = pytest.mark.slow

AGENT = Path(__file__).parents[2] / "examples" / "agent" / "agent.py"


@pytest.mark.contract("S2-1", "S2-6")
def test_the_agent_hands_off_goes_on_is_told_and_fetches(tmp_path: Path) -> None:
    with serving(tmp_path, up=True) as server:
        done = subprocess.run(
            [sys.executable, str(AGENT)],
            env={**os.environ, "ONWARD_URL": server.url, "PYTHONWARNINGS": "error"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("agent")]
    acknowledged, sum_, going_on, told, *_, fetched = lines
    assert "Your report is under way" in acknowledged
    assert "391" in sum_
    assert "processing" in going_on
    assert "* Your report is ready." in told
    assert "'title': 'Report Q4 2026'" in fetched


def test_the_agent_says_what_to_do_without_a_server(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(AGENT)],
        env={**os.environ, "ONWARD_URL": f"http://127.0.0.1:{free_port()}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "onward up" in done.stderr
