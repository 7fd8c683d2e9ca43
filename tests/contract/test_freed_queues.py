"""What a settled task frees, as the other servers of a ledger learn it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.core.clock import ManualClock
from onward.core.contract import Verdict
from onward.core.dispatch import Dispatcher
from onward.core.limits import Bound
from onward.core.outcome import Succeeded
from onward.ledgers import open_backend
from tests.contract.driver import Driver
from tests.contract.ledgers import LASTING
from tests.contract.peers import Peer
from tests.support import PROFILES, wait_until

SHARED = ("redis7", "valkey", "postgres15", "postgres18")


@pytest.mark.contract("L-3", "L-6")
@pytest.mark.parametrize("ledger", SHARED)
async def test_another_server_learns_which_queues_a_bound_frees(
    ledger: str, tmp_path: Path
) -> None:
    """Without: what waits there starts when that server looks by itself, once a second."""
    url = LASTING[ledger](tmp_path)
    backends = [open_backend(url) for _ in range(2)]
    peer = Peer()
    backends[1].bell.attach(peer)
    dispatcher = Dispatcher(backends[0], PROFILES, ManualClock())
    dispatcher.pressure.limits.take([Bound("shared", False, 1, None, ("q", "r"))], {"q", "r"})
    driver = Driver(backends[0])

    async def heard() -> bool:  # not of the first, perhaps: a server listens a while after it opens
        for backend in backends:
            await backend.maintain()
        held = await driver.running()
        assert await dispatcher.settle(held, Succeeded("1")) is Verdict.APPLIED
        return "r" in peer.queues

    await wait_until(heard)
    for backend in backends:
        await backend.close()
