"""Many calls of one node, a window of them at a time: what parallel and foreach have in common.

The record counts; items come from the input each time, results from the children once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from onward.core.task import Fault
from onward.flow.nodes.kind import NodeDone, NodeFailed, NodeVisit, NodeWaits, Verdict
from onward.flow.step import ChildResult

WINDOW = 64
MAX_CALLS = 100_000
MAX_RESULTS = 8 << 20  # characters of one node's results together

Job: TypeAlias = Callable[[int], tuple[str, Any]]  # index → service, input


def begin(visit: NodeVisit, total: int, job: Job) -> Verdict:
    if total > MAX_CALLS:
        return wrong(f"{total} calls are more than {MAX_CALLS}", kind="LimitExceeded")
    node = visit.node
    record = visit.begin(total)
    record.mode, record.strategy = node.parallel_mode, node.failure_strategy
    record.max = 1 if record.mode == "sequential" else node.max_parallel or WINDOW
    return go_on(visit, job)


def go_on(visit: NodeVisit, job: Job) -> Verdict:
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
        return NodeWaits("children")
    return NodeDone(_gathered(visit))


def _cut_short(visit: NodeVisit) -> Verdict:
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
        return NodeFailed(fault, result)
    return NodeDone(result)


def _too_large(visit: NodeVisit) -> Verdict:
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
    return NodeFailed(fell.fault, undo=successes(visit.answers(record.done())))


def _gathered(visit: NodeVisit) -> Any:
    record = visit.record
    if record.strategy != "collect_errors":
        return successes(visit.answers(record.done()))
    answers = visit.answers(range(record.total))
    errors = [
        {"index": index, "kind": answer.fault.kind, "message": answer.fault.message}
        for index, answer in enumerate(answers)
        if answer.fault is not None
    ]
    return {"results": successes(answers), "errors": errors}


def successes(answers: Iterable[ChildResult]) -> list[Any]:
    return [answer.value for answer in answers if answer.fault is None]


def wrong(message: str, kind: str = "InvalidInput") -> NodeFailed:
    return NodeFailed(Fault(kind=kind, message=message, retryable=False))
