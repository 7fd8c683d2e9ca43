"""When a schedule runs: its next instant, what came due, what was missed. Pure; `now` is given.

A cron rule is read in its time zone as Debian's cron reads it: an hour that the clocks skip is made
up for right after the gap, an hour that comes twice counts once; a rule whose minute or hour is a
star goes by elapsed time. An interval keeps its phase from the schedule's birth and never drifts.
"""

from __future__ import annotations

import difflib
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec
from cronsim import CronSim, CronSimError

from onward.core.errors import Invalid, NextStep, Step
from onward.core.task import Instant, Json, TaskId
from onward.wire.schedules import LATEST, ZONE, Missed, RunEntry, ScheduleTimes

ON_TIME_MS = 60_000  # a run this late counts as on time, and was not missed
MOST_MISSED = 100  # runs made up for at once
KEPT = 10  # entries in a schedule's history
RULES = ("cron", "every_ms", "run_at")
LOCAL = "localtime"  # of which each server has its own idea
CRON_EXAMPLE = "five fields as in '30 9 * * MON-FRI': minute, hour, day of month, month, weekday"
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LOOK_BACK_MS = 120_000
_SOON_MS = 3 * 3_600_000  # no clock is set back by more


class Schedule(ScheduleTimes, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """As it is stored."""

    name: str
    id: str  # of this life: a schedule made anew under an old name is another one
    work: Json  # what each run is: the fields of `ScheduleBody` that are given
    created_at: Instant
    owner: str | None = None  # the id of the key that wrote it, and so of its tasks
    paused: bool = False
    next_run_at: Instant | None = None  # None: paused, or over
    last_run_at: Instant | None = None
    last_task_id: TaskId | None = None
    history: tuple[RunEntry, ...] = ()  # newest first


class Due(NamedTuple):
    runs: tuple[Instant, ...]  # oldest first
    passed: Instant | None = None  # the first instant that is not made up for


# When.


def instants(schedule: Schedule, after: Instant) -> Iterator[Instant]:
    """Every instant after this one, in order."""
    if schedule.run_at is not None:
        if schedule.run_at > after:
            yield schedule.run_at
    elif schedule.every_ms is not None:
        at = _beat(schedule, schedule.every_ms, after) + schedule.every_ms
        while at <= LATEST:
            yield at
            at += schedule.every_ms
    elif schedule.cron is not None:
        yield from _by_cron(_written_out(schedule.cron), _zone(schedule.timezone), after)


def _by_cron(rule: str, zone: tzinfo, after: Instant) -> Iterator[Instant]:
    """The rule is asked for local times, as if clocks never changed; what a change does, we say.

    An instant is then the same wherever one starts to count from, so servers agree on it.
    """
    start = _local(after, zone)
    # Clocks that are about to be set back will show these times once more.
    back = _offset(start) - _offset(_local(after + _SOON_MS, zone))
    local = start.replace(tzinfo=None, fold=0) - max(back, timedelta())
    elapsed = _by_elapsed_time(rule)
    waiting: list[Instant] = []
    for moment in CronSim(rule, local):
        for at in _readings(moment, zone, twice=elapsed):
            heappush(waiting, at)
        while waiting and waiting[0] <= _instant(moment, zone):
            at = heappop(waiting)
            if at > after:
                after = at
                yield at


def _readings(moment: datetime, zone: tzinfo, *, twice: bool) -> Iterator[Instant]:
    """When clocks in the zone show this time: once; in a gap, right after it.

    With `twice`: each time that they show it, be it never.
    """
    if twice:
        for at in {_instant(moment, zone), _instant(moment.replace(fold=1), zone)}:
            if _shows(zone, at, moment):
                yield at
        return
    while not _shows(zone, at := _instant(moment, zone), moment):
        moment += timedelta(minutes=1)
    yield at


def _by_elapsed_time(rule: str) -> bool:
    fields = rule.split()
    return len(fields) == 6 or fields[0].startswith("*") or fields[1].startswith("*")


def _instant(moment: datetime, zone: tzinfo) -> Instant:
    return int(moment.replace(tzinfo=zone).timestamp()) * 1000


def _local(at: Instant, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at // 1000, zone)


def _shows(zone: tzinfo, at: Instant, moment: datetime) -> bool:
    return _local(at, zone).replace(tzinfo=None) == moment


def _offset(moment: datetime) -> timedelta:
    return moment.utcoffset() or timedelta()


def next_after(schedule: Schedule, after: Instant) -> Instant | None:
    return next(instants(schedule, after), None)


def upcoming(schedule: Schedule, most: int) -> tuple[Instant, ...]:
    """The instants ahead, the next one first."""
    if schedule.next_run_at is None:
        return ()
    return (schedule.next_run_at, *islice(instants(schedule, schedule.next_run_at), most - 1))


def due(schedule: Schedule, now: Instant) -> Due:
    """Which instants are to be run now, by what the schedule says of those it missed."""
    first = schedule.next_run_at
    if first is None or first > now:
        return Due(())
    most = MOST_MISSED if schedule.missed is Missed.ALL else 1
    runs = tuple(_newest(schedule, first, now, most))
    if schedule.missed is Missed.SKIP and now - runs[-1] > ON_TIME_MS:
        return Due((), first)
    # With "once" the last run stands for all before it: nothing is dropped.
    dropped = schedule.missed is not Missed.ONCE and first < runs[0]
    return Due(runs, first if dropped else None)


def _newest(schedule: Schedule, first: Instant, now: Instant, most: int) -> list[Instant]:
    """At most so many instants from `first` to `now`, the newest, in order; at least `first`."""
    if schedule.every_ms is not None:
        last = max(first, _beat(schedule, schedule.every_ms, now))
        count = min(most, (last - first) // schedule.every_ms + 1)
        return [last - back * schedule.every_ms for back in reversed(range(count))]
    # Looked for from near to far: a month of missed minutes is not walked through for the last one.
    span = _LOOK_BACK_MS
    while True:
        start = max(first - 1, now - span)
        found = list(takewhile(lambda at: at <= now, instants(schedule, start)))
        if len(found) >= most or start == first - 1:
            return found[-most:] or [first]
        span *= 4


def _beat(schedule: Schedule, every_ms: int, at: Instant) -> Instant:
    """The last beat of an interval at that instant, or the schedule's birth."""
    return schedule.created_at + max(0, at - schedule.created_at) // every_ms * every_ms


# What a caller, or the clock, makes of it.


def begun(schedule: Schedule, now: Instant) -> Schedule:
    """A new schedule, or one with new times, as it is kept. Invalid: it would never run."""
    if schedule.run_at is not None and schedule.run_at < now - ON_TIME_MS:
        raise Invalid(
            "run_at lies in the past; instants are epoch milliseconds",
            pointer="/run_at",
            step=NextStep(Step.SUBMIT_NOW),
        )
    first = next_after(schedule, now) if schedule.run_at is None else schedule.run_at
    if first is None:
        raise Invalid(f"cron {schedule.cron!r} never comes", pointer="/cron", hint=CRON_EXAMPLE)
    return _with(schedule, next_run_at=None if schedule.paused else first)


def replaced(old: Schedule, new: Schedule, now: Instant) -> Schedule:
    """The new definition in the old one's place: same life, same phase, same past."""
    kept = _with(
        new,
        id=old.id,
        created_at=old.created_at,
        last_run_at=old.last_run_at,
        last_task_id=old.last_task_id,
        history=old.history,
    )
    if _times(old) != _times(new):
        return begun(kept, now)
    kept = _with(kept, paused=old.paused, next_run_at=old.next_run_at)
    return paused(kept) if new.paused else resumed(kept, now)


def paused(schedule: Schedule) -> Schedule:
    return _with(schedule, paused=True, next_run_at=None)


def resumed(schedule: Schedule, now: Instant) -> Schedule:
    """From now on. What fell into the pause was meant not to run: it was not missed."""
    if not schedule.paused:
        return schedule
    return _with(schedule, paused=False, next_run_at=next_after(schedule, now))


def advanced(schedule: Schedule, now: Instant) -> Schedule:
    return _with(schedule, next_run_at=next_after(schedule, now))


def noted(schedule: Schedule, entry: RunEntry) -> Schedule:
    """With this in its history; a run is its last one from now on. Twice the same is once."""
    history = (entry, *schedule.history)[:KEPT]
    if entry.task_id is None:
        return _with(schedule, history=history)
    if any(entry.task_id == seen.task_id for seen in schedule.history):
        return schedule
    return _with(schedule, history=history, last_run_at=entry.at, last_task_id=entry.task_id)


def over(schedule: Schedule) -> bool:
    """It will never run again by itself."""
    return schedule.next_run_at is None and not schedule.paused


def same(one: Schedule, other: Schedule) -> bool:
    """Whether both run the same work at the same times, wherever they stand in time."""
    return _compared(one) == _compared(other)


def _compared(schedule: Schedule) -> tuple[object, ...]:
    # Encoded in one order of keys, not compared as values: to Python, 1 and true are the same.
    work = msgspec.json.encode(msgspec.json.decode(schedule.work), order="deterministic")
    return (*_times(schedule), schedule.missed, schedule.overlap, work)


def _times(schedule: Schedule) -> tuple[object, ...]:
    return (schedule.cron, schedule.every_ms, schedule.run_at, schedule.timezone)


def _with(schedule: Schedule, **changes: object) -> Schedule:
    return msgspec.structs.replace(schedule, **changes)


# Words that people write.


def check_times(times: ScheduleTimes) -> None:
    """Invalid: not exactly one rule is given, or it cannot be read."""
    given = [name for name in RULES if getattr(times, name) is not None]
    if len(given) != 1:
        raise Invalid(
            "give exactly one of cron, every_ms and run_at",
            pointer=f"/{given[1] if given else 'cron'}",
            hint=f"cron is {CRON_EXAMPLE}",
        )
    check_zone(times.timezone)
    if times.cron is not None:
        check_cron(times.cron)


def check_cron(text: str) -> None:
    try:
        CronSim(_written_out(text), datetime(2000, 1, 1, tzinfo=UTC))
    except (CronSimError, AssertionError) as error:  # it asserts what it cannot make sense of
        why = str(error) or "Bad field"
        raise Invalid(
            f"cron {text!r}: {why[0].lower()}{why[1:]}", pointer="/cron", hint=CRON_EXAMPLE
        ) from None


def check_zone(name: str) -> None:
    if not _is_zone(name):
        near = difflib.get_close_matches(name, _zones(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "names are as in Europe/Berlin, or UTC"
        raise Invalid(f"no time zone {name!r}", pointer="/timezone", hint=hint)


@lru_cache(maxsize=1024)
def described(cron: str) -> str:
    """A cron rule in words."""
    text: str = CronSim(_written_out(cron), datetime(2000, 1, 1, tzinfo=UTC)).explain()
    return text


def _written_out(cron: str) -> str:
    return NICKNAMES.get(cron.strip().lower(), cron)


def _zone(name: str) -> tzinfo:
    return UTC if name == ZONE else zoneinfo.ZoneInfo(name)


def _is_zone(name: str) -> bool:
    try:
        _zone(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return name != LOCAL


@cache
def _zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones() - {LOCAL})
