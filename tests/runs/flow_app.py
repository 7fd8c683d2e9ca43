"""A running application with workers that do arithmetic, and how to run a flow to its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sized
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from tests.running_app import App, SocketWorker, running_app
from tests.support import wait_until

Answers = Mapping[str, Callable[[Any, Mapping[str, Any]], Any]]
HELD = object()  # the answer of a service that does not answer yet


class Broken(Exception):
    """Raise it in an answer: the call fails."""

    def __init__(self, text: str, **more: Any) -> None:
        super().__init__(text)
        self.more = more


def broken(_: Any, __: Mapping[str, Any]) -> Any:
    raise Broken("it broke", retryable=False)


def odd(value: Any, _: Mapping[str, Any]) -> Any:
    if value % 2:
        raise Broken(f"{value} is odd")
    return value * 10


SERVICES: Answers = {
    "upper": lambda value, params: str(value).upper(),
    "add": lambda value, params: (value or 0) + params.get("by", 1),
    "total": lambda value, params: sum(value),
    "route": lambda value, params: {"action": params["action"]},
    "echo": lambda value, params: value,
    "params": lambda value, params: params,
    "held": lambda value, params: HELD,
    "broken": broken,
    "odd": odd,
}


class FlowApp:
    def __init__(self, app: App) -> None:
        self.app = app
        self.seen: list[tuple[str, Any, dict[str, Any]]] = []
        self.callers: list[tuple[str, str]] = []  # which worker was called for which service
        self.held: list[str] = []  # calls without an answer so far
        self.told: list[str] = []  # calls whose worker received a cancel frame
        self._serving: list[asyncio.Task[None]] = []
        self._by_call: dict[str, SocketWorker] = {}

    async def serve(
        self, answers: Answers = SERVICES, *, concurrency: int = 8, **register: Any
    ) -> SocketWorker:
        worker = await self.app.worker(
            group=None, services=list(answers), concurrency=concurrency, **register
        )
        self._serving.append(asyncio.ensure_future(self._answer(worker, answers)))
        return worker

    async def _answer(self, worker: SocketWorker, answers: Answers) -> None:
        while True:
            frame = await worker.receive(timeout=3600)
            if frame["type"] == "cancel":
                self.told.append(frame["taskId"])
            if frame["type"] != "task":
                continue
            call, service, payload = frame["taskId"], frame["service"], frame["payload"]
            self.seen.append((service, payload["input"], payload["params"]))
            self.callers.append((worker.id, service))
            try:
                result = answers[service](payload["input"], payload["params"])
            except Broken as error:
                await worker.answer(call, error=str(error), **error.more)
                continue
            if result is HELD:
                self._by_call[call] = worker
                self.held.append(call)
            else:
                await worker.answer(call, result)

    async def release(self, call: str, result: Any = None, **more: Any) -> None:
        """The answer of a call that was held."""
        self.held.remove(call)
        await self._by_call.pop(call).answer(call, result, **more)

    async def publish(self, definition: Any, name: str = "f") -> str:
        flow = (await self.app.post("/flows", {"name": name})).json()["id"]
        body = {"flow_id": flow, "definition": definition}
        response = await self.app.post("/flows/version", body)
        assert response.status_code == 200, response.text
        return str(flow)

    async def start(self, definition: Any, **body: Any) -> str:
        return await self.begin(await self.publish(definition), **body)

    async def begin(self, flow: str, **body: Any) -> str:
        response = await self.app.post("/tasks", {"flow_id": flow, **body})
        assert response.status_code == 200, response.text
        assert response.json()["status"] == "pending"
        return str(response.json()["id"])

    async def read(self, run: str) -> dict[str, Any]:
        response = await self.app.get(f"/api/v2/runs/{run}")
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def ended(self, run: str) -> dict[str, Any]:
        response = await self.app.get(f"/api/v2/runs/{run}?wait_ms=10000")
        found: dict[str, Any] = response.json()
        assert found["state"] in ("succeeded", "failed", "canceled"), found
        return found

    async def run(self, definition: Any, **body: Any) -> dict[str, Any]:
        return await self.ended(await self.start(definition, **body))

    async def until(
        self,
        run: str,
        holds: Callable[[dict[str, Any]], object] = lambda found: found["state"] == "waiting",
    ) -> dict[str, Any]:
        """Until it waits (or whatever is asked for); what it is then."""
        return await wait_until(lambda: self.read(run), holds=holds)

    async def later(self, ms: int) -> None:
        """The clock strikes, and whatever follows from it has happened."""
        await self.app.advance(ms)
        await self.app.settled()

    async def row(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.app.get(f"/tasks/get?id={run}")).json()
        return found

    async def shared(self, run: str) -> dict[str, Any]:
        """What the flow's own nodes have written."""
        found: dict[str, Any] = json.loads((await self.row(run))["shared_json"])
        return {key: value for key, value in found.items() if key != "_rt"}

    async def rt(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((await self.row(run))["shared_json"]).get("_rt", {})
        return found

    async def node_runs(self, run: str) -> list[dict[str, Any]]:
        response = await self.app.get(f"/tasks/runs?task_id={run}")
        assert response.status_code == 200, response.text
        found: list[dict[str, Any]] = response.json()
        return found

    async def trail(self, run: str, *columns: str) -> list[tuple[Any, ...]]:
        wanted = columns or ("node_key", "status", "action")
        return [tuple(row[name] for name in wanted) for row in await self.node_runs(run)]

    async def inbox(self, status: str = "open") -> list[dict[str, Any]]:
        page = (await self.app.get(f"/api/v2/approvals?status={status}")).json()
        found: list[dict[str, Any]] = page["items"]
        return found

    async def decide(self, approval: str, verb: str, **body: Any) -> Any:
        return await self.app.post(f"/api/v2/approvals/{approval}/{verb}", body)

    async def signal(self, run: str, **body: Any) -> Any:
        return await self.app.post(f"/api/v2/runs/{run}/signal", body)

    async def cancel(self, run: str) -> str:
        response = await self.app.post(f"/tasks/cancel?id={run}", None)
        assert response.status_code == 200, response.text
        assert response.json().keys() == {"id", "status"}
        return str(response.json()["status"])

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


@asynccontextmanager
async def open_flow_app(**settings: Any) -> AsyncIterator[FlowApp]:
    async with running_app(**settings) as app:
        flows = FlowApp(app)
        yield flows
        await flows.close()


def chain(*nodes: tuple[str, Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """Nodes one after the other."""
    keys = [key for key, _ in nodes]
    edges = [{"from": a, "to": b} for a, b in pairwise(keys)]
    return {"start": keys[0], "nodes": dict(nodes), "edges": edges, **more}


def call(service: str, input: str | None = None, output: str | None = None, **more: Any) -> Any:
    node = {"kind": "executor", "service": service, **more}
    if input is not None:
        node["prep"] = {"input_key": input}
    if output is not None:
        node["post"] = {"output_key": output, **more.get("post", {})}
    return node


def edge(source: str, action: str, target: str) -> dict[str, str]:
    return {"from": source, "action": action, "to": target}


def counted(things: Sized, many: int) -> Callable[[], bool]:
    return lambda: len(things) == many
