"""The board of what fails again and again, and who reports to it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onward.background import Background
from onward.core import tail
from onward.core.alarm import Alarm
from onward.core.clock import ManualClock
from onward.core.errors import LedgerUnavailable
from onward.core.tail import Tail
from onward.core.task import Event
from onward.core.troubles import LONG_MS, TIMES, Troubles
from tests.core.dispatcher import Observed
from tests.core.dispatcher import dispatcher as dispatcher
from tests.support import a_task, wait_until


class Board(Troubles):
    """A board whose time the test moves."""

    def __init__(self) -> None:
        self.at = 0
        super().__init__(lambda: self.at)


def test_a_job_is_in_trouble_when_it_fails_again_and_again_for_a_while() -> None:
    board = Board()
    for _ in range(TIMES):
        assert not board.in_trouble()
        board.failed("sweep", KeyError("a secret"))
    assert not board.in_trouble(), "many times, but not for long"
    board.at += LONG_MS
    assert board.in_trouble() == {"sweep": f"failed {TIMES} times in a row: KeyError"}
    board.went_well("sweep")
    assert not board.in_trouble()


def test_a_job_that_failed_seldom_is_in_no_trouble() -> None:
    board = Board()
    board.failed("sweep", LedgerUnavailable("away"))
    board.at += 10 * LONG_MS
    assert not board.in_trouble()
    for _ in range(TIMES):
        board.failed("sweep", LedgerUnavailable("away"))
    assert board.in_trouble() == {"sweep": f"failed {TIMES + 1} times in a row: away"}


async def test_work_that_is_repeated_reports_and_recovers() -> None:
    board = Board()
    background = Background(board)
    broken = True

    async def work() -> None:
        board.at += LONG_MS
        if broken:
            raise RuntimeError("no")

    background.every(0, work)
    await wait_until(board.in_trouble)
    (name,) = board.in_trouble()
    assert name.endswith("work")
    broken = False
    await wait_until(lambda: not board.in_trouble())
    await background.close()


async def test_work_that_ends_by_itself_is_in_trouble_at_once() -> None:
    board = Board()
    background = Background(board)

    async def work() -> None:
        raise RuntimeError("no")

    background.run(work())
    await wait_until(board.in_trouble)
    await background.close()


async def test_the_sweep_and_the_readers_of_the_log_report(
    dispatcher: Observed, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "AGAIN_S", 0.001)
    dispatcher.troubles = board = Board()

    class Reader:
        name = "broken"

        async def project(self, events: Sequence[Event]) -> None:
            raise RuntimeError("no")

    async def away(**_: object) -> None:
        raise LedgerUnavailable("away")

    await dispatcher.submit(a_task())
    background = Background(board)
    background.run(Alarm(dispatcher, every_ms=1).run())
    background.run(Tail(dispatcher.backend, Reader(), clock, pace_s=0.001).run(board))
    dispatcher.backend.tasks.due = away  # type: ignore[assignment, method-assign]

    def in_trouble() -> bool:
        board.at += LONG_MS
        return {"alarm", "reader broken"} <= set(board.in_trouble())

    await wait_until(in_trouble)
    await background.close()
