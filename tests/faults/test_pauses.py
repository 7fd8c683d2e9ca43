"""A process that was paused: nobody was lost, so nothing is taken away from anybody."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.processes import HTTP, serving
from tests.support import poll_until

pytestmark = pytest.mark.slow

LEASE_MS = 3_000


def test_a_server_that_slept_longer_than_its_leases_loses_no_attempt(tmp_path: Path) -> None:
    with serving(tmp_path, up=True, ONWARD_LEASE_MS=LEASE_MS) as server:
        ids = [
            HTTP.post(
                f"{server.url}/api/v2/tasks", json={"type": "countdown", "payload": {"seconds": 6}}
            ).json()["id"]
            for _ in range(8)
        ]

        def states() -> set[str]:
            found = [HTTP.get(f"{server.url}/api/v2/tasks/{id}").json()["state"] for id in ids]
            return set(found)

        poll_until(states, holds={"running"}.__eq__)
        server.signal(signal.SIGSTOP)
        time.sleep(1.5 * LEASE_MS / 1000)
        server.signal(signal.SIGCONT)
        poll_until(states, holds={"succeeded"}.__eq__)
        for id in ids:
            page = HTTP.get(f"{server.url}/api/v2/tasks/{id}/events").json()
            types = [event["type"] for event in page["items"]]
            assert not {"task.reclaimed", "task.late_result"} & set(types), types
            assert types.count("task.claimed") == 1
