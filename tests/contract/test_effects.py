"""Outside effects: begun once, finished and undone only by the attempt that began them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from onward.core.contract import Effect, Key
from onward.core.outcome import Released, Succeeded
from onward.core.task import Claimed
from onward.ledgers import open_backend
from tests.contract.driver import Driver, submission
from tests.contract.ledgers import KEYS
from tests.servers import FLAVOURS, fresh_url, shared
from tests.support import NOW, a_task

DAY_MS = 24 * 3_600_000


async def again(driver: Driver, held: Claimed) -> Claimed:
    """The next attempt of the same task."""
    await driver.settle(held, Released())
    (claimed,) = await driver.claim(held.queue)
    assert claimed.id == held.id
    return claimed


async def keyed(driver: Driver, scope: str, key: str, **fields: Any) -> Claimed:
    task = a_task(queue=scope, key=key, **fields)
    await driver.insert(submission(task, key=Key(scope, key, "body")))
    (claimed,) = await driver.claim(scope)
    return claimed


@pytest.mark.contract("S1-8")
async def test_an_effect_is_begun_once(driver: Driver) -> None:
    effects, first = driver.backend.effects, await driver.running()
    assert await effects.begin(first, "charge", now=NOW) is None
    second = await again(driver, first)
    assert await effects.begin(second, "charge", now=NOW) == Effect(first.id, 1, None)
    assert await effects.finish(second, "charge", '"receipt"', fence=1)
    third = await again(driver, second)
    assert await effects.begin(third, "charge", now=NOW) == Effect(first.id, 1, '"receipt"')


@pytest.mark.contract("S1-8")
async def test_effects_are_told_apart_by_task_and_name(driver: Driver) -> None:
    one, other = await driver.running(queue="a"), await driver.running(queue="b")
    for held, name in ((one, "mail"), (one, "charge"), (other, "mail")):
        assert await driver.backend.effects.begin(held, name, now=NOW) is None


@pytest.mark.contract("S1-8")
async def test_an_effect_that_did_not_happen_may_be_tried_again(driver: Driver) -> None:
    effects, first = driver.backend.effects, await driver.running()
    await effects.begin(first, "charge", now=NOW)
    await effects.undo(first, "charge")
    second = await again(driver, first)
    assert await effects.begin(second, "charge", now=NOW) is None


@pytest.mark.contract("S1-8")
async def test_a_done_effect_is_never_undone(driver: Driver) -> None:
    effects, held = driver.backend.effects, await driver.running()
    await effects.begin(held, "charge", now=NOW)
    await effects.finish(held, "charge", "1", fence=held.fence)
    await effects.undo(held, "charge")
    assert await effects.begin(held, "charge", now=NOW) == Effect(held.id, held.fence, "1")


@pytest.mark.contract("S1-8")
async def test_an_attempt_cannot_undo_what_another_began(driver: Driver) -> None:
    effects, first = driver.backend.effects, await driver.running()
    await effects.begin(first, "charge", now=NOW)
    second = await again(driver, first)
    await effects.undo(second, "charge")
    assert await effects.begin(second, "charge", now=NOW) == Effect(first.id, 1, None)


@pytest.mark.contract("S1-8")
async def test_an_attempt_that_was_overtaken_cannot_undo_what_the_next_may_be_repeating(
    driver: Driver,
) -> None:
    effects, first = driver.backend.effects, await driver.running()
    await effects.begin(first, "charge", now=NOW)
    second = await again(driver, first)  # was let to repeat it
    await effects.undo(first, "charge")
    assert await effects.finish(second, "charge", "2", fence=first.fence)
    assert await effects.begin(second, "charge", now=NOW) == Effect(first.id, 1, "2")


@pytest.mark.contract("S1-8")
async def test_an_attempt_that_was_overtaken_cannot_undo_what_the_next_began(
    driver: Driver,
) -> None:
    effects, first = driver.backend.effects, await driver.running()
    second = await again(driver, first)
    await effects.begin(second, "charge", now=NOW)
    await effects.undo(first, "charge")
    assert await effects.begin(second, "charge", now=NOW) == Effect(first.id, second.fence, None)


@pytest.mark.contract("S1-8")
async def test_only_the_fence_that_began_an_effect_finishes_it(driver: Driver) -> None:
    effects, first = driver.backend.effects, await driver.running()
    assert not await effects.finish(first, "charge", "0", fence=1), "it was never begun"
    await effects.begin(first, "charge", now=NOW)
    second = await again(driver, first)
    assert not await effects.finish(second, "charge", "2", fence=second.fence)
    assert await effects.begin(second, "charge", now=NOW) == Effect(first.id, 1, None)
    assert await effects.finish(first, "charge", "1", fence=first.fence), "overtaken, but it did it"
    assert await effects.begin(second, "charge", now=NOW) == Effect(first.id, 1, "1")


@pytest.mark.contract("S1-8")
async def test_the_first_value_of_an_effect_stays(driver: Driver) -> None:
    effects, held = driver.backend.effects, await driver.running()
    await effects.begin(held, "charge", now=NOW)
    for value in ("1", "2"):  # the second is a request that was sent again
        assert await effects.finish(held, "charge", value, fence=held.fence)
    assert await effects.begin(held, "charge", now=NOW) == Effect(held.id, held.fence, "1")


@pytest.mark.contract("S1-8")
async def test_of_racing_beginners_one_may_act(driver: Driver) -> None:
    held = await driver.running()
    calls = [driver.backend.effects.begin(held, "charge", now=NOW) for _ in range(10)]
    assert (await asyncio.gather(*calls)).count(None) == 1


@pytest.mark.contract("S1-8")
async def test_the_same_key_in_another_scope_has_effects_of_its_own(driver: Driver) -> None:
    effects = driver.backend.effects
    for scope in ("console", "streams"):
        held = await keyed(driver, scope, "order-1")
        assert await effects.begin(held, "charge", now=NOW) is None
        assert await effects.finish(held, "charge", f'"{scope}"', fence=held.fence)


@pytest.mark.contract("S1-8")
async def test_a_key_like_another_tasks_id_has_effects_of_its_own(driver: Driver) -> None:
    effects, plain = driver.backend.effects, await driver.running()
    assert await effects.begin(plain, "charge", now=NOW) is None
    imitates = await keyed(driver, "console", plain.id)
    assert await effects.begin(imitates, "charge", now=NOW) is None


@pytest.mark.contract("S1-8")
async def test_a_task_that_repeats_a_key_on_a_stream_has_the_same_effects(driver: Driver) -> None:
    effects = driver.backend.effects
    first = await keyed(driver, "streams", "pay-7", profile="streams")
    assert await effects.begin(first, "charge", now=NOW) is None
    # Adopted although the key was used: a worker had its entry already.
    await driver.insert(submission(a_task(queue="s", key="pay-7", profile="streams")))
    (repeats,) = await driver.claim("s")
    assert repeats.fence == first.fence
    assert await effects.begin(repeats, "charge", now=NOW) == Effect(first.id, 1, None)
    await effects.undo(repeats, "charge")
    assert await effects.begin(repeats, "charge", now=NOW) == Effect(first.id, 1, None)
    assert await effects.finish(repeats, "charge", "1", fence=1), "it was let to repeat it"


async def test_effects_without_a_key_are_forgotten_with_their_task(driver: Driver) -> None:
    effects, held = driver.backend.effects, await driver.running()
    await effects.begin(held, "charge", now=NOW)
    await driver.settle(held, Succeeded("1"))
    assert await driver.store.purge([held.id], now=NOW) == 1
    assert await effects.begin(held, "charge", now=NOW) is None


async def test_forgetting_a_key_leaves_the_effects_of_other_scopes(driver: Driver) -> None:
    effects = driver.backend.effects
    gone, stays = [await keyed(driver, scope, "order-1") for scope in ("console", "streams")]
    for held in (gone, stays):
        await effects.begin(held, "charge", now=NOW)
    await driver.settle(gone, Succeeded("1"))
    assert await driver.store.purge([gone.id], now=NOW) == 1
    await driver.store.purge([], now=NOW + 2 * DAY_MS)
    assert await effects.begin(stays, "charge", now=NOW) == Effect(stays.id, stays.fence, None)
    fresh = await keyed(driver, "console", "order-1")
    assert await effects.begin(fresh, "charge", now=NOW) is None


# Notes of earlier versions.


@pytest.mark.parametrize("keys", ["", KEYS])
async def test_a_file_of_an_earlier_version_keeps_its_effects(tmp_path: Path, keys: str) -> None:
    url = f"sqlite:///{tmp_path}/onward.db"
    driver = Driver(open_backend(url, keys=keys))
    held = [
        await driver.running(),
        await keyed(driver, "console", "order-1"),
        await keyed(driver, "console:session", "order-1"),
    ]
    for one in held[:2]:
        await driver.backend.effects.begin(one, "charge", now=NOW)
        await driver.backend.effects.finish(one, "charge", "1", fence=one.fence)
    await driver.backend.effects.begin(held[0], "mail", now=NOW)
    await driver.backend.close()

    connection = apsw.Connection(f"{tmp_path}/onward.db")
    for (view,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'view'"
    ).fetchall():
        connection.execute(f"DROP VIEW {view}")
    connection.execute(
        "CREATE TABLE was (key TEXT NOT NULL, name TEXT NOT NULL, fence INTEGER NOT NULL,"
        " begun_at INTEGER NOT NULL, value TEXT, PRIMARY KEY (key, name)) STRICT, WITHOUT ROWID;"
        "INSERT INTO was SELECT key, name, fence, begun_at, value FROM effect;"
        "DROP TABLE effect; ALTER TABLE was RENAME TO effect; PRAGMA user_version = 3;"
        "DROP TRIGGER long_payload; DROP TRIGGER long_result; DROP TRIGGER long_journal;"
        "DROP TRIGGER long_bulk; DROP TABLE long_text; ALTER TABLE task DROP COLUMN bulk;"
        "DROP TABLE rate;"
    )
    connection.close()

    driver = Driver(open_backend(url, keys=keys))
    effects = driver.backend.effects
    for one in held:  # the scopes shared a note, and neither acts again
        assert await effects.begin(one, "charge", now=NOW) == Effect(one.id, 1, "1")
    assert await effects.begin(held[0], "mail", now=NOW) == Effect(held[0].id, 1, None)
    await effects.undo(held[0], "mail")
    assert await effects.begin(held[0], "mail", now=NOW) is None
    await driver.backend.close()


@pytest.mark.parametrize("keys", ["", KEYS])
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_redis_of_an_earlier_version_keeps_its_effects(flavour: str, keys: str) -> None:
    driver = Driver(open_backend(fresh_url(flavour), keys=keys))
    held = [await driver.running(), await keyed(driver, "console", "order-1")]
    effects = driver.backend.effects
    redis: Any = shared(flavour).client
    for one in held:
        await effects.begin(one, "charge", now=NOW)
        await effects.finish(one, "charge", "1", fence=one.fence)
        (now,) = redis.keys("onward:effect:*")
        was = redis.hget(now, "charge").partition(b"\x1f")[2]
        old = f"onward:effects:{one.key or one.id}"
        redis.hset(old, mapping={"charge": b"1\x1f" + was, "mail": b"1\x1f", "sms": b"1\x1f"})
        redis.delete(now)
    for one in held:
        assert await effects.begin(one, "charge", now=NOW) == Effect(one.id, 1, "1")
        assert await effects.begin(one, "mail", now=NOW) == Effect(one.id, 1, None)
        assert await effects.finish(one, "mail", "2", fence=1)
        assert await effects.begin(one, "mail", now=NOW) == Effect(one.id, 1, "2")
        await effects.undo(one, "sms")
        assert await effects.begin(one, "sms", now=NOW) is None
    await driver.backend.close()


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_full_redis_still_notes_what_has_happened(flavour: str) -> None:
    driver = Driver(open_backend(fresh_url(flavour)))
    effects, held = driver.backend.effects, await driver.running()
    await effects.begin(held, "charge", now=NOW)
    await effects.begin(held, "mail", now=NOW)
    redis = shared(flavour).client
    redis.config_set("maxmemory", 1)
    try:
        assert await effects.finish(held, "charge", "1", fence=held.fence)
        await effects.undo(held, "mail")
    finally:
        redis.config_set("maxmemory", 0)
    assert await effects.begin(held, "charge", now=NOW) == Effect(held.id, held.fence, "1")
    assert await effects.begin(held, "mail", now=NOW) is None
    await driver.backend.close()
