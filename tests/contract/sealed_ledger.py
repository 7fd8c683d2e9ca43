"""A ledger opened again and again with other keys, tasks full of secrets, and all its bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from onward.core.approval import ask
from onward.core.clock import ManualClock
from onward.core.outcome import Failed, Succeeded
from onward.core.task import TaskId
from onward.faults import Fault
from onward.ledgers.archive import ArchivedBackend, Archiver
from onward.ledgers.sealed import SealedBackend, unwrap
from tests.contract.driver import Driver
from tests.servers import shared
from tests.support import PROFILES

K1, K2 = f"k1:{'A' * 43}=", f"k2:{'B' * 42}A="
OLD, BOTH, NEW = K1, f"{K2},{K1}", K2
SECRET = "canary-4111"
TEXT = msgspec.json.encode({"card": SECRET}).decode()
BAD = Failed(Fault(kind="InvalidInput", message=f"no such card: {SECRET}"))


class SealedLedger:
    """One ledger, opened again and again with other keys."""

    def __init__(self, opened: Callable[[str], Any], raw: Callable[[], bytes]) -> None:
        self._open = opened
        self.raw = raw  # everything that it keeps, as it is kept
        self.driver: Driver = None  # type: ignore[assignment]

    async def use(self, keys: str) -> Driver:
        if self.driver is not None:
            await self.driver.backend.close()
        self.driver = Driver(self._open(keys))
        return self.driver

    async def file(self) -> None:
        """What goes to an archive goes there."""
        ledger = unwrap(self.driver.backend)
        if isinstance(ledger, ArchivedBackend):
            retention = {name: profile.retention_ms for name, profile in PROFILES.items()}
            archiver = Archiver(ledger, ManualClock(self.driver.now), retention)
            await archiver.prepare()
            assert await archiver.step()

    async def rotate(self, *, dry_run: bool = False) -> tuple[int, int, dict[str, int]]:
        assert isinstance(self.driver.backend, SealedBackend)
        resealed, unreadable, held = 0, 0, dict[str, int]()
        after: str | None = ""
        while after is not None:
            step = await self.driver.backend.rotation.step(after, dry_run=dry_run)
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


async def lived(driver: Driver) -> dict[str, TaskId]:
    """Tasks with the secret in everything that a person or a worker can write."""
    held = await driver.running(queue="done", payload=TEXT)
    await driver.hold(held, ("task.chunk", TEXT), progress=TEXT)
    assert await driver.backend.effects.begin(held, "pay", now=driver.now) is None
    await driver.backend.effects.finish(held, "pay", TEXT, fence=held.fence)
    await driver.settle(held, Succeeded(TEXT, journal=TEXT))
    failed = await driver.running(queue="failed", payload=TEXT)
    await driver.settle(failed, BAD)
    asked = ask(TEXT, driver.now, reason=SECRET)
    asks = await driver.submit(
        queue="asks", payload=TEXT, waiting_for="approval", approval=asked.encode()
    )
    runs = await driver.running(queue="runs", payload=TEXT)
    await driver.post(runs.id, TEXT)
    await driver.backend.documents.put("schedule", "nightly", TEXT, now=driver.now)
    return {"done": held.id, "failed": failed.id, "asks": asks.id, "runs": runs.id}


async def check_readable(driver: Driver, ids: dict[str, TaskId]) -> None:
    done = await driver.task(ids["done"])
    assert (done.payload, done.result, done.journal, done.progress) == (TEXT,) * 4
    assert SECRET in str((await driver.task(ids["failed"])).error)
    assert SECRET in str((await driver.task(ids["asks"])).approval)
    chunks = [event.data for event in await driver.events_of(done.id) if event.type == "task.chunk"]
    assert chunks == [TEXT]
    effect = await driver.backend.effects.begin(done, "pay", now=driver.now)
    assert effect is not None
    assert effect.value == TEXT
    schedule = await driver.backend.documents.get("schedule", "nightly", now=driver.now)
    assert schedule is not None
    assert schedule.body == TEXT
    assert [
        document.body for document in await driver.backend.documents.list("schedule", now=0)
    ] == [TEXT]
