"""A ledger that is opened again and again, a life full of secrets in it, and all its bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from onward.core.approval import ask
from onward.core.clock import ManualClock
from onward.core.outcome import Failed, Succeeded
from onward.core.task import Fault, TaskId
from onward.ledgers.archive import ArchivedBackend, Archiver
from onward.ledgers.sealed import SealedBackend, unwrap
from tests.contract.desk import Desk
from tests.servers import shared
from tests.support import PROFILES

K1, K2 = f"k1:{'A' * 43}=", f"k2:{'B' * 42}A="
OLD, BOTH, NEW = K1, f"{K2},{K1}", K2
SECRET = "canary-4111"
TEXT = msgspec.json.encode({"card": SECRET}).decode()
BAD = Failed(Fault(kind="InvalidInput", message=f"no such card: {SECRET}"))


class Vault:
    """One ledger, opened again and again with other keys."""

    def __init__(self, opened: Callable[[str], Any], raw: Callable[[], bytes]) -> None:
        self._open = opened
        self.raw = raw  # everything that it keeps, as it is kept
        self.desk: Desk = None  # type: ignore[assignment]

    async def use(self, keys: str) -> Desk:
        if self.desk is not None:
            await self.desk.backend.close()
        self.desk = Desk(self._open(keys))
        return self.desk

    async def file(self) -> None:
        """What goes to an archive goes there."""
        ledger = unwrap(self.desk.backend)
        if isinstance(ledger, ArchivedBackend):
            retention = {name: profile.retention_ms for name, profile in PROFILES.items()}
            archiver = Archiver(ledger, ManualClock(self.desk.now), retention)
            await archiver.prepare()
            assert await archiver.step()

    async def rotate(self, *, dry_run: bool = False) -> tuple[int, int, dict[str, int]]:
        assert isinstance(self.desk.backend, SealedBackend)
        resealed, unreadable, held = 0, 0, dict[str, int]()
        after: str | None = ""
        while after is not None:
            step = await self.desk.backend.rotation.step(after, dry_run=dry_run)
            resealed, unreadable = resealed + step.resealed, unreadable + step.unreadable
            held = {key: held.get(key, 0) + step.held.get(key, 0) for key in {*held, *step.held}}
            after = step.next
        return resealed, unreadable, held


def redis_bytes(flavour: str, *, but: Sequence[bytes] = ()) -> bytes:
    """Every key and value of the server, whatever their type."""
    client: Any = shared(flavour).client
    readers = {
        b"string": lambda key: [client.get(key)],
        b"hash": lambda key: [part for pair in client.hgetall(key).items() for part in pair],
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"stream": lambda key: [
            part for _, fields in client.xrange(key) for pair in fields.items() for part in pair
        ],
    }
    found: list[bytes] = []
    for key in set(client.scan_iter()) - {*but}:
        found += [key, *readers[client.type(key)](key)]
    return b"\n".join(found)


def file_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.db*")))


async def lived(desk: Desk) -> dict[str, TaskId]:
    """Tasks with the secret in everything that a person or a worker can write."""
    held = await desk.running(queue="done", payload=TEXT)
    await desk.hold(held, ("task.chunk", TEXT), progress=TEXT)
    assert await desk.backend.effects.begin(held, "pay", now=desk.now) is None
    await desk.backend.effects.finish(held, "pay", TEXT, fence=held.fence)
    await desk.settle(held, Succeeded(TEXT, journal=TEXT))
    failed = await desk.running(queue="failed", payload=TEXT)
    await desk.settle(failed, BAD)
    asked = ask(TEXT, desk.now, reason=SECRET)
    asks = await desk.submit(
        queue="asks", payload=TEXT, waiting_for="approval", approval=asked.encode()
    )
    runs = await desk.running(queue="runs", payload=TEXT)
    await desk.post(runs.id, TEXT)
    await desk.backend.documents.put("schedule", "nightly", TEXT, now=desk.now)
    return {"done": held.id, "failed": failed.id, "asks": asks.id, "runs": runs.id}


async def check_readable(desk: Desk, ids: dict[str, TaskId]) -> None:
    done = await desk.task(ids["done"])
    assert (done.payload, done.result, done.journal, done.progress) == (TEXT,) * 4
    assert SECRET in str((await desk.task(ids["failed"])).error)
    assert SECRET in str((await desk.task(ids["asks"])).approval)
    chunks = [event.data for event in await desk.events_of(done.id) if event.type == "task.chunk"]
    assert chunks == [TEXT]
    effect = await desk.backend.effects.begin(done, "pay", now=desk.now)
    assert effect is not None
    assert effect.value == TEXT
    schedule = await desk.backend.documents.get("schedule", "nightly", now=desk.now)
    assert schedule is not None
    assert schedule.body == TEXT
    assert [document.body for document in await desk.backend.documents.list("schedule", now=0)] == [
        TEXT
    ]
