"""Wake-ups that a server sends to Celery workers: few, off the loop, and never in the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from onward.core.clock import ManualClock
from onward.core.contract import Backend
from onward.workers.celery.wake import WakeUps
from onward.workers.roster import Roster
from tests.support import wait_until

pytestmark = pytest.mark.contract("S3-13")


class Broker:
    def __init__(self) -> None:
        self.sent: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.trouble: Exception | None = None
        self.threads: set[str] = set()

    def send(self, queue: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.open.wait(60)
        if self.trouble is not None:
            raise self.trouble
        self.sent.append(queue)


class Server:
    """A server's side: its bell, its roster, and a broker."""

    def __init__(self, backend: Backend, clock: ManualClock) -> None:
        self.backend = backend
        self.roster = Roster(backend, clock)
        self.broker = Broker()
        self.wakeups = WakeUps(backend, self.roster, clock, self.broker.send)
        self.wakeups.start()

    async def hire(self, *queues: str, transport: str = "celery") -> None:
        member = self.roster.member(f"w-{'-'.join(queues)}", transport, queues, 1)
        await self.roster.join(member)
        for _ in range(2):
            await asyncio.sleep(0)  # it is announced, and its listeners are there

    def ring(self, *queues: str) -> None:
        self.backend.bell.ring(*[f"queue:{queue}" for queue in queues])


@asynccontextmanager
async def server(backend: Backend, clock: ManualClock) -> AsyncIterator[Server]:
    here = Server(backend, clock)
    try:
        yield here
    finally:
        here.broker.open.set()
        await here.wakeups.close()


async def test_a_ring_wakes_those_who_serve_the_queue(backend: Backend, clock: ManualClock) -> None:
    async with server(backend, clock) as here:
        await here.hire("echo", "mail")
        await here.hire("sockets", transport="socket")
        here.ring("mail", "sockets", "nobody")
        await wait_until(lambda: here.broker.sent == ["mail"])
        assert here.broker.threads == {"onward-wake_0"}, "sent on the event loop"


async def test_without_celery_workers_nothing_is_loaded(
    backend: Backend, clock: ManualClock
) -> None:
    async with server(backend, clock) as here:
        await here.hire("echo", transport="socket")
        here.ring("echo")
        await asyncio.sleep(0.02)
        assert here.broker.threads == set()


async def test_rings_while_one_is_being_sent_become_one_more(
    backend: Backend, clock: ManualClock
) -> None:
    async with server(backend, clock) as here:
        await here.hire("echo")
        here.broker.open.clear()
        here.ring("echo")
        await wait_until(lambda: here.broker.threads)
        for _ in range(50):
            here.ring("echo")
            await asyncio.sleep(0)
        here.broker.open.set()
        await wait_until(lambda: len(here.broker.sent) == 2)
        await asyncio.sleep(0.02)
        assert here.broker.sent == ["echo", "echo"]


async def test_of_two_servers_one_wakes(backend: Backend, clock: ManualClock) -> None:
    async with server(backend, clock) as first, server(backend, clock) as second:
        await first.hire("echo")
        await second.roster.refresh()
        await first.roster.beat()
        await second.roster.refresh()
        second.roster._all.update(first.roster._all)
        second.wakeups._look()
        await asyncio.sleep(0)
        first.ring("echo")
        await wait_until(lambda: first.broker.sent + second.broker.sent)
        await asyncio.sleep(0.02)
        assert len(first.broker.sent + second.broker.sent) == 1


async def test_a_broker_that_is_away_is_told_of_once_and_tried_again(
    backend: Backend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.workers.celery.wake.AGAIN_S", 0.005)
    async with server(backend, clock) as here:
        await here.hire("echo")
        here.broker.trouble = ConnectionError("no broker")
        with capture_logs() as logs:
            for _ in range(5):
                here.ring("echo")
                await asyncio.sleep(0.02)
            await wait_until(lambda: logs)
        assert [entry["event"] for entry in logs] == ["celery workers not woken"]
        here.broker.trouble = None
        here.ring("echo")
        await wait_until(lambda: here.broker.sent == ["echo"])


async def test_who_has_left_is_not_woken(backend: Backend, clock: ManualClock) -> None:
    async with server(backend, clock) as here:
        await here.hire("echo")
        (member,) = here.roster.members()
        await here.roster.leave(member)
        here.ring("echo")
        await asyncio.sleep(0.02)
        assert here.broker.sent == []
