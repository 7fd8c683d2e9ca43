"""How long a worker may put off the next try is bounded alike, whichever way its answer comes."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
import pytest

from onward.core.outcome import Failed
from onward.faults import LONGEST_DELAY_MS, Fault, storable_fault
from onward.wire.streams import RESULTS
from onward.workers.http.call import outcome
from onward.workers.local.shipped.failure import retry_after_ms
from onward.workers.streams.agent_dialect import _fault
from onward.workers.streams.dialects import WORKER_STREAMS

DAY_MS = 24 * 3_600_000


def by_http(ms: int) -> int | None:
    said = json.dumps({"error": "busy", "retryable": True, "retryAfterMs": ms}).encode()
    return waits(outcome(200, httpx2.Headers(), said, 0))


def by_http_header(ms: int) -> int | None:
    return waits(outcome(503, httpx2.Headers({"retry-after": str(ms // 1000)}), b"", 0))


def by_stream(ms: int) -> int | None:
    fields = {"task_id": "t", "status": "failed", "error": "busy", "retry_after_ms": str(ms)}
    answer = WORKER_STREAMS.answer(RESULTS, fields)
    return None if answer is None else waits(answer.outcome)


def by_agent_stream(ms: int) -> int | None:
    return _fault(json.dumps({"code": "Busy", "retry_after_ms": ms})).retry_after_ms


def by_handler(ms: int) -> int | None:
    return storable_fault(Fault(kind="TryAgain", message="", retry_after_ms=ms)).retry_after_ms


def by_endpoint(ms: int) -> int | None:
    return retry_after_ms({"retry-after-ms": str(ms)})


def waits(said: object) -> int | None:
    assert isinstance(said, Failed)
    return said.fault.retry_after_ms


@pytest.mark.parametrize(
    "door", [by_http, by_http_header, by_stream, by_agent_stream, by_handler, by_endpoint]
)
def test_a_worker_may_ask_for_up_to_thirty_days(door: Callable[[int], int | None]) -> None:
    assert LONGEST_DELAY_MS == 30 * DAY_MS
    for asked in (DAY_MS, 2 * DAY_MS, 30 * DAY_MS):
        assert door(asked) == asked
    assert door(31 * DAY_MS) == LONGEST_DELAY_MS
