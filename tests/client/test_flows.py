"""Flows and runs by the client against a real server: publish, run, signal, fork."""

from __future__ import annotations

import pytest

from onward.client.errors import ProblemError, StillRunning, TaskFailed
from onward.client.failures import Refused
from onward.client.http import Client
from onward.client.worker import Worker
from onward.flow.builder import Flow, params, shared
from tests.client.conftest import Line, Start

pytestmark = pytest.mark.contract("N-5", "N-7")


@pytest.fixture
async def client(client: Client, start: Start) -> Client:
    worker = Worker(client.url)

    @worker.service
    async def double(n: int) -> int:
        if n > 100:
            raise Refused("too much")
        return n * 2

    await start(worker)
    return client


@pytest.fixture
def flow() -> Flow:
    flow = Flow("twice")
    first = flow.executor("first", "double", input=params.n, output="n")
    first >> flow.executor("second", "double", input=shared.n, output="n")
    return flow


def waiting() -> Flow:
    flow = Flow("waiting")
    flow.wait_event("paid", shared.payment)
    return flow


async def test_a_flow_of_the_builder_is_published_and_run(client: Client, flow: Flow) -> None:
    published = await client.flows.publish(flow)
    assert (published.name, published.version) == ("twice", 1)
    assert await client.flows.run("twice", {"n": 3}) == {"n": 12}
    assert (await client.flows.publish("twice", flow.definition())).version == 2
    found = await client.flows.get("twice")
    assert [each.version for each in found.versions] == [2, 1]
    assert [node.key for node in found.nodes] == ["first", "second"]
    assert (await client.flows.get("twice", 1)).definition == flow.definition()
    assert [each.name for each in (await client.flows.list()).items] == ["twice"]


async def test_a_run_tells_of_its_nodes_and_of_its_failure(client: Client, flow: Flow) -> None:
    await client.flows.publish(flow)
    with pytest.raises(TaskFailed, match="node 'second': too much") as failed:
        await client.flows.run("twice", {"n": 60})
    run = await client.runs.get(failed.value.task.id)
    assert (run.flow, run.version, run.current_node) == ("twice", 1, "second")
    assert [(row.node_key, row.status) for row in run.node_runs] == [
        ("first", "ok"),
        ("second", "error"),
    ]
    again = await client.runs.fork(run.id, "second", {"n": 7})
    assert (await client.runs.wait(again.id)).result == {"n": 14}
    assert {each.id for each in (await client.runs.list(flow="twice")).items} == {run.id, again.id}
    with pytest.raises(ProblemError, match="no node 'third'"):
        await client.runs.fork(run.id, "third")


async def test_a_run_waits_for_a_signal_or_for_its_end(client: Client) -> None:
    await client.flows.publish(waiting())
    run = await client.flows.start("waiting")
    with pytest.raises(StillRunning):
        await client.runs.wait(run.id, 50)
    with pytest.raises(StillRunning):
        await client.flows.run("waiting", wait_ms=50)
    await client.runs.signal(run.id, "payment", {"sum": 1})
    assert (await client.runs.wait(run.id)).result == {"payment": {"sum": 1}}
    other = await client.flows.start("waiting")
    await client.runs.cancel(other.id)
    assert (await client.runs.wait(other.id)).state == "canceled"


async def test_a_start_whose_answer_is_lost_is_one_run(client: Client, line: Line) -> None:
    await client.flows.publish(waiting())
    line.swallow_answers = 1
    async with Client(line.url) as far:
        run = await far.flows.start("waiting")
    assert line.connections == 2
    assert [each.id for each in (await client.runs.list()).items] == [run.id]
