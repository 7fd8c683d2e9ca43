"""Profiles: what each door asks of the core, as data. Only the machine decides by them.

Error classes and retry schedules live here too, so that "is this worth another try, and when?" has
one answer whatever brought the task in.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from types import MappingProxyType

import msgspec

from onward.core.task import Json, TaskId
from onward.faults import Fault, bounded_delay, transient


class BreakerPolicy(StrEnum):
    """Which failures of a task count against the service that it was sent to; see breaker.py."""

    NEVER = "never"
    OUTAGE = "outage"  # those of a service that is away or overloaded; others are the handler's own
    ANY = "any"  # all that are worth another try


NEVER = BreakerPolicy.NEVER  # as QUEUED, beside its class


class RetrySchedule(msgspec.Struct, frozen=True):
    delays_ms: tuple[int, ...]  # the last one repeats
    jitter: tuple[float, float] = (0.0, 0.0)  # as a share of the delay, from … to


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    max_retries: int
    schedules: Mapping[str, RetrySchedule]  # by error class; "Default" is always there
    lease_ms: int
    retention_ms: int  # finished tasks are kept this long
    dead_ms: int | None = None  # dead letters; None: until a person decides
    dead_letters: bool = True  # a last failure is dead (kept for a person) rather than failed
    fails_at_attempt_end: bool = False  # over at once; else as if the attempt had failed
    fails_when_lost: bool = False  # the same of a lost worker
    notifies_at_expiry: bool = False  # an event, once, and the work goes on; else the task ends
    age_ms: int | None = None  # from birth or replay to its end, all together
    promote_ms: int | None = None  # a retry that has so little of its age left goes first
    breaker: BreakerPolicy = BreakerPolicy.OUTAGE
    winds_down: bool = False  # asked to cancel, it is woken and ends itself, in its own time


class Overrides(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one submission set against its profile."""

    max_retries: int | None = None
    backoff_ms: tuple[int, ...] | None = None
    tries_each: int | None = None  # attempts on one worker before another is chosen
    in_turn: bool = False  # workers that are called take turns, however busy they are
    traceparent: str | None = None  # where it stands in its caller's trace; see trace.py

    def encode(self) -> Json | None:
        return None if self == _NONE else msgspec.json.encode(self).decode()


_NONE = Overrides()
_decode_overrides = msgspec.json.Decoder(Overrides).decode

DEAD = "dead"  # among retentions: of dead letters
POISON_AFTER = 5  # deliveries lost in a row
CANCEL_GRACE_MS = 10_000  # how long a running task may take to stop when asked

TRANSIENT = {
    "RateLimitError": "RateLimitError",
    "RATE_LIMITED": "RateLimitError",
    "ServiceUnavailable": "ServiceUnavailable",
    "UNAVAILABLE": "ServiceUnavailable",
    "NetworkTimeout": "NetworkTimeout",
    "TIMEOUT": "NetworkTimeout",
}

BY_ERROR: Mapping[str, RetrySchedule] = {
    "RateLimitError": RetrySchedule((60_000, 120_000, 300_000, 600_000), (0.0, 0.1)),
    "ServiceUnavailable": RetrySchedule((5_000, 10_000, 30_000, 60_000, 120_000), (0.0, 0.1)),
    "NetworkTimeout": RetrySchedule((2_000, 5_000, 10_000, 30_000, 60_000), (0.0, 0.1)),
    "Default": RetrySchedule((5_000, 15_000, 60_000, 300_000), (0.0, 0.1)),
}


PROTOCOL = RetrySchedule((60_000, 300_000, 900_000))
AGENTS = RetrySchedule((1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 50_000), (-0.2, 0.2))  # ≤ 60 s
AT_ONCE = RetrySchedule((0,))


