"""The schedules of a ledger, kept in Documents, and a cheap memory of which is due when.

Each change is a compare-and-set on what was read, so a caller who edits a schedule and a server
that runs it cannot undo each other's change. A stamp beside the schedules changes with them:
servers read it once a second, and the schedules only when it is new, or every half minute as a net.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import msgspec

from onward.core.clock import Clock
from onward.core.contract import Backend
from onward.core.errors import Conflict, NextStep, NotFound, Step, TooBusy
from onward.core.task import Instant, encode, new_id
from onward.native.scheduling import rules
from onward.native.scheduling.rules import Schedule
from onward.wire.schedules import Outcome, RunEntry

KIND, STAMP = "schedule", "schedule_stamp"
TOPIC = "schedules"
LOOK_MS, REREAD_MS = 1_000, 30_000
KEEP_MS = 30 * 24 * 3_600_000  # a schedule that is over is shown this long
MOST = 10_000
TRIES = 20  # so many may change one schedule at the same moment

Change = Callable[[Schedule, Instant], Schedule]


class _When(msgspec.Struct):
    """A schedule as far as the clockwork must know it."""

    next_run_at: Instant | None = None
    history: tuple[RunEntry, ...] = ()  # newest first


_decode = msgspec.json.Decoder(Schedule).decode
_decode_when = msgspec.json.Decoder(_When).decode


class Timetable:
    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._documents = backend.documents
        self._bell = backend.bell
        self._clock = clock
        self._next: dict[str, Instant | None] = {}
        self._refused: dict[str, Instant] = {}
        self._stamp: str | None = None
        self._looked_at: Instant = -LOOK_MS
        self._read_at: Instant = -REREAD_MS

    # What callers do.

    async def find(self, name: str) -> Schedule:
        found = await self.read(name)
        if found is None:
            raise _unknown(name)
        return found[0]

    async def all(self) -> Sequence[Schedule]:
        """By name."""
        found = await self._documents.list(KIND, now=self._clock.now())
        return sorted((_decode(doc.body) for doc in found), key=lambda schedule: schedule.name)

    async def create(self, schedule: Schedule) -> tuple[Schedule, bool]:
        """The schedule, and whether it is new. Conflict: another one has this name."""
        found = await self.read(schedule.name)
        if found is None:
            begun = await self._begin(schedule)
            if begun is not None:
                return begun, True
            return await self.create(schedule)
        if rules.same(found[0], schedule):
            return found[0], False
        raise Conflict(
            f"there is another schedule called {schedule.name!r}",
            step=NextStep(Step.REPLACE_SCHEDULE, schedule.name),
        )

    async def replace(
        self, schedule: Schedule, *, paused: bool | None = None
    ) -> tuple[Schedule, bool]:
        """The schedule, and whether it is new. Paused as before, unless `paused` is given."""

        def change(old: Schedule, now: Instant) -> Schedule:
            stays = old.paused if paused is None else paused
            return rules.replaced(old, msgspec.structs.replace(schedule, paused=stays), now)

        if await self.read(schedule.name) is None:
            begun = await self._begin(msgspec.structs.replace(schedule, paused=bool(paused)))
            if begun is not None:
                return begun, True
        return await self.change(schedule.name, change), False

    async def _begin(self, schedule: Schedule) -> Schedule | None:
        """None: another caller has just taken the name."""
        if len(self._next) >= MOST:
            raise TooBusy(f"there are {MOST} schedules", hint="remove those that are over")
        now = self._clock.now()
        begun = rules.begun(schedule, now)
        return begun if await self._put(begun, 0, now) else None

    async def change(self, name: str, change: Change) -> Schedule:
        """What `change` makes of the schedule as it is at that moment."""
        for _ in range(TRIES):
            found = await self.read(name)
            if found is None:
                break
            schedule, version = found
            now = self._clock.now()
            changed = change(schedule, now)
            if changed == schedule or await self._put(changed, version, now):
                return changed
        else:
            raise Conflict("others keep changing this schedule", hint="try again")
        raise _unknown(name)

    async def remove(self, name: str) -> None:
        if not await self._documents.delete(KIND, name):
            raise _unknown(name)
        self._forget(name)
        await self._announce()

    # What the clockwork needs.

    async def refresh(self) -> None:
        """Read again what was changed, here or on another server."""
        now = self._clock.now()
        if 0 <= now - self._looked_at < LOOK_MS:
            return
        # The stamp before the schedules: a change in between is seen at the next look.
        found = await self._documents.get(STAMP, TOPIC, now=now)
        stamp = "" if found is None else found.body
        if stamp != self._stamp or not 0 <= now - self._read_at < REREAD_MS:
            listed = await self._documents.list(KIND, now=now)
            self._next, self._refused = {}, {}
            for doc in listed:
                self._remember(doc.key, _decode_when(doc.body))
            self._stamp, self._read_at = stamp, now
        self._looked_at = now

    def refused(self) -> Mapping[str, Instant]:
        """Schedules whose last run was refused, and since when none was accepted. Of a run on
        another server it is known within half a minute.
        """
        return self._refused

    def _remember(self, name: str, schedule: _When | Schedule) -> None:
        self._next[name] = schedule.next_run_at
        self._refused.pop(name, None)
        for entry in takewhile(lambda entry: entry.outcome is Outcome.REFUSED, schedule.history):
            self._refused[name] = entry.at

    def _forget(self, name: str) -> None:
        self._next.pop(name, None)
        self._refused.pop(name, None)

    def due(self, now: Instant) -> Sequence[str]:
        return [name for name, at in self._next.items() if at is not None and at <= now]

    @property
    def nearest(self) -> Instant | None:
        return min((at for at in self._next.values() if at is not None), default=None)

    def put_off(self, name: str, until: Instant) -> None:
        """This server looks at it again then; the schedule itself stays as it is."""
        if name in self._next:
            self._next[name] = until

    async def read(self, name: str) -> tuple[Schedule, int] | None:
        """A schedule as it is now, and the version that a change of it must quote."""
        found = await self._documents.get(KIND, name, now=self._clock.now())
        if found is None:
            self._forget(name)
            return None
        schedule = _decode(found.body)
        self._remember(name, schedule)
        return schedule, found.version

    async def advance(self, schedule: Schedule, version: int, now: Instant) -> bool:
        """False: another server was faster, or it was changed. A run rings no bell."""
        return await self._put(schedule, version, now, ring=False)

    async def _put(
        self, schedule: Schedule, version: int, now: Instant, *, ring: bool = True
    ) -> bool:
        put = await self._documents.put(
            KIND,
            schedule.name,
            encode(schedule),
            now=now,
            expect=version,
            expires_at=now + KEEP_MS if rules.over(schedule) else None,
        )
        if put is None:
            return False
        self._remember(schedule.name, schedule)
        if ring:
            await self._announce()
        return True

    async def _announce(self) -> None:
        await self._documents.put(STAMP, TOPIC, encode(new_id()), now=self._clock.now())
        self._bell.ring(TOPIC)


def _unknown(name: str) -> NotFound:
    return NotFound(f"no schedule is called {name!r}", step=NextStep(Step.LIST_SCHEDULES))
