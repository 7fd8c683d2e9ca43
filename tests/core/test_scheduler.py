"""The clockwork: each instant becomes one task, with several servers, crashes and changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from onward.core.clock import ManualClock
from onward.core.contract import Backend, Key
from onward.core.dispatch import Dispatcher
from onward.core.errors import Conflict, Invalid, LedgerUnavailable, NotFound, TooBusy
from onward.core.task import TaskId, new_id
from onward.core.troubles import Troubles
from onward.ledgers import open_backend
from onward.native.scheduling import scheduler, timetable
from onward.native.scheduling.rules import Schedule, paused, resumed
from onward.native.scheduling.scheduler import Scheduler
from onward.native.scheduling.timetable import KEEP_MS, KIND, REREAD_MS, Timetable
from onward.wire.schedules import Missed, Overlap
from tests.contract.ledgers import LEDGERS
from tests.contract.vault import NEW, OLD
from tests.support import PROFILES, a_task, wait_until

MINUTE, DAY = 60_000, 86_400_000


class Server:
    """One server's clockwork. Several of them share a ledger and a clock."""

    def __init__(self, backend: Backend, clock: ManualClock) -> None:
        self.dispatcher = Dispatcher(backend, PROFILES, clock)
        self.timetable = Timetable(backend, clock)
        self.scheduler = Scheduler(backend, clock, self.timetable, self.submit)
        self.refuse: Exception | None = None
        self.handed_in: list[Key] = []
        self._clock = clock

    async def submit(self, schedule: Schedule, key: Key) -> TaskId:
        self.handed_in.append(key)
        if self.refuse is not None:
            raise self.refuse
        task = a_task(id=new_id(), queue=schedule.name, created_at=self._clock.now())
        return (await self.dispatcher.submit(task, key=key)).task

    async def add(self, name: str = "s", **fields: Any) -> Schedule:
        schedule = Schedule(
            name=name, id=new_id(), work="{}", created_at=self._clock.now(), **fields
        )
        return (await self.timetable.create(schedule))[0]


class Town:
    def __init__(self, backend: Backend, clock: ManualClock) -> None:
        self.backend = backend
        self.clock = clock
        self.one, self.two = Server(backend, clock), Server(backend, clock)

    async def strike(self, ms: int) -> None:
        """So much later, both servers look at the clock at the same moment."""
        self.clock.advance(ms)
        await asyncio.gather(self.one.scheduler.turn(), self.two.scheduler.turn())

    async def tasks(self, queue: str = "s") -> int:
        counts = await self.backend.tasks.counts()
        return sum(count for (name, _, _), count in counts.items() if name == queue)

    async def outcomes(self, name: str = "s") -> list[str]:
        return [entry.outcome.value for entry in (await self.one.timetable.find(name)).history]


@pytest.fixture(params=["sqlite-memory", "valkey"])
async def town(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Town]:
    backend = LEDGERS[request.param](tmp_path)
    yield Town(backend, clock)
    await backend.close()


@pytest.fixture
async def lonely(clock: ManualClock, tmp_path: Path) -> AsyncIterator[Town]:
    backend = LEDGERS["sqlite-memory"](tmp_path)
    yield Town(backend, clock)
    await backend.close()


@pytest.mark.contract("S2-11")
async def test_two_servers_make_one_task_of_each_instant(town: Town) -> None:
    await town.one.add(every_ms=MINUTE)
    await town.strike(MINUTE - 1)
    assert await town.tasks() == 0
    for n in range(1, 6):
        await town.strike(MINUTE)
        assert await town.tasks() == n
    assert await town.outcomes() == ["submitted"] * 5
    assert {key.scope for key in town.one.handed_in + town.two.handed_in} == {"schedule"}
    found = await town.two.timetable.find("s")
    assert found.last_run_at == found.created_at + 5 * MINUTE


