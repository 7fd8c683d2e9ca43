"""Is it worth another try, and when? (R-5)"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.core.policy import (
    BY_ERROR,
    TRANSIENT,
    Overrides,
    error_class,
    fingerprint,
    overrides_of,
    retry_delay_ms,
)
from onward.faults import LONGEST_DELAY_MS, PERMANENT, Fault, transient
from tests.support import PROFILES

CONSOLE = PROFILES["console"]
NONE = Overrides()


def fault(kind: str = "Odd", status: int | None = None, retryable: bool | None = None) -> Fault:
    return Fault(kind=kind, message="m", status=status, retryable=retryable)


def delay(error: Fault, *, retry: int = 0, task: str = "t", overrides: Overrides = NONE) -> int:
    return retry_delay_ms(CONSOLE, overrides, error, task=task, retry=retry)


@pytest.mark.contract("R-5")
def test_the_workers_own_word_comes_first() -> None:
    assert transient(fault("InvalidInput", 400, retryable=True))
    assert not transient(fault("RateLimitError", 503, retryable=False))


@pytest.mark.contract("R-5")
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 599])
def test_then_the_status_some_may_pass(status: int) -> None:
    assert transient(fault("InvalidInput", status))


@pytest.mark.contract("R-5")
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 499])
def test_then_the_status_some_will_not(status: int) -> None:
    assert not transient(fault("RateLimitError", status))


@pytest.mark.contract("R-5")
def test_then_the_name() -> None:
    names = "RateLimitError ServiceUnavailable NetworkTimeout TIMEOUT UNAVAILABLE RATE_LIMITED"
    assert set(names.split()) == set(TRANSIENT)
    assert all(transient(fault(name)) for name in TRANSIENT)
    names = "InvalidInput SchemaInvalid MissingField AuthError PermissionDenied NotFound"
    assert set(names.split()) == PERMANENT
    assert not any(transient(fault(name)) for name in PERMANENT)


@pytest.mark.contract("R-5")
def test_an_unknown_error_is_worth_a_retry() -> None:
    assert transient(fault("Surprise"))
    assert error_class(fault("Surprise")) == "Default"
    assert transient(fault("Surprise", 200)), "a status that says nothing is not asked"


def test_the_schedule_follows_the_name_then_the_status() -> None:
    assert error_class(fault("TIMEOUT", 503)) == "NetworkTimeout"
    assert error_class(fault(status=429)) == "RateLimitError"
    assert error_class(fault(status=408)) == "NetworkTimeout"
    assert error_class(fault(status=504)) == "NetworkTimeout"
    assert error_class(fault(status=503)) == "ServiceUnavailable"
    assert error_class(fault(retryable=True)) == "Default"


SCHEDULES_S = {
    "RateLimitError": (60, 120, 300, 600),
    "ServiceUnavailable": (5, 10, 30, 60, 120),
    "NetworkTimeout": (2, 5, 10, 30, 60),
    "Default": (5, 15, 60, 300),
}


@pytest.mark.parametrize("kind", SCHEDULES_S)
def test_each_class_has_its_schedule_and_the_last_delay_repeats(kind: str) -> None:
    expected = SCHEDULES_S[kind]
    assert BY_ERROR[kind].delays_ms == tuple(seconds * 1000 for seconds in expected)
    for retry, seconds in enumerate((*expected, expected[-1], expected[-1])):
        assert seconds * 1000 <= delay(fault(kind), retry=retry) <= seconds * 1100


@given(task=st.text(max_size=40), retry=st.integers(0, 50), kind=st.sampled_from([*SCHEDULES_S]))
def test_jitter_adds_up_to_a_tenth_and_is_the_same_twice(task: str, retry: int, kind: str) -> None:
    base = BY_ERROR[kind].delays_ms[min(retry, len(BY_ERROR[kind].delays_ms) - 1)]
    drawn = delay(fault(kind), retry=retry, task=task)
    assert base <= drawn <= base * 1.1
    assert drawn == delay(fault(kind), retry=retry, task=task)


def test_jitter_spreads_tasks_that_failed_together() -> None:
    drawn = {delay(fault("RateLimitError"), task=f"task-{n}") for n in range(200)}
    assert len(drawn) > 150
    assert max(drawn) - min(drawn) > 4_000


@given(after=st.integers(0, 10**7), retry=st.integers(0, 5))
def test_the_longer_of_retry_after_and_schedule_wins(after: int, retry: int) -> None:
    plain = delay(fault("ServiceUnavailable"), retry=retry)
    asked = Fault(kind="ServiceUnavailable", message="m", retry_after_ms=after)
    assert delay(asked, retry=retry) == max(plain, after)


@given(after=st.integers(0, 10**9), retry=st.integers(0, 5))
def test_a_worker_that_wants_another_try_after_a_while_gets_just_that(
    after: int, retry: int
) -> None:
    asked = Fault(kind="TryAgain", message="m", retryable=True, retry_after_ms=after)
    assert delay(asked, retry=retry) == after
    assert delay(asked, retry=retry, overrides=Overrides(backoff_ms=(7,))) == after


def test_no_worker_puts_a_retry_off_for_ever() -> None:
    for after, expected in ((10**18, LONGEST_DELAY_MS), (-5, 0)):
        asked = Fault(kind="TryAgain", message="m", retryable=True, retry_after_ms=after)
        assert delay(asked) == expected


@pytest.mark.contract("S1-7")
def test_a_submission_may_bring_its_own_schedule() -> None:
    mine = Overrides(backoff_ms=(10, 20))
    assert [delay(fault(), retry=n, overrides=mine) for n in range(4)] == [10, 20, 20, 20]
    asked = Fault(kind="Odd", message="m", retry_after_ms=500)
    assert delay(asked, overrides=mine) == 500


def test_overrides_travel_as_text_and_nothing_as_nothing() -> None:
    assert NONE.encode() is None
    assert overrides_of(None) == NONE
    mine = Overrides(max_retries=0, backoff_ms=(1, 2))
    assert overrides_of(mine.encode()) == mine


def test_two_deaths_of_the_same_kind_share_a_fingerprint() -> None:
    def death(message: str, kind: str = "Odd") -> str:
        return fingerprint(Fault(kind=kind, message=message))

    assert death("row 17 of file 0xFF") == death("row 99999 of file 0x12ab")
    first, second = "0198f0aa-1111-7000-8000-aaaaaaaaaaaa", "0198f0ab-2222-7abc-9def-bbbbbbbbbbbb"
    assert death(f"no user {first}") == death(f"no user {second}")
    assert death("no row") != death("no file")
    assert death("no row") != death("no row", kind="Other")


@pytest.mark.contract("S2-8")
def test_work_of_a_session_is_tried_again_after_1_2_and_4_seconds_give_or_take_a_fifth() -> None:
    session = PROFILES["session"]
    for retry, seconds in enumerate((1, 2, 4)):
        delays = {
            retry_delay_ms(session, NONE, fault("UNAVAILABLE"), task=f"t{at}", retry=retry)
            for at in range(200)
        }
        assert min(delays) >= seconds * 800
        assert max(delays) <= seconds * 1200
        assert len(delays) > 50
    late = retry_delay_ms(session, NONE, fault("UNAVAILABLE"), task="t", retry=50)
    assert late <= 60_000
