"""What a worker does whose registration is refused: it ends, or it waits for what is missing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.client.errors import WorkerRefused
from onward.client.http import Client
from onward.client.retrying import Admission
from onward.client.worker import Worker
from onward.wire.limits import Concurrency
from tests.client.conftest import served
from tests.support import wait_until


@pytest.mark.contract("S0-12")
@pytest.mark.parametrize(
    ("of_worker", "of_service", "why"),
    [
        ({"concurrency": 1200}, {}, "concurrency: expected a whole number <= 1000"),
        ({"id": "w" * 129}, {}, "workerId"),
        ({}, {"partition_by": "*"}, "leads to more than one value"),
    ],
)
async def test_a_registration_that_no_server_would_take_ends_the_worker(
    url: str, of_worker: dict[str, Any], of_service: dict[str, Any], why: str
) -> None:
    worker = Worker(url, **of_worker)
    worker.service(name="work", **of_service)(lambda: None)
    with pytest.raises(WorkerRefused, match=why):
        await asyncio.wait_for(worker.serve(), 30)


@pytest.mark.contract("S0-12")
async def test_a_registration_whose_limit_is_yet_to_come_is_tried_again(
    url: str, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url)
    worker.service(name="work", limits=["smtp"])(lambda: None)
    serving = asyncio.create_task(worker.serve())
    await wait_until(lambda: "no limit is called 'smtp'" in caplog.text)
    await client.limits.put("smtp", concurrency=Concurrency(total=1))
    await wait_until(lambda: worker.connected)
    worker.drain()
    await asyncio.wait_for(serving, 30)


@pytest.mark.contract("K-7")
async def test_a_key_that_is_not_let_in_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "LIMIT_S", 0.2)
    admin = "a" * 40
    async with served(admin_key=admin) as url, Client(url, key=admin) as client:
        other = await client.keys.create("other", ["work:other"])
        reader = await client.keys.create("reader", ["read"])
        refusals = [
            (other.token, "may not serve work"),
            (reader.token, "the scope work"),
            ("onward_0_0", "not known here"),
        ]
        for token, why in refusals:
            worker = Worker(url, key=token)
            worker.service(name="work")(lambda: None)
            with pytest.raises(WorkerRefused, match=why):
                await asyncio.wait_for(worker.serve(), 30)
