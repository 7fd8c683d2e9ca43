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
from tests.contract.sealed_ledger import NEW, OLD
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


class Servers:
    """Two servers on one ledger, with one clock."""

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
async def servers(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Servers]:
    backend = LEDGERS[request.param](tmp_path)
    yield Servers(backend, clock)
    await backend.close()


@pytest.fixture
async def one_ledger(clock: ManualClock, tmp_path: Path) -> AsyncIterator[Servers]:
    backend = LEDGERS["sqlite-memory"](tmp_path)
    yield Servers(backend, clock)
    await backend.close()


@pytest.mark.contract("S2-11")
async def test_two_servers_make_one_task_of_each_instant(servers: Servers) -> None:
    await servers.one.add(every_ms=MINUTE)
    await servers.strike(MINUTE - 1)
    assert await servers.tasks() == 0
    for n in range(1, 6):
        await servers.strike(MINUTE)
        assert await servers.tasks() == n
    assert await servers.outcomes() == ["submitted"] * 5
    assert {key.scope for key in servers.one.handed_in + servers.two.handed_in} == {"schedule"}
    found = await servers.two.timetable.find("s")
    assert found.last_run_at == found.created_at + 5 * MINUTE


@pytest.mark.contract("S2-11")
async def test_a_server_that_dies_between_submitting_and_advancing_makes_no_second_task(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await servers.one.add(every_ms=MINUTE)

    async def dies(*_: object) -> bool:
        raise ConnectionError("killed")

    with monkeypatch.context() as killed:
        killed.setattr(servers.one.timetable, "advance", dies)
        servers.clock.advance(MINUTE)
        await servers.one.scheduler.turn()
    assert (await servers.tasks(), await servers.outcomes()) == (1, [])
    await servers.strike(5)
    assert (await servers.tasks(), await servers.outcomes()) == (1, ["submitted"])
    assert servers.one.handed_in[0] == servers.two.handed_in[0]


async def test_a_schedule_that_is_changed_while_it_runs_keeps_the_change(servers: Servers) -> None:
    await servers.one.add(every_ms=MINUTE)

    async def meanwhile(schedule: Schedule, key: Key) -> TaskId:
        await servers.two.timetable.change("s", lambda found, _: paused(found))
        return await servers.one.submit(schedule, key)

    servers.one.scheduler._submit = meanwhile
    servers.clock.advance(MINUTE)
    await servers.one.scheduler.turn()
    found = await servers.one.timetable.find("s")
    assert (found.paused, found.next_run_at) == (True, None)
    assert (await servers.tasks(), await servers.outcomes()) == (1, ["submitted"])
    await servers.strike(DAY)
    assert await servers.tasks() == 1


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
    servers: Servers, missed: Missed, made: int, outcomes: list[str]
) -> None:
    await servers.one.add(every_ms=6 * 60 * MINUTE, missed=missed)
    await servers.strike(DAY + 2 * MINUTE)
    assert (await servers.tasks(), await servers.outcomes()) == (made, outcomes)
    found = await servers.one.timetable.find("s")
    assert found.next_run_at == found.created_at + DAY + 6 * 60 * MINUTE


async def test_of_very_many_missed_the_newest_hundred_are_made_up_for(one_ledger: Servers) -> None:
    await one_ledger.one.add(every_ms=1_000, missed=Missed.ALL)
    await one_ledger.strike(DAY)
    assert await one_ledger.tasks() == 100
    found = await one_ledger.one.timetable.find("s")
    assert found.last_run_at == one_ledger.clock.now()


@pytest.mark.contract("S2-11")
async def test_while_a_run_is_not_over_the_next_is_left_out(servers: Servers) -> None:
    await servers.one.add(every_ms=MINUTE, overlap=Overlap.SKIP)
    await servers.strike(MINUTE)
    await servers.strike(MINUTE)
    assert (await servers.tasks(), await servers.outcomes()) == (1, ["overlapped", "submitted"])
    last = (await servers.one.timetable.find("s")).last_task_id
    assert last is not None
    await servers.one.dispatcher.cancel(last)
    await servers.strike(MINUTE)
    assert await servers.tasks() == 2
    await servers.one.add("free", every_ms=MINUTE)
    await servers.strike(MINUTE)
    await servers.strike(MINUTE)
    assert await servers.tasks("free") == 2


async def test_a_last_run_that_does_not_open_does_not_stop_its_schedule(
    tmp_path: Path, clock: ManualClock
) -> None:
    ledger = f"sqlite:///{tmp_path}/onward.db"
    backend = open_backend(ledger, keys=OLD)
    last = a_task(id=new_id())
    await Server(backend, clock).dispatcher.submit(last)
    await backend.close()
    servers = Servers(open_backend(ledger, keys=NEW), clock)
    await servers.one.add(every_ms=MINUTE, overlap=Overlap.SKIP, last_task_id=last.id)
    await servers.strike(MINUTE)
    assert await servers.outcomes() == ["overlapped"]
    await servers.backend.close()


