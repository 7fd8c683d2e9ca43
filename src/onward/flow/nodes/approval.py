"""approval: a person is asked, by a child task that waits for them; nobody else can decide.

Not params, not shared, not a worker's output, not a signal. The one exception stands in the
definition: `params.from_data` takes a decision that was made elsewhere from where `approval_key`
points. A rejection leads on only by an edge that tells it from an approval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.core.task import Fault
from onward.flow.nodes.kind import (
    Flaws,
    NodeDone,
    NodeFailed,
    NodeVisit,
    NodeWaits,
    Verdict,
    key_path,
    key_path_flaws,
    span_flaws,
)
from onward.flow.parts import DEFAULT, Node
from onward.flow.scope import ABSENT, shared_key

RECORD = "ap"
APPROVED, REJECTED = "approved", "rejected"
YES = frozenset({"approved", "approve", "accepted", "yes", "y", "true", "ok"})
NO = frozenset({"rejected", "reject", "denied", "declined", "no", "n", "false"})


def check(node: Node) -> Flaws:
    yield from key_path_flaws(node, "approval_key")
    yield from span_flaws(node, "timeout_ms")
    from_data = node.params.get("from_data")
    if from_data is not None and not isinstance(from_data, bool):
        yield "params.from_data", "must be true or false"
    if from_data is True and key_path(node, "approval_key") is None:
        yield "params.approval_key", "is missing: from_data takes the decision from there"
    if not isinstance(node.params.get("reason", ""), str):
        yield "params.reason", "must be text"


def enter(visit: NodeVisit) -> Verdict:
    word = _brought_in(visit)
    if word is not None:
        visit.begin()
        return _decided(visit, word, None)
    visit.begin(total=1)
    timeout_ms = visit.span_ms("timeout_ms")
    if isinstance(timeout_ms, Fault):
        return NodeFailed(timeout_ms)
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


def resume(visit: NodeVisit) -> Verdict:
    visit.hear()
    if visit.record.open:
        return _waits(visit)
    (answer,) = visit.answers([0])
    if answer.fault is None:
        return _decided(visit, APPROVED, answer.value)
    if answer.fault.kind == "Rejected":
        return _decided(visit, REJECTED, None, answer.fault)
    return NodeFailed(answer.fault)


def _waits(visit: NodeVisit) -> Verdict:
    timeout_ms = visit.span_ms("timeout_ms")
    until = visit.record.start + timeout_ms if isinstance(timeout_ms, int) else None
    if until is None or visit.now < until:
        return NodeWaits("children", until)
    visit.stop()
    return NodeFailed(Fault(kind="timeout", message=f"nobody decided within {timeout_ms} ms"))


def _brought_in(visit: NodeVisit) -> str | None:
    path = key_path(visit.node, "approval_key")
    if visit.node.params.get("from_data") is not True or path is None:
        return None
    value = visit.scope.find(path)
    said = str(value).strip().lower() if isinstance(value, bool | str) else ""
    if said in YES:
        return APPROVED
    return REJECTED if said in NO else None


def _decided(visit: NodeVisit, word: str, said: Any, fault: Fault | None = None) -> Verdict:
    visit.record.decision = word
    key = shared_key(key_path(visit.node, "approval_key"))
    writes = {} if key is None else {key: word}
    result = {**(said if isinstance(said, Mapping) else {}), "decision": word}
    if fault is not None:
        result["comment"] = fault.message
    if word == APPROVED:
        # Not `post.action_key`: what it finds in a result or in shared is no person's word.
        return NodeDone(result, visit.node.post.action_static or APPROVED, writes)
    if (action := _rejections_way(visit)) is not None:
        return NodeDone(result, action, writes)
    fault = fault or Fault(kind="Rejected", message="rejected", retryable=False)
    return NodeFailed(fault, ABSENT, writes)


def _rejections_way(visit: NodeVisit) -> str | None:
    """None: no edge is meant for it, so that going on would be to ignore what was said."""
    if visit.leads(REJECTED):
        return REJECTED
    if visit.leads(APPROVED) and visit.leads(DEFAULT):
        return REJECTED
    ends = visit.top and not visit.graph.targets(visit.node.key)
    return REJECTED if ends else None
