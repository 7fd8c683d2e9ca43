"""When schedules run: zones and changes of clocks, intervals without drift, what was missed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onward.core.errors import Invalid
from onward.native.scheduling import rules
from onward.native.scheduling.rules import Due, Schedule
from onward.wire.schedules import Missed, Outcome, RunEntry
from tests.support import NOW

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour of summer time
    "America/Santiago",  # the gap swallows midnight
    "America/Havana",  # the hour after midnight comes twice
    "Asia/Kolkata",
)


def a_schedule(**fields: Any) -> Schedule:
    plain = {"name": "nightly", "id": "life", "work": "{}", "created_at": NOW}
    return Schedule(**{**plain, **fields})


def at(text: str, zone: str = "Europe/Berlin", *, fold: int = 0) -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(moment.timestamp()) * 1000


def after(schedule: Schedule, instant: int, count: int) -> list[int]:
    return list(islice(rules.instants(schedule, instant), count))


MINUTES = {
    "0": {0},
    "30": {30},
    "5,35": {5, 35},
    "10-12": {10, 11, 12},
    "*/15": {0, 15, 30, 45},
    "*": set(range(60)),
}
HOURS = {
    "0": {0},
    "2": {2},
    "3": {3},
    "1-3": {1, 2, 3},
    "0-23": set(range(24)),
    "*/2": set(range(0, 24, 2)),
    "*": set(range(24)),
}
DAYS: dict[str, Callable[[date], bool]] = {
    "*": lambda _: True,
    "1": lambda day: day.day == 1,
    "25-31": lambda day: day.day >= 25,
    "L": lambda day: (day + timedelta(days=1)).day == 1,
}
MONTHS = {"*": set(range(1, 13)), "3,4,9,10,11": {3, 4, 9, 10, 11}}
WEEKDAYS: dict[str, Callable[[date], bool]] = {
    "*": lambda _: True,
    "SUN": lambda day: day.weekday() == 6,
    "1-5": lambda day: day.weekday() < 5,
    "0#1": lambda day: day.weekday() == 6 and day.day <= 7,
}
crons = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(list(MINUTES)),
    st.sampled_from(list(HOURS)),
    st.sampled_from(list(DAYS)),
    st.sampled_from(list(MONTHS)),
    st.sampled_from(list(WEEKDAYS)),
)


def matches(cron: str, local: datetime) -> bool:
    minute, hour, day, month, weekday = cron.split()
    both = (DAYS[day](local.date()), WEEKDAYS[weekday](local.date()))
    return (
        local.minute in MINUTES[minute]
        and local.hour in HOURS[hour]
        and local.month in MONTHS[month]
        and (all(both) if "*" in (day, weekday) else any(both))
    )


def walked(cron: str, zone: str, now: int, until: int) -> list[int]:
    """What a rule means, found by looking at every minute."""
    known = ZoneInfo(zone)
    first, last = (datetime.fromtimestamp(one // 1000, known) for one in (now, until))
    if cron.split()[0].startswith("*") or cron.split()[1].startswith("*"):
        minutes = range(now // MINUTE * MINUTE, until + 1, MINUTE)
        found = {one for one in minutes if matches(cron, datetime.fromtimestamp(one / 1000, known))}
    else:
        local = first.replace(tzinfo=None, second=0, microsecond=0) - timedelta(hours=3)
        found = set()
        while local <= last.replace(tzinfo=None) + timedelta(hours=3):
            if matches(cron, local):
                found.add(_made_up_for(local, known))
            local += timedelta(minutes=1)
    return sorted(one for one in found if now < one <= until)


def _made_up_for(local: datetime, zone: ZoneInfo) -> int:
    """The first time that it is this late; in a gap, the end of the gap."""
    while True:
        instant = int(local.replace(tzinfo=zone).timestamp())
        if datetime.fromtimestamp(instant, zone).replace(tzinfo=None) == local:
            return instant * 1000
        local += timedelta(minutes=1)


# Where clocks change, and anywhere else.
changes = st.sampled_from(
    [
        at("2026-03-29T01:00"),
        at("2026-10-25T01:30"),
        at("2026-03-08T01:00", "America/New_York"),
        at("2026-11-01T00:30", "America/New_York"),
        at("2026-10-04T01:00", "Australia/Lord_Howe"),
        at("2026-04-05T01:00", "Australia/Lord_Howe"),
        at("2026-09-05T22:30", "America/Santiago"),
        at("2026-04-04T22:30", "America/Santiago"),
        at("2026-03-07T23:00", "America/Havana"),
        at("2026-10-31T23:30", "America/Havana"),
    ]
)
moments = st.builds(
    lambda start, more: start + more,
    changes | st.integers(at("2026-01-01T00:00"), at("2027-01-01T00:00")),
    st.integers(0, 4 * HOUR),
)


@pytest.mark.contract("S2-11")
@given(cron=crons, zone=st.sampled_from(ZONES), now=moments)
@example(
    cron="*/15 0 * * SUN", zone="America/Santiago", now=at("2026-09-05T23:00", "America/Santiago")
)
def test_the_runs_of_a_day_are_those_that_looking_at_every_minute_finds(
    cron: str, zone: str, now: int
) -> None:
    until = now + 30 * HOUR
    ahead = rules.instants(a_schedule(cron=cron, timezone=zone), now)
    assert list(takewhile(lambda one: one <= until, ahead)) == walked(cron, zone, now, until)


@pytest.mark.contract("S2-11")
@given(cron=crons, zone=st.sampled_from(ZONES), now=moments)
@example(
    cron="*/15 0 * * SUN", zone="America/Santiago", now=at("2026-09-05T23:00", "America/Santiago")
)
@example(
    cron="*/15 0-1 * * SUN", zone="America/Santiago", now=at("2026-09-05T23:00", "America/Santiago")
)
def test_the_next_run_is_the_same_wherever_one_starts_to_count(
    cron: str, zone: str, now: int
) -> None:
    schedule = a_schedule(cron=cron, timezone=zone)
    ahead = after(schedule, now, 5)
    assert all(one < two for one, two in pairwise([now, *ahead]))
    for days in (1, 3, 40):
        far = takewhile(lambda one: one <= ahead[-1], rules.instants(schedule, now - days * DAY))
        assert [one for one in far if one > now] == ahead
    for one, two in pairwise([now, *ahead]):
        assert rules.next_after(schedule, one) == two
        assert rules.next_after(schedule, two - 1) == two


@pytest.mark.contract("S2-11")
@given(
    cron=crons,
    zone=st.sampled_from(ZONES),
    now=moments,
    away=st.integers(0, 40 * HOUR),
    missed=st.sampled_from(Missed),
)
def test_what_is_due_is_what_a_walk_through_every_missed_instant_finds(
    cron: str, zone: str, now: int, away: int, missed: Missed
) -> None:
    schedule = a_schedule(cron=cron, timezone=zone, missed=missed)
    first = rules.next_after(schedule, now - away)
    schedule = a_schedule(cron=cron, timezone=zone, missed=missed, next_run_at=first)
    passed = list(takewhile(lambda one: one <= now, rules.instants(schedule, now - away)))
    assert rules.due(schedule, now) == _expected(missed, passed, now)
    following = rules.advanced(schedule, now).next_run_at
    assert following is None or following > now


@pytest.mark.contract("S2-11")
@given(
    every=st.integers(1_000, 3 * DAY),
    since=st.integers(0, 400 * DAY),
    away=st.integers(0, 3 * DAY),
    missed=st.sampled_from(Missed),
)
@example(every=1_000, since=400 * DAY, away=400 * DAY, missed=Missed.ALL)
def test_an_interval_keeps_its_phase_however_long_no_server_ran(
    every: int, since: int, away: int, missed: Missed
) -> None:
    now = NOW + since
    schedule = a_schedule(every_ms=every, missed=missed)
    first = rules.next_after(schedule, now - away)
    assert first is not None
    assert max(NOW, now - away) < first <= max(NOW, now - away) + every
    assert (first - NOW) % every == 0
    schedule = a_schedule(every_ms=every, missed=missed, next_run_at=first)
    passed = list(range(first, now + 1, every)) if first <= now else []
    assert rules.due(schedule, now) == _expected(missed, passed, now)
    following = rules.advanced(schedule, now).next_run_at
    assert following is not None
    assert now < following <= now + every
    assert (following - NOW) % every == 0


def _expected(missed: Missed, passed: list[int], now: int) -> Due:
    if not passed:
        return Due(())
    if missed is Missed.ONCE:
        return Due((passed[-1],))
    if missed is Missed.ALL:
        runs = tuple(passed[-100:])
        return Due(runs, passed[0] if len(passed) > 100 else None)
    if now - passed[-1] > MINUTE:
        return Due((), passed[0])
    return Due((passed[-1],), passed[0] if len(passed) > 1 else None)


# Changes of clocks, as docs/how-to/schedules.md tells of them.


def test_a_run_at_an_hour_that_is_skipped_comes_right_after_the_gap() -> None:
    schedule = a_schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    assert after(schedule, at("2026-03-28T12:00"), 2) == [
        at("2026-03-29T03:00"),
        at("2026-03-30T02:30"),
    ]
    both = a_schedule(cron="0,30 2,3 * * *", timezone="Europe/Berlin")
    assert after(both, at("2026-03-29T00:00"), 3) == [
        at("2026-03-29T03:00"),
        at("2026-03-29T03:30"),
        at("2026-03-30T02:00"),
    ]


def test_a_run_at_an_hour_that_comes_twice_comes_once() -> None:
    schedule = a_schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    first, tomorrow = at("2026-10-25T02:30"), at("2026-10-26T02:30")
    assert after(schedule, at("2026-10-24T12:00"), 2) == [first, tomorrow]
    for local in ("02:10", "02:30", "02:50"):
        again = at(f"2026-10-25T{local}", fold=1)
        assert rules.next_after(schedule, again) == tomorrow
    both = a_schedule(cron="0,30 2,3 * * *", timezone="Europe/Berlin")
    assert after(both, at("2026-10-25T00:00"), 4) == [
        at(f"2026-10-25T{local}") for local in ("02:00", "02:30", "03:00", "03:30")
    ]


def test_a_rule_with_a_star_goes_by_elapsed_time() -> None:
    hourly = a_schedule(cron="30 * * * *", timezone="Europe/Berlin")
    for day in ("2026-03-29", "2026-10-25"):
        runs = after(hourly, at(f"{day}T00:00"), 6)
        assert {two - one for one, two in pairwise(runs)} == {HOUR}


def test_a_daily_run_stays_at_its_local_hour() -> None:
    schedule = a_schedule(cron="0 9 * * *", timezone="Europe/Berlin")
    runs = after(schedule, at("2026-03-27T12:00"), 3)
    assert [two - one for one, two in pairwise(runs)] == [DAY - HOUR, DAY]


# Words.


@pytest.mark.parametrize(
    ("nickname", "rule"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@WEEKLY", "0 0 * * 0"),
        (" @monthly ", "0 0 1 * *"),
    ],
)
def test_nicknames_stand_for_rules(nickname: str, rule: str) -> None:
    rules.check_cron(nickname)
    assert after(a_schedule(cron=nickname), NOW, 3) == after(a_schedule(cron=rule), NOW, 3)


def test_six_fields_begin_with_seconds() -> None:
    schedule = a_schedule(cron="*/20 * * * * *")
    assert after(schedule, at("2026-01-01T00:00:05"), 3) == [
        at(f"2026-01-01T00:{time}") for time in ("00:20", "00:40", "01:00")
    ]


@given(st.text("0123456789*/-,LW#@ SUNMO", max_size=30))
@example("0 0 * * 5L/2")
@example("0 0 30 2 *")
@example("")
def test_a_rule_is_understood_or_refused_with_an_example(cron: str) -> None:
    refused: Invalid | None = None
    try:
        rules.check_cron(cron)
    except Invalid as error:
        refused = error
    if refused is None:
        rules.described(cron)
        first = rules.next_after(a_schedule(cron=cron), NOW)
        assert first is None or first > NOW
    else:
        assert refused.pointer == "/cron"
        assert "30 9 * * MON-FRI" in str(refused.hint)


def test_a_rule_that_never_comes_is_refused() -> None:
    with pytest.raises(Invalid, match="bad day-of-month"):
        rules.check_cron("0 0 31 2,4 *")
    with pytest.raises(Invalid, match="never comes"):
        rules.begun(a_schedule(cron="0 0 */30 * 1#3", timezone="Europe/Berlin"), NOW)


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("../../etc/passwd", "names are as in Europe/Berlin, or UTC"),
        ("localtime", "names are as in Europe/Berlin, or UTC"),
        ("America", "did you mean America/"),
        ("", "names are as in Europe/Berlin, or UTC"),
        ("a\0b", "names are as in Europe/Berlin, or UTC"),
    ],
)
def test_a_time_zone_that_is_not_there_is_refused(zone: str, hint: str) -> None:
    with pytest.raises(Invalid, match="no time zone") as refused:
        rules.check_zone(zone)
    assert refused.value.pointer == "/timezone"
    assert str(refused.value.hint).startswith(hint)


# What people do.


def test_a_new_schedule_waits_for_its_first_instant() -> None:
    assert rules.begun(a_schedule(every_ms=5_000), NOW).next_run_at == NOW + 5_000
    assert rules.begun(a_schedule(run_at=NOW + 7), NOW).next_run_at == NOW + 7
    assert rules.begun(a_schedule(run_at=NOW - 7), NOW).next_run_at == NOW - 7
    assert rules.begun(a_schedule(every_ms=5_000, paused=True), NOW).next_run_at is None
    with pytest.raises(Invalid, match="in the past"):
        rules.begun(a_schedule(run_at=NOW // 1000), NOW)


def test_once_is_once() -> None:
    schedule = rules.begun(a_schedule(run_at=NOW + 7), NOW)
    assert rules.upcoming(schedule, 5) == (NOW + 7,)
    assert rules.due(schedule, NOW + 6) == Due(())
    assert rules.due(schedule, NOW + DAY) == Due((NOW + 7,))
    done = rules.advanced(schedule, NOW + DAY)
    assert done.next_run_at is None
    assert rules.over(done)
    assert rules.upcoming(done, 5) == ()


def test_what_fell_into_a_pause_was_not_missed() -> None:
    schedule = rules.begun(a_schedule(every_ms=MINUTE, missed=Missed.ALL), NOW)
    rests = rules.paused(schedule)
    assert (rests.next_run_at, rules.over(rests)) == (None, False)
    assert rules.due(rests, NOW + DAY) == Due(())
    back = rules.resumed(rests, NOW + DAY + 1)
    assert (back.paused, back.next_run_at) == (False, NOW + DAY + MINUTE)
    assert rules.resumed(back, NOW + 2 * DAY) is back
    once = rules.paused(rules.begun(a_schedule(run_at=NOW + 7), NOW))
    assert rules.over(rules.resumed(once, NOW + 8))


def test_new_times_begin_now_and_the_past_is_kept() -> None:
    old = rules.begun(a_schedule(every_ms=MINUTE), NOW)
    old = rules.noted(old, RunEntry(at=NOW, outcome=Outcome.SUBMITTED, task_id="t1"))
    new = a_schedule(id="other", created_at=NOW + 500, every_ms=2 * MINUTE)
    changed = rules.replaced(old, new, NOW + 3 * MINUTE + 500)
    assert (changed.id, changed.created_at, changed.last_task_id) == ("life", NOW, "t1")
    assert (changed.every_ms, changed.next_run_at) == (2 * MINUTE, NOW + 4 * MINUTE)


def test_new_work_at_the_old_times_changes_no_time() -> None:
    done = rules.advanced(rules.begun(a_schedule(run_at=NOW + 7), NOW), NOW + 10)
    changed = rules.replaced(done, a_schedule(run_at=NOW + 7, work='{"type":"b"}'), NOW + DAY)
    assert (changed.work, changed.next_run_at) == ('{"type":"b"}', None)
    late = rules.begun(a_schedule(every_ms=MINUTE), NOW)
    kept = rules.replaced(late, a_schedule(every_ms=MINUTE, work="1"), NOW + DAY)
    assert kept.next_run_at == NOW + MINUTE, "what was missed is still to be run"
    rests = rules.replaced(late, a_schedule(every_ms=MINUTE, paused=True), NOW)
    assert (rests.paused, rests.next_run_at) == (True, None)
    back = rules.replaced(rests, a_schedule(every_ms=MINUTE), NOW + DAY)
    assert (back.paused, back.next_run_at) == (False, NOW + DAY + MINUTE)


def test_the_same_is_what_says_the_same() -> None:
    one = a_schedule(cron="@daily", work='{"type":"a","payload":{"x":1,"y":2}}')
    twin = a_schedule(
        cron="@daily", work='{"payload":{"y":2,"x":1},"type":"a"}', id="b", created_at=0
    )
    assert rules.same(one, twin)
    for other in (
        {"work": '{"type":"a","payload":{"x":true,"y":2}}'},
        {"timezone": "Europe/Berlin"},
        {"missed": Missed.ALL},
        {"cron": "@weekly"},
    ):
        assert not rules.same(one, a_schedule(**{"cron": "@daily", "work": one.work, **other}))


def test_history_is_short_and_holds_each_task_once() -> None:
    schedule = a_schedule(every_ms=MINUTE)
    for n in range(30):
        schedule = rules.noted(
            schedule, RunEntry(at=NOW + n, outcome=Outcome.SUBMITTED, task_id=f"t{n}")
        )
    assert [entry.task_id for entry in schedule.history] == [f"t{n}" for n in range(29, 19, -1)]
    assert (schedule.last_run_at, schedule.last_task_id) == (NOW + 29, "t29")
    known = RunEntry(at=NOW + 99, outcome=Outcome.TRIGGERED, task_id="t25")
    assert rules.noted(schedule, known) is schedule
    skipped = rules.noted(schedule, RunEntry(at=NOW + 99, outcome=Outcome.OVERLAPPED, reason="t29"))
    assert skipped.history[0].outcome is Outcome.OVERLAPPED
    assert (skipped.last_run_at, skipped.last_task_id) == (NOW + 29, "t29")


def test_a_month_of_missed_seconds_is_not_walked_through() -> None:
    schedule = a_schedule(cron="* * * * * *", missed=Missed.ALL, next_run_at=NOW)
    began = datetime.now(UTC)
    runs = rules.due(schedule, NOW + 30 * DAY).runs
    assert len(runs) == 100
    assert runs[-1] == NOW + 30 * DAY
    assert datetime.now(UTC) - began < timedelta(seconds=1)
