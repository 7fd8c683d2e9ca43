"""parallel: the same input to several services; their results in the order of the list."""

from __future__ import annotations

from typing import Any

from onward.flow.fields import shown
from onward.flow.nodes import fan
from onward.flow.nodes.kind import Flaws, NodeVisit, Verdict
from onward.flow.parts import Node
from onward.flow.scope import is_path, path_flaw

RECORD, CALLS, LOGGED = "pl", "services", False
recall = fan.recall


def check(node: Node) -> Flaws:
    if node.parallel_services:
        return
    services = node.params.get("services")
    if services is None or services == "":
        yield "parallel_services", "is missing"
    elif isinstance(services, str):
        flaw = path_flaw(services) if is_path(services) else "must be a list, or a path to one"
        if flaw is not None:
            yield "params.services", flaw
    elif _services(services) is None:
        yield "params.services", f"must be a list of texts, not {shown(services)}"


def enter(visit: NodeVisit) -> Verdict:
    services = _of(visit)
    if services is None:
        return fan.wrong("params.services leads to no list of texts")
    return fan.begin(visit, len(services), lambda index: (services[index], visit.scope.input))


def resume(visit: NodeVisit) -> Verdict:
    services = _of(visit) or []
    return fan.go_on(visit, lambda index: (services[index], visit.scope.input))


def _of(visit: NodeVisit) -> list[str] | None:
    if visit.node.parallel_services:
        return list(visit.node.parallel_services)
    services = visit.node.params.get("services")
    return _services(visit.scope.find(services) if isinstance(services, str) else services)


def _services(value: Any) -> list[str] | None:
    fits = isinstance(value, list) and all(isinstance(each, str) and each for each in value)
    return value if fits else None