@pytest.mark.contract("S2-11")
async def test_a_server_that_dies_between_submitting_and_advancing_makes_no_second_task(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    await town.one.add(every_ms=MINUTE)

    async def dies(*_: object) -> bool:
        raise ConnectionError("killed")

    with monkeypatch.context() as killed:
        killed.setattr(town.one.timetable, "advance", dies)
        town.clock.advance(MINUTE)
        await town.one.scheduler.turn()
    assert (await town.tasks(), await town.outcomes()) == (1, [])
    await town.strike(5)
    assert (await town.tasks(), await town.outcomes()) == (1, ["submitted"])
    assert town.one.handed_in[0] == town.two.handed_in[0]


async def test_a_schedule_that_is_changed_while_it_runs_keeps_the_change(town: Town) -> None:
    await town.one.add(every_ms=MINUTE)

    async def meanwhile(schedule: Schedule, key: Key) -> TaskId:
        await town.two.timetable.change("s", lambda found, _: paused(found))
        return await town.one.submit(schedule, key)

    town.one.scheduler._submit = meanwhile
    town.clock.advance(MINUTE)
    await town.one.scheduler.turn()
    found = await town.one.timetable.find("s")
    assert (found.paused, found.next_run_at) == (True, None)
    assert (await town.tasks(), await town.outcomes()) == (1, ["submitted"])
    await town.strike(DAY)
    assert await town.tasks() == 1


@pytest.mark.contract("S2-11")
@pytest.mark.parametrize(
    ("missed", "made", "outcomes"),
    [
        (Missed.SKIP, 0, ["missed"]),
        (Missed.ONCE, 1, ["submitted"]),
        (Missed.ALL, 4, ["submitted"] * 4),
    ],
)
async def test_after_a_time_without_servers_missed_decides(
    town: Town, missed: Missed, made: int, outcomes: list[str]
) -> None:
    await town.one.add(every_ms=6 * 60 * MINUTE, missed=missed)
    await town.strike(DAY + 2 * MINUTE)
    assert (await town.tasks(), await town.outcomes()) == (made, outcomes)
    found = await town.one.timetable.find("s")
    assert found.next_run_at == found.created_at + DAY + 6 * 60 * MINUTE


async def test_of_very_many_missed_the_newest_hundred_are_made_up_for(lonely: Town) -> None:
    await lonely.one.add(every_ms=1_000, missed=Missed.ALL)
    await lonely.strike(DAY)
    assert await lonely.tasks() == 100
    found = await lonely.one.timetable.find("s")
    assert found.last_run_at == lonely.clock.now()


@pytest.mark.contract("S2-11")
async def test_while_a_run_is_not_over_the_next_is_left_out(town: Town) -> None:
    await town.one.add(every_ms=MINUTE, overlap=Overlap.SKIP)
    await town.strike(MINUTE)
    await town.strike(MINUTE)
    assert (await town.tasks(), await town.outcomes()) == (1, ["overlapped", "submitted"])
    last = (await town.one.timetable.find("s")).last_task_id
    assert last is not None
    await town.one.dispatcher.cancel(last)
    await town.strike(MINUTE)
    assert await town.tasks() == 2
    await town.one.add("free", every_ms=MINUTE)
    await town.strike(MINUTE)
    await town.strike(MINUTE)
    assert await town.tasks("free") == 2


async def test_a_last_run_that_does_not_open_does_not_stop_its_schedule(
    tmp_path: Path, clock: ManualClock
) -> None:
    ledger = f"sqlite:///{tmp_path}/onward.db"
    backend = open_backend(ledger, keys=OLD)
    last = a_task(id=new_id())
    await Server(backend, clock).dispatcher.submit(last)
    await backend.close()
    town = Town(open_backend(ledger, keys=NEW), clock)
    await town.one.add(every_ms=MINUTE, overlap=Overlap.SKIP, last_task_id=last.id)
    await town.strike(MINUTE)
    assert await town.outcomes() == ["overlapped"]
    await town.backend.close()


async def test_runs_made_up_for_do_not_overlap_either(lonely: Town) -> None:
    await lonely.one.add(every_ms=MINUTE, overlap=Overlap.SKIP, missed=Missed.ALL)
    await lonely.strike(3 * MINUTE)
    assert await lonely.tasks() == 1
    assert await lonely.outcomes() == ["overlapped", "overlapped", "submitted"]


@pytest.mark.contract("N-5")
async def test_a_paused_schedule_rests_and_goes_on_from_when_it_is_resumed(town: Town) -> None:
    await town.one.add(every_ms=MINUTE)
    await town.strike(MINUTE)
    await town.two.timetable.change("s", lambda found, _: paused(found))
    await town.strike(10 * MINUTE)
    assert await town.tasks() == 1
    await town.two.timetable.change("s", resumed)
    await town.strike(MINUTE - 1)
    assert await town.tasks() == 1
    await town.strike(1)
    assert await town.tasks() == 2


@pytest.mark.contract("N-5")
async def test_a_replaced_schedule_runs_by_its_new_times_on_every_server(town: Town) -> None:
    old = await town.one.add(every_ms=60 * MINUTE)
    await town.strike(MINUTE)
    new = Schedule(name="s", id="x", work="1", created_at=0, run_at=town.clock.now() + MINUTE)
    replaced, fresh = await town.two.timetable.replace(new)
    assert (fresh, replaced.id, replaced.created_at) == (False, old.id, old.created_at)
    await town.strike(MINUTE)
    assert await town.tasks() == 1
    await town.strike(DAY)
    assert await town.tasks() == 1
    twin, fresh = await town.one.timetable.replace(new)
    assert (fresh, twin.next_run_at) == (False, None), "what is over does not begin again"


async def test_a_removed_schedule_is_run_by_nobody_and_its_name_is_free(town: Town) -> None:
    first = await town.one.add(every_ms=MINUTE)
    await town.strike(1)
    await town.two.timetable.remove("s")
    await town.strike(MINUTE)
    assert await town.tasks() == 0
    with pytest.raises(NotFound):
        await town.one.timetable.find("s")
    second = await town.one.add(every_ms=MINUTE)
    assert second.id != first.id
    await town.strike(MINUTE)
    assert await town.tasks() == 1


@pytest.mark.contract("N-5")
async def test_a_trigger_runs_beside_the_times_and_once_by_key(town: Town) -> None:
    schedule = await town.one.add(every_ms=MINUTE, paused=True)
    one = await town.one.scheduler.trigger("s", "monday")
    assert await town.two.scheduler.trigger("s", "monday") == one
    assert await town.two.scheduler.trigger("s") != one
    assert (await town.tasks(), await town.outcomes()) == (2, ["triggered", "triggered"])
    found = await town.one.timetable.find("s")
    assert (found.paused, found.next_run_at) == (True, schedule.next_run_at)


async def test_work_that_is_refused_is_noted_and_the_schedule_goes_on(lonely: Town) -> None:
    lonely.one.refuse = Invalid("payload does not fit")
    await lonely.one.add(every_ms=MINUTE)
    lonely.clock.advance(MINUTE)
    await lonely.one.scheduler.turn()
    found = await lonely.one.timetable.find("s")
    assert (found.history[0].outcome, found.history[0].reason) == (
        "refused",
        "payload does not fit",
    )
    assert found.next_run_at == found.created_at + 2 * MINUTE


async def test_a_ledger_that_is_away_costs_time_and_no_run(lonely: Town) -> None:
    await lonely.one.add("other", every_ms=MINUTE)
    await lonely.one.add(every_ms=MINUTE)
    lonely.one.refuse = LedgerUnavailable("away")
    lonely.clock.advance(MINUTE)
    await lonely.one.scheduler.turn()
    assert await lonely.one.scheduler.turn() == 0, "what failed is not tried again at once"
    assert await lonely.outcomes() == []
    lonely.one.refuse = None
    lonely.clock.advance(1_000)
    await lonely.one.scheduler.turn()
    assert (await lonely.tasks(), await lonely.tasks("other")) == (1, 1)


async def test_one_that_cannot_be_run_does_not_hold_up_the_others(lonely: Town) -> None:
    await lonely.one.add("good", every_ms=MINUTE)
    await lonely.one.add("bad", cron="* * * * *", timezone="Europe/Berlin")
    document = await lonely.backend.documents.get(KIND, "bad", now=lonely.clock.now())
    assert document is not None
    body = document.body.replace("Europe/Berlin", "Nowhere/Land")
    await lonely.backend.documents.put(KIND, "bad", body, now=lonely.clock.now())
    await lonely.strike(2 * MINUTE)
    assert (await lonely.tasks("good"), await lonely.tasks("bad")) == (1, 0)


async def test_a_change_that_nobody_told_of_is_found_within_half_a_minute(
    lonely: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lonely.strike(1)

    async def silent() -> None: ...

    monkeypatch.setattr(lonely.one.timetable, "_announce", silent)
    await lonely.one.add(every_ms=MINUTE)
    lonely.clock.advance(REREAD_MS - 1)
    await lonely.two.scheduler.turn()
    assert lonely.two.timetable.nearest is None
    lonely.clock.advance(1_000)
    await lonely.two.scheduler.turn()
    assert lonely.two.timetable.nearest is not None


async def test_a_clock_that_was_set_back_stops_nothing(lonely: Town) -> None:
    await lonely.strike(0)
    lonely.clock.advance(-DAY)
    await lonely.one.add(every_ms=MINUTE)
    lonely.clock.advance(MINUTE)
    await lonely.two.scheduler.turn()
    assert await lonely.tasks() == 1


async def test_an_idle_clockwork_reads_one_small_document_a_second(
    lonely: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(50):
        await lonely.one.add(f"s{n}", every_ms=DAY)
    await lonely.one.scheduler.turn()
    documents, calls = lonely.backend.documents, []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(documents, name)

        def call(*arguments: Any, **more: Any) -> Any:
            calls.append((name, *arguments))
            return real(*arguments, **more)

        return call

    for name in ("get", "list", "put"):
        monkeypatch.setattr(documents, name, counted(name))
    lonely.clock.advance(1_000)
    for _ in range(10):
        await lonely.one.scheduler.turn()
    assert calls == [("get", "schedule_stamp", "schedules")]


async def test_a_running_clockwork_hears_of_a_new_schedule_at_once(
    lonely: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LONGEST_S", 60)
    clockwork = asyncio.ensure_future(lonely.one.scheduler.run(Troubles()))
    try:
        for _ in range(10):
            await asyncio.sleep(0)  # until it has nothing to do
        await lonely.one.add(run_at=lonely.clock.now())
        await wait_until(lambda: lonely.one.handed_in)
    finally:
        clockwork.cancel()
        await asyncio.gather(clockwork, return_exceptions=True)


async def test_what_changes_on_one_server_is_known_to_the_others_within_a_second(
    town: Town,
) -> None:
    await town.strike(1)
    await town.one.add(every_ms=MINUTE)
    town.clock.advance(1_000)
    await town.two.scheduler.turn()
    assert town.two.timetable.nearest is not None
    await town.one.timetable.remove("s")
    town.clock.advance(1_000)
    await town.two.scheduler.turn()
    assert town.two.timetable.nearest is None


async def test_a_schedule_that_is_removed_while_it_runs_stays_removed(town: Town) -> None:
    await town.one.add(every_ms=MINUTE)

    async def meanwhile(schedule: Schedule, key: Key) -> TaskId:
        await town.two.timetable.remove("s")
        return await town.one.submit(schedule, key)

    town.one.scheduler._submit = meanwhile
    assert await town.one.scheduler.trigger("s") is not None
    assert await town.two.timetable.all() == []


async def test_there_is_an_end_to_how_many_there_can_be(
    lonely: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timetable, "MOST", 2)
    for name in ("a", "b"):
        await lonely.one.add(name, every_ms=MINUTE)
    with pytest.raises(TooBusy, match="there are 2 schedules"):
        await lonely.one.add("c", every_ms=MINUTE)


async def test_of_two_who_take_a_name_one_has_it(town: Town) -> None:
    adding = [town.one.add(every_ms=MINUTE), town.two.add(every_ms=2 * MINUTE)]
    made = await asyncio.gather(*adding, return_exceptions=True)
    assert sorted(isinstance(one, Conflict) for one in made) == [False, True]
    (kept,) = [one for one in made if isinstance(one, Schedule)]
    assert (await town.one.timetable.find("s")).every_ms == kept.every_ms


async def test_a_schedule_that_is_over_is_forgotten_in_the_end(town: Town) -> None:
    await town.one.add(run_at=town.clock.now() + 1)
    await town.one.add("going", every_ms=DAY)
    await town.strike(1)
    town.clock.advance(KEEP_MS - 1)
    assert (await town.one.timetable.find("s")).next_run_at is None
    town.clock.advance(1)
    assert [one.name for one in await town.one.timetable.all()] == ["going"]
