"""Which services are declared: what one server hears, another knows at once when it is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.core.clock import ManualClock
from onward.ledgers import open_backend
from onward.services.catalog import FRESH_MS, MISSED_MS, RENEW_MS, Catalog, Declared


async def test_a_service_declared_on_another_server_is_found_when_it_is_missed(
    clock: ManualClock,
) -> None:
    backend = open_backend("sqlite:///:memory:")
    one, two = Catalog(backend, clock), Catalog(backend, clock)
    assert await two.of("ocr") is None
    await one.declare(Declared(name="ocr", task_types=("ocr",)))
    clock.advance(MISSED_MS)
    assert await two.of("ocr") is not None, "not only when its second is over"
    await one.remove("ocr")
    clock.advance(MISSED_MS)
    assert await two.of("ocr") is not None, "what is known is believed for a second"
    clock.advance(FRESH_MS)
    assert await two.of("ocr") is None
    await backend.close()


async def test_what_is_known_can_be_renewed_before_it_is_too_old(clock: ManualClock) -> None:
    backend = open_backend("sqlite:///:memory:")
    one, two = Catalog(backend, clock), Catalog(backend, clock)
    await one.declare(Declared(name="ocr", task_types=("ocr",)))
    await two.renew()
    await one.remove("ocr")
    clock.advance(RENEW_MS - 1)
    await two.renew()
    assert (two.is_aging(clock.now()), two.known("ocr") is None) == (False, False)
    clock.advance(1)
    assert two.is_aging(clock.now())
    await two.renew()
    assert (two.is_aging(clock.now()), two.known("ocr")) == (False, None)
    await backend.close()


async def test_a_slow_read_does_not_undo_what_was_declared_meanwhile(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_backend("sqlite:///:memory:")
    catalog = Catalog(backend, clock)
    read, go_on = backend.documents.list, asyncio.Event()

    async def slow(kind: str, *, now: int) -> Any:
        found = await read(kind, now=now)
        await go_on.wait()
        return found

    monkeypatch.setattr(backend.documents, "list", slow)
    renewing = asyncio.create_task(catalog.renew())
    await asyncio.sleep(0)
    monkeypatch.setattr(backend.documents, "list", read)
    await catalog.replace(Declared(name="ocr", task_types=("ocr",), requires_approval=True))
    go_on.set()
    await renewing
    found = catalog.known("ocr")
    assert found is not None
    assert found.requires_approval
    await backend.close()


async def test_what_is_known_is_relied_on_for_as_long_as_it_is_not_looked_for(
    clock: ManualClock,
) -> None:
    backend = open_backend("sqlite:///:memory:")
    catalog = Catalog(backend, clock)

    def is_fresh(type_: str) -> bool:
        return catalog.is_fresh(catalog.known(type_), clock.now())

    assert not is_fresh("ocr")
    declared = await catalog.declare(Declared(name="ocr", task_types=("ocr",)))
    assert (is_fresh("ocr"), catalog.known("ocr")) == (True, declared)
    assert (is_fresh("mail"), catalog.known("mail")) == (True, None)
    clock.advance(MISSED_MS)
    assert (is_fresh("ocr"), is_fresh("mail")) == (True, False)
    clock.advance(FRESH_MS - MISSED_MS)
    assert not is_fresh("ocr")
    await backend.close()
