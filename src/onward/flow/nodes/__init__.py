"""The kinds of nodes, by name. A new kind is a module here and a row in this table."""

from __future__ import annotations

from collections.abc import Mapping

from onward.flow.nodes import (
    approval,
    choice,
    executor,
    flow_ref,
    foreach,
    local,
    parallel,
    subflow,
    timer,
    wait_event,
)
from onward.flow.nodes.kind import Kind

KINDS: Mapping[str, Kind] = {
    "executor": executor,
    "choice": choice,
    "parallel": parallel,
    "subflow": subflow,
    "timer": timer,
    "foreach": foreach,
    "wait_event": wait_event,
    "approval": approval,
    "local": local,
    "flow_ref": flow_ref,
}
MANY = frozenset(name for name, kind in KINDS.items() if kind.CALLS == "services")
CALLING = MANY | {name for name, kind in KINDS.items() if kind.CALLS == "service"}  # services
