"""Flows: their versions, their graphs, and what is wrong with a definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from onward.wire.base import Body, Instant, NodeStatus, Wire


class EdgeView(Wire, frozen=True):
    action: str
    to: str


class NodeView(Wire, frozen=True):
    """A node to be drawn; `key` is its path, with the subflows that it lies in."""

    key: str
    kind: str
    what: str = ""  # the service, the delay, the question …
    depth: int = 0
    start: bool = False
    status: NodeStatus | None = None  # in a run; None: it was not reached
    edges: tuple[EdgeView, ...] = ()


class FlawView(Wire, frozen=True):
    node: str | None = None
    field: str = ""
    message: str = ""


class VersionBrief(Wire, frozen=True):
    version_id: str
    version: int
    status: Literal["published"]
    published_at: Instant


class FlowView(Wire, frozen=True, omit_defaults=True):
    """A flow, a version of it, or both; what the path does not show is absent.

    A default is left out by identity: an empty list is written, because `()` is another object.
    """

    name: str
    version: int  # the newest, or the one that is shown; 0: there is none yet
    # Of the flow.
    id: str = ""
    created_at: Instant = 0
    links: Mapping[str, str] = {}
    versions: Sequence[VersionBrief] = ()  # newest first
    # Of the version.
    flow_id: str = ""
    version_id: str = ""
    status: Literal["published", ""] = ""
    published_at: Instant = 0
    definition: Any = None
    warnings: Sequence[FlawView] = ()
    nodes: Sequence[NodeView] = ()
    mermaid: str = ""


class Validation(Wire, frozen=True, omit_defaults=True):
    valid: bool
    faults: Sequence[FlawView]
    warnings: Sequence[FlawView]
    nodes: Sequence[NodeView] = ()  # of one that is valid
    mermaid: str = ""


class CreateFlow(Body, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    definition: Any = None


class FlowDefinition(Body, frozen=True):
    definition: Any
