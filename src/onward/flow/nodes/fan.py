"""Many calls of one node, a window of them at a time: what parallel and foreach have in common.

The record counts; items come from the input each time, results from the children once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from onward.faults import Fault
from onward.flow.nodes import kind as kinds
from onward.flow.step import ChildResult

WINDOW = 64
MAX_CALLS = 100_000
MAX_RESULTS = 8 << 20  # characters of one node's results together
RACED = kinds.Unknown("which calls had ended when the first one failed was not written down")

Job: TypeAlias = Callable[[int], tuple[str, Any]]  # index → service, input


def begin(visit: kinds.NodeVisit, total: int, job: Job) -> kinds.Verdict:
    if total > MAX_CALLS:
        return wrong(f"{total} calls are more than {MAX_CALLS}", kind="LimitExceeded")
    node = visit.node
    record = visit.begin(total)
    record.mode, record.strategy = node.parallel_mode, node.failure_strategy
    record.max = 1 if record.mode == "sequential" else node.max_parallel or WINDOW
    return go_on(visit, job)


def go_on(visit: kinds.NodeVisit, job: Job) -> kinds.Verdict:
    record = visit.record
    visit.hear()
    if record.failed and record.strategy == "fail_fast":
        return _cut_short(visit)
    if record.size > MAX_RESULTS:
        return _too_large(visit)
    while record.next < record.total and len(record.open) < record.max:
        service, value = job(record.next)
        visit.call("service", service, value)
    if record.open:
        return kinds.NodeWaits("children")
    return kinds.NodeDone(_gathered(visit))


def _cut_short(visit: kinds.NodeVisit) -> kinds.Verdict:
    """No more is begun and what is out is stopped; what went well so far is the result.

    The failure leads on like a success, unless the definition has an edge for it.
    """
    record = visit.record
    first = min(record.failed)
    done = record.done()
    answers = dict(zip([first, *done], visit.answers([first, *done]), strict=True))
    visit.stop()
    result = successes(answers[index] for index in done)
    fault = answers[first].fault or Fault(kind="failed", message=f"call {first} failed")
    if visit.failure_action(fault) is not None:
        return kinds.NodeFailed(fault, result)
    return kinds.NodeDone(result)


def _too_large(visit: kinds.NodeVisit) -> kinds.Verdict:
    """Known from the letters, before any of the results is read; no more is begun."""
    record = visit.record
    visit.stop()
    ended = record.next - len(record.open)
    fell = wrong(
        f"the results of {ended} calls have {record.size} characters, more than {MAX_RESULTS}: "
        "let each call return less, or only where its result is kept",
        kind="LimitExceeded",
    )
    if visit.node.compensate is None:
        return fell
    return kinds.NodeFailed(fell.fault, undo=successes(visit.answers(record.done())))


def _gathered(visit: kinds.NodeVisit) -> Any:
    record = visit.record
    if record.strategy != "collect_errors":
        return successes(visit.answers(record.done()))
    return collected(visit.answers(range(record.total)))


def recall(past: kinds.Past) -> kinds.NodeDone:
    node, data = past.node, past.data
    calls = data.get("calls", 0)
    cut_short = data.get("failed") and node.failure_strategy == "fail_fast"
    if not past.ok and not cut_short:
        return kinds.NodeDone()  # it could not begin, or there was more than it may keep
    if any(index not in past.answers for index in range(calls)):
        return kinds.NodeDone(kinds.GONE)
    answers = [past.answers[index] for index in range(calls)]
    if node.failure_strategy == "collect_errors":
        return kinds.NodeDone(collected(answers))
    if cut_short and node.parallel_mode != "sequential":
        return kinds.NodeDone(RACED)
    return kinds.NodeDone(successes(answers))


def collected(answers: Iterable[ChildResult]) -> list[Any]:
    """Each at the place of its call: its result, or its error."""
    return [
        answer.value
        if answer.fault is None
        else {"error": {"kind": answer.fault.kind, "message": answer.fault.message}}
        for answer in answers
    ]


def successes(answers: Iterable[ChildResult]) -> list[Any]:
    return [answer.value for answer in answers if answer.fault is None]


def wrong(message: str, kind: str = "InvalidInput") -> kinds.NodeFailed:
    return kinds.NodeFailed(Fault(kind=kind, message=message, retryable=False))
