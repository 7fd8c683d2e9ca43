"""The Python reference: which names stand on which page. mkdocstrings reads their docstrings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

NAMES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "client": (
        "Client",
        "`from onward import Client, SyncClient, enqueue`. The guide is "
        "[Call from Python](../../how-to/call.md).",
        (
            "onward.client.http.Client",
            "onward.client.submitting.Submitter",
            "onward.client.submitting.Options",
            "onward.client.batch.Batch",
            "onward.client.sync.SyncClient",
            "onward.client.resources.Flows",
            "onward.client.resources.Runs",
            "onward.client.resources.Schedules",
            "onward.client.resources.Operations",
            "onward.client.resources.Queues",
            "onward.client.resources.Limits",
            "onward.client.resources.Keys",
            "onward.client.resources.Log",
            "onward.client.resources.Encryption",
            "onward.client.enqueueing.enqueue",
        ),
    ),
    "worker": (
        "Worker",
        "`from onward import Worker, Context, Retry, Refused, TryAgain, CallFailed`. The guide is "
        "[Write a worker](../../how-to/worker.md).",
        (
            "onward.client.worker.Worker",
            "onward.client.worker.ServiceOptions",
            "onward.client.context.Context",
            "onward.client.failures.Retry",
            "onward.wire.limits.Concurrency",
            "onward.wire.limits.RateLimit",
            "onward.client.failures.Refused",
            "onward.client.failures.TryAgain",
            "onward.client.failures.CallFailed",
            "onward.client.failures.EffectUnknown",
        ),
    ),
    "flows": (
        "Flow builder",
        "`from onward.flow.builder import Flow, params, shared`. The guide is "
        "[Write a flow](../../how-to/flows.md).",
        ("onward.flow.builder",),
    ),
    "errors": (
        "Errors of the client",
        "`from onward import OnwardError, Unreachable, ProblemError, TaskFailed, StillRunning`.",
        (
            "onward.errors.OnwardError",
            "onward.client.errors.Unreachable",
            "onward.client.errors.ProblemError",
            "onward.client.errors.TaskFailed",
            "onward.client.errors.StillRunning",
        ),
    ),
    "testing": (
        "Testing",
        "`from onward.testing import Sandbox, Fake, FakeContext`. The guide is "
        "[Test your code](../../how-to/test.md).",
        (
            "onward.testing.sandbox.Sandbox",
            "onward.testing.fakes.Fake",
            "onward.testing.fakes.FakeContext",
        ),
    ),
    "shapes": (
        "What the client returns",
        "These are the shapes on the wire, as Python classes.",
        (
            "onward.wire.base.Page",
            "onward.wire.tasks.TaskView",
            "onward.wire.tasks.TaskEvent",
            "onward.wire.tasks.Explanation",
            "onward.wire.tasks.ApprovalTerms",
            "onward.wire.approvals.ApprovalView",
            "onward.wire.runs.RunView",
            "onward.wire.runs.RunDetail",
            "onward.wire.runs.NodeRun",
            "onward.wire.flows.FlowView",
            "onward.wire.schedules.ScheduleBody",
            "onward.wire.schedules.ScheduleView",
            "onward.wire.schedules.ScheduleDetail",
            "onward.wire.queues.QueueView",
            "onward.wire.services.ServiceView",
            "onward.wire.workers.WorkerView",
            "onward.wire.dead_letters.DeadGroup",
            "onward.wire.dead_letters.Replayed",
            "onward.wire.dead_letters.Abandoned",
            "onward.wire.attention.AttentionItem",
            "onward.wire.logs.LogRecord",
            "onward.wire.keys.KeyView",
            "onward.wire.keys.KeyCreated",
        ),
    ),
}


def _page(title: str, text: str, names: tuple[str, ...]) -> str:
    return "\n\n".join([f"# {title}", text, *(f"::: {name}" for name in names)]) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    f"reference/python/{name}.md": partial(_page, *parts) for name, parts in NAMES.items()
}