async def test_runs_made_up_for_do_not_overlap_either(one_ledger: Servers) -> None:
    await one_ledger.one.add(every_ms=MINUTE, overlap=Overlap.SKIP, missed=Missed.ALL)
    await one_ledger.strike(3 * MINUTE)
    assert await one_ledger.tasks() == 1
    assert await one_ledger.outcomes() == ["overlapped", "overlapped", "submitted"]


@pytest.mark.contract("N-5")
async def test_a_paused_schedule_rests_and_goes_on_from_when_it_is_resumed(
    servers: Servers,
) -> None:
    await servers.one.add(every_ms=MINUTE)
    await servers.strike(MINUTE)
    await servers.two.timetable.change("s", lambda found, _: paused(found))
    await servers.strike(10 * MINUTE)
    assert await servers.tasks() == 1
    await servers.two.timetable.change("s", resumed)
    await servers.strike(MINUTE - 1)
    assert await servers.tasks() == 1
    await servers.strike(1)
    assert await servers.tasks() == 2


@pytest.mark.contract("N-5")
async def test_a_replaced_schedule_runs_by_its_new_times_on_every_server(servers: Servers) -> None:
    old = await servers.one.add(every_ms=60 * MINUTE)
    await servers.strike(MINUTE)
    new = Schedule(name="s", id="x", work="1", created_at=0, run_at=servers.clock.now() + MINUTE)
    replaced, fresh = await servers.two.timetable.replace(new)
    assert (fresh, replaced.id, replaced.created_at) == (False, old.id, old.created_at)
    await servers.strike(MINUTE)
    assert await servers.tasks() == 1
    await servers.strike(DAY)
    assert await servers.tasks() == 1
    twin, fresh = await servers.one.timetable.replace(new)
    assert (fresh, twin.next_run_at) == (False, None), "what is over does not begin again"


async def test_a_removed_schedule_does_not_run_and_its_name_is_free(servers: Servers) -> None:
    first = await servers.one.add(every_ms=MINUTE)
    await servers.strike(1)
    await servers.two.timetable.remove("s")
    await servers.strike(MINUTE)
    assert await servers.tasks() == 0
    with pytest.raises(NotFound):
        await servers.one.timetable.find("s")
    second = await servers.one.add(every_ms=MINUTE)
    assert second.id != first.id
    await servers.strike(MINUTE)
    assert await servers.tasks() == 1


@pytest.mark.contract("N-5")
async def test_a_trigger_runs_beside_the_times_and_once_by_key(servers: Servers) -> None:
    schedule = await servers.one.add(every_ms=MINUTE, paused=True)
    one = await servers.one.scheduler.trigger("s", "monday")
    assert await servers.two.scheduler.trigger("s", "monday") == one
    assert await servers.two.scheduler.trigger("s") != one
    assert (await servers.tasks(), await servers.outcomes()) == (2, ["triggered", "triggered"])
    found = await servers.one.timetable.find("s")
    assert (found.paused, found.next_run_at) == (True, schedule.next_run_at)


async def test_work_that_is_refused_is_noted_and_the_schedule_goes_on(one_ledger: Servers) -> None:
    one_ledger.one.refuse = Invalid("payload does not fit")
    await one_ledger.one.add(every_ms=MINUTE)
    one_ledger.clock.advance(MINUTE)
    await one_ledger.one.scheduler.turn()
    found = await one_ledger.one.timetable.find("s")
    assert (found.history[0].outcome, found.history[0].reason) == (
        "refused",
        "payload does not fit",
    )
    assert found.next_run_at == found.created_at + 2 * MINUTE


async def test_a_ledger_that_is_away_costs_time_and_no_run(one_ledger: Servers) -> None:
    await one_ledger.one.add("other", every_ms=MINUTE)
    await one_ledger.one.add(every_ms=MINUTE)
    one_ledger.one.refuse = LedgerUnavailable("away")
    one_ledger.clock.advance(MINUTE)
    await one_ledger.one.scheduler.turn()
    assert await one_ledger.one.scheduler.turn() == 0, "what failed is not tried again at once"
    assert await one_ledger.outcomes() == []
    one_ledger.one.refuse = None
    one_ledger.clock.advance(1_000)
    await one_ledger.one.scheduler.turn()
    assert (await one_ledger.tasks(), await one_ledger.tasks("other")) == (1, 1)


async def test_one_that_cannot_be_run_does_not_hold_up_the_others(one_ledger: Servers) -> None:
    await one_ledger.one.add("good", every_ms=MINUTE)
    await one_ledger.one.add("bad", cron="* * * * *", timezone="Europe/Berlin")
    document = await one_ledger.backend.documents.get(KIND, "bad", now=one_ledger.clock.now())
    assert document is not None
    body = document.body.replace("Europe/Berlin", "Nowhere/Land")
    await one_ledger.backend.documents.put(KIND, "bad", body, now=one_ledger.clock.now())
    await one_ledger.strike(2 * MINUTE)
    assert (await one_ledger.tasks("good"), await one_ledger.tasks("bad")) == (1, 0)


