"""A flow with every node kind, run by processes of which each is killed at another step.

`python -m tests.faults.flow_steps FOLDER FROM EVERY [POSTGRES]` forks a child for every so many-th
write of the ledger, from FROM on. The child kills itself with SIGKILL at that write, a second one
goes on and is not killed, and a line of JSON says what the run looks like in the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from onward.client.context import Context
from onward.client.service import Service
from onward.core.approval import Decision
from onward.core.contract import Query
from onward.core.errors import Conflict, Invalid, LedgerUnavailable
from onward.core.task import FINAL, State, Task, TaskId, encode, new_id
from onward.engine import Onward
from onward.flow.runs import SIGNAL, Start, new_run
from onward.ledgers.portable import open_portable
from onward.ledgers.portable.records import TaskRecord
from onward.settings import Settings

RUN = "run"
BALLAST = "x" * 6_000  # so much that its memory is kept in two parts
INNER = {
    "start": "double",
    "nodes": {
        "double": {
            "kind": "executor",
            "service": "add",
            "prep": {"input_key": "n"},
            "params": {"by": 10},
            "post": {"output_key": "n"},
        },
        "look": {
            "kind": "choice",
            "choice_cases": [{"action": "big", "expr": {"gt": ["$shared.n", 5]}}],
            "default_action": "small",
        },
    },
    "edges": [{"from": "double", "action": "default", "to": "look"}],
}
FLOW: dict[str, Any] = {
    "start": "first",
    "nodes": {
        "first": {
            "kind": "executor",
            "service": "add",
            "prep": {"input_key": "$params.n"},
            "post": {"output_key": "n"},
            "compensate": {"service": "add"},
        },
        "which": {
            "kind": "choice",
            "choice_cases": [{"action": "go", "expr": {"ge": ["$shared.n", 1]}}],
        },
        "fan": {
            "kind": "parallel",
            "parallel_services": ["add", "double"],
            "parallel_mode": "concurrent",
            "prep": {"input_key": "n"},
            "post": {"output_key": "fanned"},
        },
        "rest": {"kind": "timer", "params": {"delay_ms": 20}},
        "each": {
            "kind": "foreach",
            "service": "double",
            "prep": {"input_key": "fanned"},
            "parallel_mode": "concurrent",
            "max_parallel": 2,
            "post": {"output_key": "doubled"},
        },
        "inside": {
            "kind": "subflow",
            "subflow": INNER,
            "prep": {"input_map": {"n": "n"}},
            "post": {"output_key": "inner"},
        },
        "news": {"kind": "wait_event", "params": {"signal_key": "$shared.word"}},
        "boss": {"kind": "approval", "params": {"approval_key": "$shared.said"}},
        "own": {
            "kind": "local",
            "service": "add",
            "prep": {"input_key": "n"},
            "post": {"output_key": "n"},
        },
        "other": {
            "kind": "flow_ref",
            "params": {"flow": "small"},
            "prep": {"input_map": {"n": "n"}},
            "post": {"output_key": "referred"},
        },
    },
    "edges": [
        {"from": "first", "action": "default", "to": "which"},
        {"from": "which", "action": "go", "to": "fan"},
        {"from": "fan", "action": "default", "to": "rest"},
        {"from": "rest", "action": "default", "to": "each"},
        {"from": "each", "action": "default", "to": "inside"},
        {"from": "inside", "action": "default", "to": "news"},
        {"from": "news", "action": "default", "to": "boss"},
        {"from": "boss", "action": "approved", "to": "own"},
        {"from": "own", "action": "default", "to": "other"},
    ],
}
KINDS = {node["kind"] for node in FLOW["nodes"].values()}
LEASE_MS = 150


def services(diary: Path) -> dict[str, Service]:
    def wrote(ctx: Context) -> None:
        with diary.open("a") as book:
            book.write(f"{ctx.task_id}\n")

    async def add(input: float, params: dict[str, Any], ctx: Context) -> float:
        wrote(ctx)
        return input + float(params.get("by", 1))

    async def double(input: float, params: dict[str, Any], ctx: Context) -> float:
        wrote(ctx)
        return input * 2

    return {"add": Service(add), "double": Service(double)}


class Mine:
    """Goes off at the n-th write of the ledger: before it, or after it is on disk."""

    def __init__(self, onward: Onward, at: int) -> None:
        self.writes = 0
        self._at = at
        store = onward.backend.tasks
        for name in ("apply", "claim", "insert", "extend", "post"):
            setattr(store, name, self._laid(getattr(store, name)))

    def _laid(self, work: Callable[..., Any]) -> Callable[..., Any]:
        async def laid(*args: Any, **more: Any) -> Any:
            self.writes = number = self.writes + 1
            if number * 2 == self._at:
                os.kill(os.getpid(), signal.SIGKILL)
            found = await work(*args, **more)
            if number * 2 + 1 == self._at:  # others may have begun meanwhile: not `self.writes`
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return laid


async def run_to_the_end(folder: Path, ledger: str, *, kill_at: int = 0) -> dict[str, Any]:
    settings = Settings(ledger=ledger, lease_ms=LEASE_MS, synchronous="normal")
    onward = Onward(settings, services=services(folder / "diary"))
    mine = Mine(onward, kill_at)
    async with onward:
        store = onward.backend.tasks
        for name, definition in (("small", INNER), ("all", FLOW)):
            flow = await onward.flow_catalog.create(name)
            if not flow.version:
                await onward.flow_catalog.publish(flow.id, definition)
        if (await store.get([RUN]))[0] is None:
            published = await onward.flow_catalog.pick("all")
            start = Start(params={"n": 1}, shared={"ballast": BALLAST})
            await onward.dispatcher.submit(new_run(RUN, published, onward.clock.now(), start))
        while (run := (await store.get([RUN]))[0]) is None or run.state not in FINAL:
            await help_along(onward, run)
            await asyncio.sleep(0.005)
        return {"writes": mine.writes, **await told(onward, run)}


async def help_along(onward: Onward, run: Task | None) -> None:
    """What people do: say yes, and send the word that is waited for."""
    if run is not None and run.state is State.WAITING and run.waiting_for == "event":
        body = encode({"name": "word", "value": "go"})
        await onward.dispatcher.signal(RUN, SIGNAL, body)
    asked = await onward.backend.tasks.find(Query(waiting_for="approval"))
    for question in asked.items:
        with suppress(Conflict):
            await onward.dispatcher.approve(question.id, Decision(by="ada"))


async def told(onward: Onward, run: Task) -> dict[str, Any]:
    store = onward.backend.tasks
    events = await store.events(after="0", limit=1000, task=RUN)
    nodes = []
    for event in events.items:
        if event.type.startswith("node."):
            data = json.loads(event.data or "{}")
            nodes.append([event.type, data["node"], data.get("status"), data.get("action")])
    children = await store.find(Query(parent=RUN, limit=1000))
    return {
        "state": run.state,
        "shared": json.loads(run.result or "null"),
        "nodes": nodes,
        "children": sorted([child.id, child.state, child.result] for child in children.items),
    }


def new_ledger(folder: Path, postgres: str | None) -> str:
    """An empty one: a file, or a database of the server that `postgres` is a URL of."""
    if postgres is None:
        return f"sqlite:///{folder}/ledger.db"
    name = f"flow_{new_id()[-12:]}"
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY file_copy")
    return urlsplit(postgres)._replace(path=f"/{name}").geturl()


async def done_in(ledger: str) -> set[TaskId]:
    """Calls that are over, by the ledger as the killed process left it."""
    done: set[TaskId] = set()
    with suppress(Invalid, LedgerUnavailable):  # killed before there was a table
        async for records in open_portable(ledger).read():
            tasks = [record for record in records if isinstance(record, TaskRecord)]
            done |= {task.id for task in tasks if task.fields.get("state") == "succeeded"}
    return done


def in_child(work: Callable[[], dict[str, Any]], out: Path) -> int:
    """Runs it in a fork of this process; returns how that ended (0, or minus the signal)."""
    pid = os.fork()
    if pid == 0:
        try:
            out.write_text(json.dumps(work()))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def lines(diary: Path) -> list[str]:
    return diary.read_text().split() if diary.exists() else []


def killed_at(folder: Path, ledger: str, at: int) -> dict[str, Any]:
    out, diary = folder / "out.json", folder / "diary"
    how = in_child(lambda: asyncio.run(run_to_the_end(folder, ledger, kill_at=at)), out)
    over, before = asyncio.run(done_in(ledger)), lines(diary)
    if how == -signal.SIGKILL:
        ended = in_child(lambda: asyncio.run(run_to_the_end(folder, ledger)), out)
        assert ended == 0, f"the run did not end after a kill at {at}"
    again = [id for id in lines(diary)[len(before) :] if id in over]
    found = json.loads(out.read_text())
    return {"at": at, "how": how, "done_again": again, "ledger": ledger, **found}


def main() -> None:
    folder, first, every = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    postgres = sys.argv[4] if len(sys.argv) > 4 else None
    at = first
    while True:
        place = folder / f"{at}-{new_id()[-6:]}"
        place.mkdir()
        result = killed_at(place, new_ledger(place, postgres), at)
        sys.stdout.write(json.dumps(result) + "\n")
        if result["how"] == 0:
            return  # there are no more writes: this one came through unharmed
        at += every


if __name__ == "__main__":
    main()
