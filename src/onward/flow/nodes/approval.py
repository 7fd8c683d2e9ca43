"""approval: a person is asked, by a child task that waits for them; only they can decide.

Not params, not shared, not a worker's output, not a signal. The one exception stands in the
definition: `params.from_data` takes a decision that was made elsewhere from where `approval_key`
points. A rejection leads on only by an edge that tells it from an approval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.faults import Fault
from onward.flow.nodes import kind as kinds
from onward.flow.parts import DEFAULT, Node
from onward.flow.scope import ABSENT, shared_key

RECORD, CALLS, LOGGED = "ap", "child", True
APPROVED, REJECTED = "approved", "rejected"
YES = frozenset({"approved", "approve", "accepted", "yes", "y", "true", "ok"})
NO = frozenset({"rejected", "reject", "denied", "declined", "no", "n", "false"})


def check(node: Node) -> kinds.Flaws:
    yield from kinds.key_path_flaws(node, "approval_key")
    yield from kinds.span_flaws(node, "timeout_ms")
    from_data = node.params.get("from_data")
    if from_data is not None and not isinstance(from_data, bool):
        yield "params.from_data", "must be true or false"
    if from_data is True and kinds.key_path(node, "approval_key") is None:
        yield "params.approval_key", "is missing: from_data takes the decision from there"
    if not isinstance(node.params.get("reason", ""), str):
        yield "params.reason", "must be text"


def enter(visit: kinds.NodeVisit) -> kinds.Verdict:
    word = _brought_in(visit)
    if word is not None:
        visit.begin()
        return _decided(visit, word, None)
    visit.begin(total=1)
    timeout_ms = visit.span_ms("timeout_ms")
    if isinstance(timeout_ms, Fault):
        return kinds.NodeFailed(timeout_ms)
    node = visit.node
    visit.call(
        "approval",
        None,
        visit.scope.input,
        params=node.params,
        timeout_ms=timeout_ms,
        reason=node.params.get("reason") or node.description,
    )
    return _waits(visit)


def resume(visit: kinds.NodeVisit) -> kinds.Verdict:
    visit.hear()
    if visit.record.open:
        return _waits(visit)
    (answer,) = visit.answers([0])
    if answer.fault is None:
        return _decided(visit, APPROVED, answer.value)
    if answer.fault.kind == "Rejected":
        return _decided(visit, REJECTED, None, answer.fault)
    return kinds.NodeFailed(answer.fault)


def recall(past: kinds.Past) -> kinds.NodeDone:
    if not past.ok:
        rejected = past.data["error"]["kind"] == "Rejected"
        return kinds.NodeDone(writes=_written(past.node, REJECTED) if rejected else {})
    result = past.data.get("output", kinds.LARGE)
    word = result["decision"] if isinstance(result, Mapping) else result
    return kinds.NodeDone(result, writes=_written(past.node, word))


def _waits(visit: kinds.NodeVisit) -> kinds.Verdict:
    timeout_ms = visit.span_ms("timeout_ms")
    until = visit.record.start + timeout_ms if isinstance(timeout_ms, int) else None
    if until is None or visit.now < until:
        return kinds.NodeWaits("children", until)
    visit.stop()
    return kinds.NodeFailed(Fault(kind="timeout", message=f"nobody decided within {timeout_ms} ms"))


def _brought_in(visit: kinds.NodeVisit) -> str | None:
    path = kinds.key_path(visit.node, "approval_key")
    if visit.node.params.get("from_data") is not True or path is None:
        return None
    value = visit.scope.find(path)
    answer = str(value).strip().lower() if isinstance(value, bool | str) else ""
    if answer in YES:
        return APPROVED
    return REJECTED if answer in NO else None


def _decided(
    visit: kinds.NodeVisit, word: str, given: Any, fault: Fault | None = None
) -> kinds.Verdict:
    visit.record.decision = word
    writes = _written(visit.node, word)
    result = {**(given if isinstance(given, Mapping) else {}), "decision": word}
    if fault is not None:
        result["comment"] = fault.message
    if word == APPROVED:
        # Not `post.action_key`: what it finds in a result or in shared is no person's word.
        return kinds.NodeDone(result, visit.node.post.action_static or APPROVED, writes)
    if (action := _rejections_way(visit)) is not None:
        return kinds.NodeDone(result, action, writes)
    fault = fault or Fault(kind="Rejected", message="rejected", retryable=False)
    return kinds.NodeFailed(fault, ABSENT, writes)


def _written(node: Node, word: Any) -> Mapping[str, Any]:
    key = shared_key(kinds.key_path(node, "approval_key"))
    return {} if key is None else {key: word}


def _rejections_way(visit: kinds.NodeVisit) -> str | None:
    """None: no edge is meant for it, so that going on would be to ignore the decision."""
    if visit.leads(REJECTED):
        return REJECTED
    if visit.leads(APPROVED) and visit.leads(DEFAULT):
        return REJECTED
    ends = visit.top and not visit.graph.targets(visit.node.key)
    return REJECTED if ends else None