async def test_an_unannounced_change_is_found_within_half_a_minute(
    one_ledger: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_ledger.strike(1)

    async def silent() -> None: ...

    monkeypatch.setattr(one_ledger.one.timetable, "_announce", silent)
    await one_ledger.one.add(every_ms=MINUTE)
    one_ledger.clock.advance(REREAD_MS - 1)
    await one_ledger.two.scheduler.turn()
    assert one_ledger.two.timetable.nearest is None
    one_ledger.clock.advance(1_000)
    await one_ledger.two.scheduler.turn()
    assert one_ledger.two.timetable.nearest is not None


async def test_a_clock_that_was_set_back_stops_nothing(one_ledger: Servers) -> None:
    await one_ledger.strike(0)
    one_ledger.clock.advance(-DAY)
    await one_ledger.one.add(every_ms=MINUTE)
    one_ledger.clock.advance(MINUTE)
    await one_ledger.two.scheduler.turn()
    assert await one_ledger.tasks() == 1


async def test_an_idle_clockwork_reads_one_small_document_a_second(
    one_ledger: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(50):
        await one_ledger.one.add(f"s{n}", every_ms=DAY)
    await one_ledger.one.scheduler.turn()
    documents, calls = one_ledger.backend.documents, []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(documents, name)

        def call(*arguments: Any, **more: Any) -> Any:
            calls.append((name, *arguments))
            return real(*arguments, **more)

        return call

    for name in ("get", "list", "put"):
        monkeypatch.setattr(documents, name, counted(name))
    one_ledger.clock.advance(1_000)
    for _ in range(10):
        await one_ledger.one.scheduler.turn()
    assert calls == [("get", "schedule_stamp", "schedules")]


async def test_a_running_clockwork_hears_of_a_new_schedule_at_once(
    one_ledger: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LONGEST_S", 60)
    clockwork = asyncio.ensure_future(one_ledger.one.scheduler.run(Troubles()))
    try:
        for _ in range(10):
            await asyncio.sleep(0)  # until it has nothing to do
        await one_ledger.one.add(run_at=one_ledger.clock.now())
        await wait_until(lambda: one_ledger.one.handed_in)
    finally:
        clockwork.cancel()
        await asyncio.gather(clockwork, return_exceptions=True)


async def test_what_changes_on_one_server_is_known_to_the_others_within_a_second(
    servers: Servers,
) -> None:
    await servers.strike(1)
    await servers.one.add(every_ms=MINUTE)
    servers.clock.advance(1_000)
    await servers.two.scheduler.turn()
    assert servers.two.timetable.nearest is not None
    await servers.one.timetable.remove("s")
    servers.clock.advance(1_000)
    await servers.two.scheduler.turn()
    assert servers.two.timetable.nearest is None


async def test_a_schedule_that_is_removed_while_it_runs_stays_removed(servers: Servers) -> None:
    await servers.one.add(every_ms=MINUTE)

    async def meanwhile(schedule: Schedule, key: Key) -> TaskId:
        await servers.two.timetable.remove("s")
        return await servers.one.submit(schedule, key)

    servers.one.scheduler._submit = meanwhile
    assert await servers.one.scheduler.trigger("s") is not None
    assert await servers.two.timetable.all() == []


async def test_there_is_an_end_to_how_many_there_can_be(
    one_ledger: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timetable, "MOST", 2)
    for name in ("a", "b"):
        await one_ledger.one.add(name, every_ms=MINUTE)
    with pytest.raises(TooBusy, match="there are 2 schedules"):
        await one_ledger.one.add("c", every_ms=MINUTE)


async def test_of_two_who_take_a_name_one_has_it(servers: Servers) -> None:
    adding = [servers.one.add(every_ms=MINUTE), servers.two.add(every_ms=2 * MINUTE)]
    made = await asyncio.gather(*adding, return_exceptions=True)
    assert sorted(isinstance(one, Conflict) for one in made) == [False, True]
    (kept,) = [one for one in made if isinstance(one, Schedule)]
    assert (await servers.one.timetable.find("s")).every_ms == kept.every_ms


async def test_a_schedule_that_is_over_is_forgotten_in_the_end(servers: Servers) -> None:
    await servers.one.add(run_at=servers.clock.now() + 1)
    await servers.one.add("going", every_ms=DAY)
    await servers.strike(1)
    servers.clock.advance(KEEP_MS - 1)
    assert (await servers.one.timetable.find("s")).next_run_at is None
    servers.clock.advance(1)
    assert [one.name for one in await servers.one.timetable.all()] == ["going"]