def profiles(
    *,
    lease_ms: int,
    max_retries: int = 3,
    schedules: Mapping[str, RetrySchedule] = BY_ERROR,
    age_ms: int = 3_600_000,
    retention_ms: Mapping[str, int] = MappingProxyType({}),  # by profile, and DEAD for all of them
) -> Mapping[str, Profile]:
    hour, month = 3_600_000, 30 * 24 * 3_600_000
    usual = partial(
        Profile, max_retries=3, schedules=schedules, lease_ms=lease_ms, retention_ms=month
    )
    found = (
        usual(
            name="sync",
            max_retries=0,
            retention_ms=hour,
            dead_letters=False,
            fails_at_attempt_end=True,
            fails_when_lost=True,
            breaker=BreakerPolicy.NEVER,
        ),
        usual(name="console"),
        usual(
            name="streams",
            max_retries=max_retries,
            schedules={"Default": schedules.get("protocol", PROTOCOL)},
            breaker=BreakerPolicy.NEVER,
        ),
        usual(
            name="tasks",
            max_retries=max_retries,
            age_ms=age_ms,
            promote_ms=age_ms // 5,
            breaker=BreakerPolicy.ANY,
        ),
        usual(
            name="flow",
            max_retries=0,
            dead_letters=False,
            breaker=BreakerPolicy.NEVER,
            winds_down=True,
        ),
        usual(name="node", max_retries=0, schedules={"Default": AT_ONCE}, dead_letters=False),
        usual(
            name="session",
            schedules={"Default": schedules.get("agents", AGENTS)},
            notifies_at_expiry=True,
        ),
    )
    return {
        profile.name: msgspec.structs.replace(
            profile,
            retention_ms=retention_ms.get(profile.name, profile.retention_ms),
            dead_ms=retention_ms.get(DEAD),
        )
        for profile in found
    }


def kept_at_most(rules: Mapping[str, Profile], ms: int) -> Mapping[str, Profile]:
    """The same for a ledger whose finished tasks live on elsewhere."""
    return {
        name: msgspec.structs.replace(profile, retention_ms=min(profile.retention_ms, ms))
        for name, profile in rules.items()
    }


def overrides_of(text: Json | None) -> Overrides:
    return _NONE if text is None else _decode_overrides(text)


def error_class(fault: Fault) -> str:
    """Which schedule a transient fault follows."""
    if fault.kind in TRANSIENT:
        return TRANSIENT[fault.kind]
    if fault.status == 429:
        return "RateLimitError"
    if fault.status in (408, 504):
        return "NetworkTimeout"
    return "ServiceUnavailable" if fault.status is not None and fault.status >= 500 else "Default"


def counts_as_failure(fault: Fault, profile: Profile) -> bool:
    """Whether a failure is a sign that the service is away, rather than the task's own."""
    if profile.breaker is BreakerPolicy.NEVER or not transient(fault):
        return False
    return profile.breaker is BreakerPolicy.ANY or error_class(fault) != "Default"


def retry_delay_ms(
    profile: Profile, overrides: Overrides, fault: Fault, *, task: TaskId, retry: int
) -> int:
    """How long to wait before retry number `retry` (counted from 0).

    A worker that asks for another try after so long gets just that. Where only a time is known, as
    from a Retry-After header, the schedule holds, and at least that time.
    """
    after = fault.retry_after_ms
    if fault.retryable and after is not None:
        return bounded_delay(after)
    if overrides.backoff_ms:
        delay = overrides.backoff_ms[min(retry, len(overrides.backoff_ms) - 1)]
    else:
        schedule = profile.schedules.get(error_class(fault)) or profile.schedules["Default"]
        base = schedule.delays_ms[min(retry, len(schedule.delays_ms) - 1)]
        low, high = schedule.jitter
        # Jitter drawn from the task and the retry: spread over tasks, yet the same decision twice.
        draw = zlib.crc32(f"{task}:{retry}".encode()) / 0xFFFFFFFF
        delay = int(base * (1 + low + (high - low) * draw))
    return max(delay, bounded_delay(after or 0))


_NUMBERS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|\d+")


def fingerprint(fault: Fault) -> str:
    """The same for the same kind of death: texts that differ in ids and numbers only are equal."""
    words = _NUMBERS.sub("#", fault.message[:200].lower())
    return f"{fault.kind}:{zlib.crc32(words.encode()):08x}"
