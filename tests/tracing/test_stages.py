"""Which stretches of a task's life become spans, and when each begins and ends."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from onward.core.task import Claimed, Event, Lane, encode
from onward.core.trace import QUEUE, RUN, handed_on, sampled, span_id, stored, traceparent_of
from onward.tracing.stages import Stage, stages
from onward.workers.streams.agent_dialect import AGENT_STREAMS
from onward.workers.streams.dialects import WORKER_STREAMS

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def life(*happened: tuple[Any, ...]) -> list[Event]:
    """Events as (at, type), and whatever else is said of them."""
    numbers, generation, events = count(1), 1, []
    for at, type_, *rest in happened:
        generation += type_ == "task.replayed"
        data = encode(rest[0]) if rest else None
        events.append(Event("t", next(numbers), generation, type_, at, data))
    return events


def claimed(at: int, attempt: int = 1, worker: str = "w") -> tuple[Any, ...]:
    return at, "task.claimed", {"worker": worker, "attempt": attempt}


def brief(stage: Stage) -> tuple[Any, ...]:
    return stage.kind, stage.attempt, stage.start_at, stage.end_at, stage.outcome


def test_an_attempt_that_is_not_over_has_no_span_yet() -> None:
    assert not list(stages(life((0, "task.created"), claimed(5))))


def test_work_that_was_handed_back_is_still_the_same_attempt() -> None:
    events = life(
        (0, "task.created"),
        claimed(5),
        (7, "task.released"),
        claimed(9, worker="x"),
        (12, "task.succeeded"),
    )
    queued, ran = stages(events)
    assert brief(queued) == (QUEUE, 1, 0, 5, None)
    assert brief(ran) == (RUN, 1, 5, 12, "succeeded")
    assert ran.worker == "x"
    assert [note.name for note in ran.notes] == ["task.released", "task.claimed", "task.succeeded"]


def test_a_run_that_parks_is_one_attempt_to_its_end() -> None:
    events = life(
        (0, "task.created"),
        claimed(1),
        (2, "task.parked", {"waiting_for": "children"}),
        (8, "task.woken"),
        claimed(9),
        (10, "task.parked", {"waiting_for": "children"}),
        (20, "task.succeeded"),
    )
    assert [brief(stage) for stage in stages(events)] == [
        (QUEUE, 1, 0, 1, None),
        (RUN, 1, 1, 20, "succeeded"),
    ]


def test_a_lost_attempt_ends_when_it_was_taken_back() -> None:
    events = life(
        (0, "task.created"),
        claimed(1),
        (31, "task.reclaimed", {"from": "w", "attempt": 1}),
        claimed(40, attempt=2),
        (41, "task.succeeded"),
    )
    assert [brief(stage) for stage in stages(events)] == [
        (QUEUE, 1, 0, 1, None),
        (RUN, 1, 1, 31, "lost"),
        (QUEUE, 2, 31, 40, None),
        (RUN, 2, 40, 41, "succeeded"),
    ]


def test_time_on_a_stream_is_time_in_a_queue() -> None:
    events = life(
        (0, "task.created"),
        claimed(1, worker="onward:offered"),
        (50, "task.delivered", {"worker": "reader"}),
        (60, "task.succeeded"),
    )
    queued, ran = stages(events)
    assert (queued.end_at, ran.start_at, ran.worker) == (50, 50, "reader")


def test_a_worker_noticed_only_by_its_answer_began_before_it() -> None:
    events = life(
        (0, "task.created"),
        claimed(1, worker="onward:offered"),
        (60, "task.delivered", {"worker": "reader"}),
        (60, "task.succeeded"),
    )
    queued, ran = stages(events)
    assert (queued.end_at, ran.start_at, ran.worker) == (1, 1, "reader")


def test_a_pause_before_a_retry_is_no_time_in_the_queue() -> None:
    events = life(
        (0, "task.created"),
        claimed(1),
        (2, "task.retrying", {"error": {"kind": "K"}, "attempt": 1, "run_at": 60}),
        (60, "task.queued"),
        claimed(61, attempt=2),
        (62, "task.failed", {"error": {"kind": "K", "message": "private"}, "attempt": 2}),
    )
    told = list(stages(events))
    assert [brief(stage) for stage in told] == [
        (QUEUE, 1, 0, 1, None),
        (RUN, 1, 1, 2, "retrying"),
        (QUEUE, 2, 60, 61, None),
        (RUN, 2, 61, 62, "failed"),
    ]
    assert told[-1].fault == "K"
    assert "private" not in repr(told)


def test_what_a_worker_says_on_the_way_is_not_told() -> None:
    events = life(
        (0, "task.created"),
        claimed(1),
        (2, "task.chunk", {"reason": "private"}),
        (3, "task.progress", {"progress": 0.5, "message": "private"}),
        (4, "task.succeeded"),
    )
    told = list(stages(events))
    assert [note.name for note in told[1].notes] == ["task.succeeded"]


# Where a task stands.


def a_claim(overrides: str | None, *, attempt: int = 1) -> Claimed:
    return Claimed(
        id="t", worker="w", fence=1, rev=1, type="mail", queue="q", profile="streams",
        payload="{}", generation=1, attempt=attempt, failures=0, retries=0, lost=0,
        lane=Lane.PRIMARY, created_at=0, expires_at=None, attempt_by=None, attempt_ms=None,
        overrides=overrides, parent=None, key=None, journal=None,
    )  # fmt: skip


def test_each_attempt_has_a_place_of_its_own_that_anybody_can_work_out() -> None:
    kept = stored(TRACEPARENT)
    first, second = (handed_on(a_claim(kept, attempt=attempt)) for attempt in (1, 2))
    assert first is not None
    assert first != second
    assert first == f"{TRACEPARENT[:36]}{span_id('t', 1, 1, RUN):016x}-01"
    assert sampled(first)
    assert span_id("t", 1, 1, RUN) != span_id("t", 1, 1, QUEUE) != span_id("t", 2, 1, QUEUE)


def test_a_task_without_a_trace_hands_nothing_on() -> None:
    assert handed_on(a_claim(None)) is None
    assert handed_on(a_claim('{"max_retries":3}')) is None


@pytest.mark.contract("N-9")
def test_an_entry_on_a_stream_says_where_its_attempt_stands_if_anywhere() -> None:
    traced, plain = a_claim(stored(TRACEPARENT)), a_claim(None)
    agents = AGENT_STREAMS
    assert WORKER_STREAMS.entry(traced, None)["traceparent"] == handed_on(traced)
    assert agents.opened(agents.entry(traced, None))["traceparent"] == handed_on(traced)
    assert "traceparent" not in WORKER_STREAMS.entry(plain, None)
    assert "traceparent" not in agents.opened(agents.entry(plain, None))


@pytest.mark.parametrize("dialect", [WORKER_STREAMS, AGENT_STREAMS])
@pytest.mark.parametrize(
    ("said", "kept"),
    [(TRACEPARENT, TRACEPARENT), (None, None), ("nonsense", None), (TRACEPARENT + "\n", None)],
)
def test_a_foreign_entry_is_adopted_into_its_own_trace(
    dialect: Any, said: str | None, kept: str | None
) -> None:
    fields = {"task_id": "t"} | ({} if said is None else {"traceparent": said})
    task = dialect.adopt(fields, 0)
    assert traceparent_of(task.overrides) == kept
    assert kept or task.overrides is None
