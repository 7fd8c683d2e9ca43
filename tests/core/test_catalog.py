"""Which services are declared: what one server hears, another knows at once when it is asked."""

from __future__ import annotations

from onward.backends import open_backend
from onward.core.catalog import FRESH_MS, MISSED_MS, Catalog, Declared
from onward.core.clock import ManualClock


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
