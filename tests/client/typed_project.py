"""A user's project that uses the whole public API, for type checkers: `make type` reads it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from onward import (
    Batch,
    CallFailed,
    Client,
    Concurrency,
    Context,
    EffectUnknown,
    Flow,
    OnwardError,
    ProblemError,
    RateLimit,
    Refused,
    Retry,
    StillRunning,
    SyncClient,
    TaskFailed,
    TryAgain,
    Unreachable,
    Worker,
    enqueue,
)
from onward.flow.builder import Step, params, shared
from onward.testing import FakeContext, Sandbox
from onward.wire.approvals import ApprovalView
from onward.wire.attention import AttentionItem
from onward.wire.base import Page
from onward.wire.batches import BatchView
from onward.wire.dead_letters import Abandoned, Replayed
from onward.wire.flows import FlowView
from onward.wire.keys import AuditEntry, KeyCreated
from onward.wire.limits import LimitView
from onward.wire.logs import LogRecord
from onward.wire.operations import OperationView
from onward.wire.queues import QueueView
from onward.wire.runs import RunDetail, RunView
from onward.wire.schedules import ScheduleDetail, ScheduleView
from onward.wire.services import ServiceView
from onward.wire.tasks import Explanation, TaskEvent, TaskView
from onward.wire.workers import WorkerView


@dataclass
class Pool:
    size: int


@dataclass
class Receipt:
    number: int


@asynccontextmanager
async def lifespan(worker: Worker) -> AsyncGenerator[Pool, None]:
    yield Pool(worker.concurrency)


worker = Worker(lifespan=lifespan, grace=timedelta(seconds=5), concurrency=2)


@worker.service
async def greet(ctx: Context[Pool], name: str, times: int = 1) -> str:
    await ctx.progress(0.5, "half")
    await ctx.emit({"part": 1})
    charged: dict[str, int] = await ctx.once("charge", lambda: {"paid": 1})
    assert_type(ctx.state.size, int)
    return name * times * charged["paid"]


@worker.service(retry=Retry(max=1, on=(OSError,), backoff="linear"), timeout=timedelta(minutes=1))
def plain(ctx: Context, number: int) -> Receipt:
    ctx.once("print", lambda: {"pages": 1})["pages"]
    if ctx.cancelled:
        raise Refused("stopped")
    if number < 0:
        raise TryAgain("later", after=timedelta(seconds=1))
    if number == 0:
        raise CallFailed("none", status=404)
    return Receipt(number)


@worker.service
async def bare(number: int) -> list[Receipt]:
    return [Receipt(number)]


flow = Flow("greetings")
each = flow.foreach("each", "greet", input=params.names, output="said", max_parallel=4)
ask = flow.approval("ask", reason="May they go out?", input=shared.said)
assert_type(each >> ask, Step)
send = flow.executor("send", "bare", input={"number": params.number}, compensate="plain")
assert_type(ask - "approved" >> send, Step)


async def many(client: Client) -> None:
    batch = await client.submit_many(greet, [{"name": "Ada"}], name="greetings", tags=["x"])
    assert_type(batch, Batch[str])
    assert_type(await batch.wait(timedelta(minutes=1)), BatchView)
    assert_type(await batch.results(), list[str])
    receipts = await client.submit_many(plain, range(3), on_complete={"type": "bare"})
    assert_type(await receipts.results(), list[Receipt])
    named = await client.options(queue="slow").submit_many("x", [], result_type=Receipt)
    assert_type(await named.results(), list[Receipt])
    assert_type(await (await client.submit_many("plain", [1])).results(), list[Any])
    async for task in batch:
        assert_type(task, TaskView)
    assert_type(await client.operations.cancel(tag="x", dry_run=True), OperationView)
    assert_type((await client.operations.list()).items, tuple[OperationView, ...])
    await client.submit("plain", 1, unique={"key": "one"}, debounce={"key": "k", "ms": 100})
    limit = await client.limits.put(
        "openai", concurrency=Concurrency(total=5), rate=[RateLimit(count=10, per_ms=1000)]
    )
    assert_type(limit, LimitView)


def many_in_threads(client: SyncClient) -> None:
    assert_type(client.submit_many(greet, ["Ada"]).results(), list[str])
    assert_type(client.submit_many(plain, [1], priority="low").results(), list[Receipt])
    assert_type(client.submit_many("x", [1], result_type=Receipt).results(), list[Receipt])
    batch = client.submit_many("plain", range(3))
    assert_type(batch.wait(), BatchView)
    assert_type(list(batch), list[TaskView])


async def parts(client: Client) -> None:
    assert_type(await client.flows.start("greetings", {"names": ["Ada"]}), RunView)
    assert_type(await client.flows.run("greetings", {"names": ["Ada"]}), dict[str, Any])
    assert_type(await client.runs.get("id"), RunDetail)
    assert_type(await client.runs.wait("id", 1000), RunDetail)
    assert_type(await client.runs.fork("id", "send"), RunView)
    assert_type(await client.schedules.put("nightly", type="bare", cron="@daily"), ScheduleDetail)
    assert_type(await client.queues.pause("bare", reason="a deployment"), QueueView)
    assert_type((await client.approvals()).items, tuple[ApprovalView, ...])
    assert_type(await client.approve("id", comment="as agreed"), ApprovalView)
    assert_type(await client.replay(["id"], rate=5, dry_run=True), Replayed)
    assert_type(await client.abandon(["id"], reason="too late"), Abandoned)
    assert_type(await client.workers(), tuple[WorkerView, ...])
    assert_type(await client.services(), tuple[ServiceView, ...])
    assert_type(await client.attention(), tuple[AttentionItem, ...])
    assert_type(await client.keys.create("web", ["submit"]), KeyCreated)
    assert_type(await client.keys.audit(by="web"), Page[AuditEntry])
    assert_type(await client.callback_secret(), str)
    async for record in client.follow_task_logs("id"):
        assert_type(record, LogRecord)


def in_a_transaction(connection: object) -> str:
    return str(enqueue(connection, "bare", {"number": 1}, priority="low"))


async def calls(client: Client) -> None:
    assert_type(await client.run(greet, name="Ada"), str)
    assert_type(await client.run(greet, "Ada", times=2), str)
    assert_type(await client.run(plain, number=1), Receipt)
    assert_type(await client.run(bare, 1), list[Receipt])
    assert_type(await client.submit(greet, name="Ada"), TaskView)
    assert_type(await client.run("bare", {"number": 1}, result_type=Receipt), Receipt)
    assert_type(await client.run("bare", {"number": 1}, result_type=list[Receipt]), list[Receipt])
    later = client.options(queue="slow", delay=timedelta(hours=1), priority="low")
    assert_type(await later.submit(bare, number=1), TaskView)
    assert_type(await later.run(bare, number=1), list[Receipt])
    task = await client.submit("bare", {"number": 1}, wait=timedelta(seconds=1))
    assert_type(await client.result(task.id, result_type=Receipt), Receipt)
    assert_type(await client.wait(task.id, timeout=timedelta(seconds=1)), TaskView)
    assert_type(await client.explain(task.id), Explanation)
    assert_type(await client.list(state="dead"), Page[TaskView])
    assert_type(await client.task_logs(task.id), Page[LogRecord])
    assert_type(await client.flows.publish(Flow("x")), FlowView)
    async for event in client.stream(task.id):
        assert_type(event, TaskEvent)


def blocking(client: SyncClient) -> None:
    assert_type(client.run(greet, name="Ada"), str)
    assert_type(client.run(plain, number=1), Receipt)
    assert_type(client.submit(bare, number=1), TaskView)
    assert_type(client.options(queue="slow").run(bare, number=1), list[Receipt])
    assert_type(client.run("bare", {"number": 1}, result_type=Receipt), Receipt)
    assert_type(client.get("id"), TaskView)
    assert_type(client.wait("id", timeout=timedelta(seconds=1)), TaskView)
    assert_type(client.list(state="dead", limit=1), Page[TaskView])
    assert_type(client.schedules.list(), Page[ScheduleView])
    assert_type(client.call(lambda each: each.explain("id")), Explanation)
    for event in client.stream("id"):
        assert_type(event, TaskEvent)


def errors(client: SyncClient) -> str:
    try:
        client.run(bare, number=1)
    except TaskFailed as error:
        return error.task.reason
    except StillRunning as error:
        return error.task.id
    except ProblemError as error:
        return f"{error.status} {error.code} {error.hint or ''}"
    except (Unreachable, OnwardError) as error:
        return error.code
    except EffectUnknown:
        raise
    return ""


async def kit(onward: Sandbox) -> None:
    await onward.serve(worker)
    fake = await onward.fake("mail", True)
    assert_type(fake.calls, list[dict[str, Any]])
    while await onward.jump():
        assert_type(await onward.client.run(bare, number=1), list[Receipt])
    await onward.jump(timedelta(seconds=5), while_running=True)


async def by_itself() -> None:
    ctx = FakeContext(Pool(1), attempt=2)
    assert_type(await greet(ctx, "Ada"), str)
    assert_type(plain(FakeContext(), 1), Receipt)
    assert_type(ctx.state.size, int)
    assert_type(ctx.progressed, list[tuple[float, str | None]])
