"""Runs of flows: how one is started, signalled and forked, and what the server shows of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, field

from onward.wire.base import (
    MAX_NUMBER,
    Body,
    CallbackUrl,
    Cursor,
    Instant,
    Key,
    Limit,
    Masked,
    Ms,
    Name,
    NodeStatus,
    Number,
    PriorityWord,
    Query,
    State,
    Wire,
)
from onward.wire.flows import NodeView
from onward.wire.tasks import TaskView

FlowName = Annotated[str, Meta(min_length=1, max_length=255)]
NodeName = Annotated[str, Meta(min_length=1, max_length=255)]


class StartRun(Body, frozen=True):
    flow: FlowName
    version: Annotated[int, Meta(ge=1, le=MAX_NUMBER)] | None = None  # None: the newest
    params: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    request_id: Key | None = None  # of all requests with this id, the first one's run
    session_id: Name | None = None  # which is notified of its end
    priority: PriorityWord | None = None  # of the run and its calls; None: the session's, or normal
    delay_ms: Ms | None = None
    callback_url: CallbackUrl | None = None


class SignalRun(Body, frozen=True):
    name: NodeName | None = None
    key: NodeName | None = None
    value: Any = True

    def __post_init__(self) -> None:
        if (self.name is None) == (self.key is None):
            raise ValueError(
                "give name or key: the node that waits, or the shared key it waits for"
            )


class ForkRun(Body, frozen=True):
    from_node: NodeName
    shared: dict[str, Any] | None = None  # None: as it was before that node
    anyway: bool = False  # also past nodes that were undone, and approvals that were not given


class NodeRun(Wire, frozen=True):
    """One attempt of one node."""

    id: str
    task_id: str
    node_key: str
    attempt_no: int = 1
    status: NodeStatus = "running"
    prep_json: str = ""
    exec_input_json: str = ""
    exec_output_json: str = ""
    error_text: str = ""
    action: str = ""
    started_at: Instant | None = None
    finished_at: Instant | None = None
    worker_id: str = ""
    worker_url: str = ""


class RunView(TaskView, frozen=True):
    """A task, with what only a run has."""

    flow: str
    flow_version_id: str
    params: dict[str, Any] | None  # None: a list was asked to be brief
    shared: dict[str, Any] | None
    current_node: str
    last_action: str | None
    step_count: int
    forked_from: str | None
    waiting_for: str | None

    @property
    def version(self) -> int:
        """Which version of its flow it runs. 0: none was found."""
        number = self.flow_version_id.rpartition("-v")[2]
        return int(number) if number.isdecimal() else 0


class RunDetail(RunView, frozen=True):
    """With its graph, and every attempt of its nodes in order of start."""

    params: dict[str, Any]
    shared: dict[str, Any]
    nodes: tuple[NodeView, ...]
    mermaid: str
    node_runs: tuple[NodeRun, ...]


class SharedView(Wire, frozen=True):
    """The shared state before and after a step, rebuilt from the run's log."""

    at: int
    steps: int  # that the run has made
    node: str | None
    kind: str | None
    inside: str | None  # the subflow whose state this is; None: the run's own
    before: Any
    after: Any  # null: the step is not over
    changed: tuple[str, ...]
    unknown: Mapping[str, str]  # keys whose value cannot be rebuilt, and why
    exact: bool | None  # whether the rebuilt states end as the run did; null: that is not known


class RunQuery(Query, frozen=True):
    """Which runs to list. Runs named by `id` are looked up, whatever the other fields are."""

    flow: str | None = None
    state: tuple[State, ...] = ()
    cursor: Cursor | None = None
    limit: Limit = 100
    id: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    brief: Annotated[bool, Meta(description="leave payload, result, params, shared out")] = False
    masked: Masked = False


class SharedQuery(Query, frozen=True):
    at: Number | None = None  # the number of the step; absent: the last one
    masked: Masked = False
