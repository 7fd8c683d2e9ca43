"""What a declared service fills in, and what it leaves to the submission."""

from __future__ import annotations

import pytest

from onward.core.approval import approval_of, ask
from onward.core.errors import Invalid
from onward.core.policy import Overrides, overrides_of
from onward.services.catalog import Declared
from onward.services.declarations import as_declared
from tests.support import NOW, a_task

SERVICE = Declared(name="mail", task_types=("mail",), timeout_ms=5_000, max_retries=1)
GUARDED = Declared(name="mail", task_types=("mail",), requires_approval=True)


@pytest.mark.contract("N-11")
def test_what_was_left_open_comes_from_the_service() -> None:
    task = as_declared(a_task(), SERVICE)
    assert (task.attempt_ms, task.expires_at) == (5_000, None)
    assert overrides_of(task.overrides).max_retries == 1
    assert (task.waiting_for, task.approval) == (None, None)
    assert as_declared(task, None) is task


@pytest.mark.contract("N-11")
def test_what_was_said_stays_as_it_was_said() -> None:
    said = Overrides(max_retries=0, backoff_ms=(7,)).encode()
    task = as_declared(a_task(attempt_ms=9, overrides=said), SERVICE)
    assert (task.attempt_ms, task.overrides) == (9, said)
    backoff = as_declared(a_task(overrides=Overrides(backoff_ms=(7,)).encode()), SERVICE)
    assert overrides_of(backoff.overrides) == Overrides(max_retries=1, backoff_ms=(7,))


@pytest.mark.contract("N-11", "S2-7")
def test_with_a_session_the_services_timeout_ends_an_attempt_and_the_submissions_is_told() -> None:
    task = as_declared(a_task(session="s", profile="session"), SERVICE)
    assert (task.attempt_ms, task.expires_at) == (5_000, None)
    own = as_declared(a_task(session="s", profile="session", expires_at=NOW + 1), SERVICE)
    assert (own.attempt_ms, own.expires_at) == (5_000, NOW + 1)


@pytest.mark.contract("N-11", "S0-1")
def test_where_the_submissions_time_ends_the_task_the_services_adds_nothing() -> None:
    task = as_declared(a_task(expires_at=NOW + 1), SERVICE)
    assert (task.attempt_ms, task.expires_at) == (None, NOW + 1)


@pytest.mark.contract("S1-11")
def test_a_guard_asks_on_the_submitters_terms_unless_they_end_in_a_yes() -> None:
    asked = approval_of(as_declared(a_task(), GUARDED))
    assert asked is not None
    assert asked == ask("{}", NOW, salt=asked.salt)
    terms = ask("{}", NOW, expires_ms=10, reason="costly")
    task = as_declared(a_task(approval=terms.encode()), GUARDED)
    assert (approval_of(task), task.waiting_for) == (terms, "approval")
    yes = ask("{}", NOW, expires_ms=10, default="approve")
    with pytest.raises(Invalid, match="only a person can approve it"):
        as_declared(a_task(approval=yes.encode()), GUARDED)
