"""Encryption at rest: the ledger keeps what it cannot read, and nothing opens in a wrong place."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from onward.core import machine
from onward.core.approval import ask
from onward.core.coalesce import Coalescer
from onward.core.contract import LeaseRenewal, Move, Query, Submission
from onward.core.errors import Invalid, LedgerUnavailable, Unreadable
from onward.core.outcome import Parked, Succeeded
from onward.core.task import Claimed, Ending, Event, Letter, State, Task, TaskId
from onward.faults import Fault
from onward.ledgers import open_backend
from onward.ledgers.sealed import unwrap
from onward.ledgers.sealed.fields import FIELDS
from onward.ledgers.sealed.keyring import Keyring, key_of, new_key
from onward.ledgers.sealed.store import AGAIN_MS
from onward.ledgers.sealed.texts import CLEAR
from onward.ledgers.sqlite import SqliteBackend
from tests.contract.driver import Driver, submission
from tests.contract.peers import Peer
from tests.contract.sealed_ledger import (
    BOTH,
    K1,
    K2,
    NEW,
    OLD,
    SECRET,
    TEXT,
    SealedLedger,
    check_readable,
    file_bytes,
    lived,
    redis_bytes,
)
from tests.servers import fresh_url, shared
from tests.support import PROFILES, a_task, an_ask, wait_until


@pytest.fixture(params=["sqlite", "redis", "redis with archive"])
async def sealed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SealedLedger]:
    if request.param == "sqlite":
        url, archive = f"sqlite:///{tmp_path}/ledger.db", ""
    else:
        url = fresh_url("valkey")
        archive = f"sqlite:///{tmp_path}/archive.db" if "archive" in request.param else ""

    def raw() -> bytes:
        kept = b"" if request.param == "sqlite" else redis_bytes("valkey")
        return kept + file_bytes(tmp_path)

    sealed = SealedLedger(lambda keys: open_backend(url, archive=archive, keys=keys), raw)
    yield sealed
    await sealed.driver.backend.close()


@pytest.mark.contract("S2-9")
@pytest.mark.parametrize(("keys", "found"), [("", True), (BOTH, False)])
async def test_a_secret_is_nowhere_at_rest(sealed: SealedLedger, keys: str, found: bool) -> None:
    driver = await sealed.use(keys)
    ids = await lived(driver)
    await sealed.file()
    await check_readable(driver, ids)
    assert (SECRET.encode() in sealed.raw()) is found, "without keys it is there: the look is one"


async def test_what_a_parent_answers_is_sealed_with_its_childs_end(sealed: SealedLedger) -> None:
    driver = await sealed.use(OLD)
    parked = Parked(seen=0, journal=TEXT, waiting_for="children", notes=(("node.started", TEXT),))
    held = await driver.running()
    await driver.settle(held, parked, a_task(queue="c", parent=held.id, payload=TEXT))
    (child,) = await driver.claim("c")
    following = submission(a_task(queue="c", parent=held.id, payload=TEXT))
    parent = await driver.task(held.id)
    answer = machine.answer(parent, parked, driver.now, PROFILES[parent.profile], (following,))
    end = msgspec.structs.replace(driver.decide(child, Succeeded(TEXT)), answer=answer)
    moved = await driver.apply(end, asks=(an_ask("c"),))
    assert moved.answered == {parent.id}
    assert [task.payload for task in moved.claimed] == [TEXT]
    assert (await driver.task(parent.id)).journal == TEXT
    assert SECRET.encode() not in sealed.raw()


async def test_a_ledger_may_hold_both(sealed: SealedLedger) -> None:
    """Keys may be introduced on a ledger that has lived without."""
    ids = await lived(await sealed.use(""))
    driver = await sealed.use(NEW)
    await check_readable(driver, ids)
    fresh = await driver.submit(payload=TEXT)
    assert (await driver.task(fresh.id)).payload == TEXT


@pytest.mark.contract("S2-9")
async def test_rotation_leaves_nothing_under_the_old_key(sealed: SealedLedger) -> None:
    ids = await lived(await sealed.use(OLD))
    await sealed.file()
    driver = await sealed.use(BOTH)
    (runs,) = [task for task in await driver.all() if task.id == ids["runs"]]
    _, _, before = await sealed.rotate(dry_run=True)
    assert set(before) == {"k1"}
    resealed, unreadable, held = await sealed.rotate()
    assert held == before
    assert unreadable == 0
    _, _, after = await sealed.rotate(dry_run=True)
    on_redis = not isinstance(unwrap(driver.backend), SqliteBackend)
    assert 0 < resealed == after["k2"]
    assert on_redis or set(after) == {"k2"}, "only a log on Redis cannot be written anew"
    assert (await sealed.rotate())[0] == 0, "once is enough"
    await check_readable(driver, ids)
    moved = await driver.task(ids["runs"])
    assert (moved.rev, moved.fence, moved.due_at) == (runs.rev, runs.fence, runs.due_at), (
        "whoever runs it does not notice"
    )
    move = machine.settle(moved, Succeeded(TEXT), driver.now, PROFILES[moved.profile])
    await driver.apply(move)
    assert (await driver.task(moved.id)).result == TEXT


async def test_after_rotation_the_new_key_alone_opens_every_task(sealed: SealedLedger) -> None:
    ids = await lived(await sealed.use(OLD))
    await sealed.use(BOTH)
    await sealed.rotate()
    driver = await sealed.use(NEW)
    assert (await driver.task(ids["done"])).result == TEXT
    schedule = await driver.backend.documents.get("schedule", "nightly", now=driver.now)
    assert schedule is not None
    assert schedule.body == TEXT


async def test_rotation_seals_what_was_never_sealed(sealed: SealedLedger) -> None:
    ids = await lived(await sealed.use(""))
    driver = await sealed.use(NEW)
    _, _, before = await sealed.rotate(dry_run=True)
    assert set(before) == {"none"}
    assert (await sealed.rotate())[0] > 0
    (raw,) = await unwrap(driver.backend).tasks.get([ids["done"]])
    assert raw is not None
    assert {key_of(str(getattr(raw, field))) for field in ("payload", "result", "journal")} == {
        "k2"
    }
    await check_readable(driver, ids)


async def test_rotation_passes_by_what_changed_meanwhile(sealed: SealedLedger) -> None:
    driver = await sealed.use(OLD)
    ids = await lived(driver)
    (texts, *_) = unwrap(driver.backend).sealed_texts  # type: ignore[attr-defined]
    found, _ = await texts.read("", 500)
    (text,) = [
        text for text in found if text.owner == f"task:{ids['runs']}" and text.field == "payload"
    ]
    task = await driver.task(ids["runs"])
    change = machine.event_only(task, "task.late_result", None)
    await driver.apply(msgspec.structs.replace(change, changes={"payload": '"newer"'}))
    assert await texts.rewrite([(text, "an older text, sealed anew")]) == 0
    assert (await driver.task(ids["runs"])).payload == '"newer"'


async def test_what_is_swapped_does_not_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    driver = Driver(open_backend(url, keys=NEW))
    one, other = await driver.finished(payload='"one"'), await driver.finished(payload='"other"')
    await driver.backend.close()
    connection = apsw.Connection(f"{tmp_path}/ledger.db")
    ((text,),) = connection.execute("SELECT payload FROM task WHERE id = ?", (one.id,)).fetchall()
    connection.execute("UPDATE task SET payload = ? WHERE id = ?", (text, other.id))
    connection.execute("UPDATE task SET result = payload WHERE id = ?", (one.id,))
    connection.close()
    driver = Driver(open_backend(url, keys=NEW))
    with pytest.raises(Unreadable, match=f"payload of task {other.id} does not open"):
        await driver.task(other.id)
    with pytest.raises(Unreadable, match=f"result of task {one.id} does not open"):
        await driver.task(one.id)
    await driver.backend.close()


async def test_a_missing_key_is_named(sealed: SealedLedger) -> None:
    ids = await lived(await sealed.use(OLD))
    driver = await sealed.use(NEW)
    with pytest.raises(Unreadable) as refused:
        await driver.task(ids["done"])
    assert f"payload of task {ids['done']} is sealed under the key 'k1'" in str(refused.value)
    assert "ONWARD_ENCRYPTION_KEYS" in (refused.value.hint or "")
    with pytest.raises(Unreadable, match="'k1'"):
        await driver.backend.documents.get("schedule", "nightly", now=driver.now)
    with pytest.raises(Unreadable, match="'k1'"):
        await driver.backend.effects.begin(a_task(id=ids["done"]), "pay", now=driver.now)
    with capture_logs() as logs:
        assert await driver.backend.documents.list("schedule", now=driver.now) == []
    assert "'k1'" in logs[0]["error"]


async def test_readers_of_the_log_go_on_past_what_does_not_open(sealed: SealedLedger) -> None:
    ids = await lived(await sealed.use(OLD))
    driver = await sealed.use(NEW)
    fresh = await driver.submit(payload=TEXT)
    done, none, there = await driver.store.look([ids["done"], "nobody", fresh.id])
    assert there is not None
    assert there.payload == TEXT
    assert none is None
    assert done is not None
    assert msgspec.json.decode(done.result or "")["sealed"] == "k1"
    assert done.state is State.SUCCEEDED, "what is not sealed is as it is"


async def test_reads_that_travel_together_fail_one_by_one(sealed: SealedLedger) -> None:
    ids = await lived(await sealed.use(OLD))
    driver = await sealed.use(NEW)
    fresh = [await driver.submit(payload=TEXT) for _ in range(3)]
    wanted = [fresh[0].id, ids["done"], fresh[1].id, ids["asks"], fresh[2].id]
    reads = Coalescer(driver.store.get)
    found = await asyncio.gather(*map(reads.one, wanted), return_exceptions=True)
    assert [isinstance(one, Unreadable) for one in found] == [False, True, False, True, False]
    assert [getattr(found[at], "payload", None) for at in (0, 2, 4)] == [TEXT] * 3


async def test_what_opens_is_claimed_though_the_ledger_goes_away_meanwhile(
    sealed: SealedLedger,
) -> None:
    driver = await sealed.use(OLD)
    closed = await driver.submit(payload=TEXT)
    driver = await sealed.use(NEW)
    fresh = await driver.submit(payload=TEXT)
    inner = unwrap(driver.backend).tasks

    async def away(*_: object, **__: object) -> None:
        raise LedgerUnavailable("away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inner, "apply", away)
        claimed = await driver.store.claim([an_ask(limit=2)], now=driver.now)
    assert [task.id for task in claimed] == [fresh.id]
    assert (await unwrap(driver.backend).tasks.get([closed.id]))[0].state is State.RUNNING  # type: ignore[union-attr]


async def test_a_task_whose_time_is_over_waits_for_its_key_all_the_same(
    sealed: SealedLedger,
) -> None:
    driver = await sealed.use(OLD)
    task = await driver.submit(payload=TEXT, profile="session", expires_at=driver.now + 10)
    driver = await sealed.use(NEW)
    driver.now += 20
    assert await driver.store.claim([an_ask()], now=driver.now) == []
    (found,) = await unwrap(driver.backend).tasks.get([task.id])
    assert found is not None
    assert (found.state, found.due_at) == (State.WAITING, driver.now + AGAIN_MS)


async def test_a_list_goes_on_past_what_does_not_open(sealed: SealedLedger) -> None:
    ids = await lived(await sealed.use(OLD))
    driver = await sealed.use(NEW)
    fresh = await driver.submit(payload=TEXT)
    found = {task.id: task for task in (await driver.store.find(Query())).items}
    assert found[fresh.id].payload == TEXT
    done = msgspec.json.decode(found[ids["done"]].payload)
    assert done["sealed"] == "k1"
    assert "is sealed under the key 'k1'" in done["detail"]
    assert found[ids["done"]].journal is None
    failed = msgspec.json.decode(found[ids["failed"]].error or "", type=Fault)
    assert failed.kind == "Unreadable"
    events = await driver.events_of(ids["done"])
    assert {"task.created", "task.chunk", "task.succeeded"} <= {event.type for event in events}
    assert all("canary" not in (event.data or "") for event in events)


async def test_a_task_that_does_not_open_waits_for_its_key(sealed: SealedLedger) -> None:
    task = await (await sealed.use(OLD)).submit(queue="q", payload=TEXT)
    driver = await sealed.use(NEW)
    fresh = await driver.submit(queue="q", payload=TEXT)
    with capture_logs() as logs:
        claimed = await driver.claim("q", limit=2)
    assert [one.id for one in claimed] == [fresh.id], "the others are not held up"
    (line,) = [line for line in logs if line["event"] == "a task waits for its key"]
    assert (line["task"], line["log_level"]) == (task.id, "error")
    assert "'k1'" in line["error"]
    (raw,) = await unwrap(driver.backend).tasks.get([task.id])
    assert raw is not None
    assert (raw.state, raw.waiting_for, raw.attempt) == (State.WAITING, "key", 0)
    assert await driver.claim("q") == [], "it does not go round in circles"

    sealed.driver.now += AGAIN_MS
    now = sealed.driver.now
    driver = await sealed.use(BOTH)
    driver.now = now
    due = await driver.store.due(now=now, limit=10)
    for one in due:
        if one.id == task.id:
            await driver.apply(machine.on_due(one, now, PROFILES[one.profile]))
    (again,) = await driver.claim("q")
    assert (again.id, again.payload, again.attempt, again.lost) == (task.id, TEXT, 1, 0)


async def test_the_clock_strikes_also_for_what_does_not_open(sealed: SealedLedger) -> None:
    driver = await sealed.use(OLD)
    asked = ask(TEXT, driver.now, expires_ms=1_000, default="approve", reason=SECRET)
    task = await driver.submit(payload=TEXT, waiting_for="approval", approval=asked.encode())
    driver = await sealed.use(NEW)
    driver.now += 2_000
    (due,) = await driver.store.due(now=driver.now, limit=10)
    await driver.apply(machine.on_due(due, driver.now, PROFILES[due.profile]))
    driver = await sealed.use(BOTH)
    found = await driver.task(task.id)
    assert (found.state, found.payload) == (State.QUEUED, TEXT)
    assert SECRET in (found.approval or ""), "what could not be read was kept as it was"


async def test_a_text_is_found_though_it_is_sealed(sealed: SealedLedger) -> None:
    driver = await sealed.use(NEW)
    wanted = [
        (await driver.submit(payload=TEXT if at % 3 == 0 else '"else"')).id for at in range(20)
    ][::3]
    found: list[str] = []
    after: str | None = None
    while True:
        page = await driver.store.find(Query(text="canary", after=after, limit=2))
        assert len(page.items) <= 2
        found += [task.id for task in page.items]
        after = page.next
        if after is None:
            break
    assert found == wanted[::-1]
    assert (await driver.store.find(Query(text="k2"))).items == [], "not in what it is sealed into"
    assert (await driver.store.find(Query(text=wanted[0]))).items[0].id == wanted[0]


def heard_by(backend: Any) -> list[Mapping[TaskId, Ending | None]]:
    peer = Peer()
    backend.bell.attach(peer)
    return peer.endings


async def test_an_ending_that_another_server_tells_is_opened() -> None:

    url = fresh_url("valkey")
    here, there = open_backend(url, keys=BOTH), open_backend(url, keys=NEW)
    stranger = open_backend(url, keys=OLD)
    heard, lost = heard_by(there), heard_by(stranger)
    channel = "onward:bell"
    client: Any = shared("valkey").client
    await wait_until(lambda: client.pubsub_numsub(channel)[0][1] == 2, timeout=30)
    driver = Driver(here)
    task = await driver.finished(payload=TEXT)
    await wait_until(lambda: any(task.id in ended for ended in heard), timeout=30)
    await wait_until(lambda: any(task.id in ended for ended in lost), timeout=30)
    (ending,) = [ended[task.id] for ended in heard if task.id in ended]
    assert ending is not None
    assert ending.result == "1"
    assert [ended[task.id] for ended in lost if task.id in ended] == [None], "it is read instead"
    for backend in (here, there, stranger):
        await backend.close()


def test_every_text_of_a_task_is_sealed_or_meant_to_be_clear() -> None:
    """Whoever adds a field decides which."""
    clear = {"id", "type", "queue", "profile", "state", "lane", "worker", "fingerprint"}
    clear |= {"overrides", "session", "parent", "key", "owner", "waiting_for"}
    # What the ledger finds and counts by; of a unique key and a debounce key only a hash is kept.
    clear |= {"partition", "costs", "tags", "batch", "unique_key", "debounce_key"}
    clear |= {"predecessor", "successor"}
    numbers = {
        field.name
        for field in msgspec.structs.fields(Task)
        if field.type in (int, int | None, bool) or field.name == "priority"
    }
    assert {*FIELDS} | clear | numbers == {*Task.__struct_fields__}
    assert not {*FIELDS} & clear


def test_whatever_passes_the_store_was_thought_of() -> None:
    """As above, for what carries texts in and out: a new field may be one more."""
    guard = {"task", "expect", "fence", "rev", "to", "due_at", "due_by", "front", "ahead", "seen"}
    guard |= {"service", "queue", "started_at"}  # a task's type, its queue and a clock
    guard |= {"keys"}  # as a submission's key: its body is a hash
    assert {*Move.__struct_fields__} == guard | {"changes", "events", "spawn", "letters", "answer"}
    assert {*Submission.__struct_fields__} == {"task", "events", "cap", "key", "unique"}
    assert {*LeaseRenewal.__struct_fields__} == {"task", "fence", "until", "progress", "notes"}
    assert {*Letter.__struct_fields__} == {"to", "name", "body"}
    assert {*Event.__struct_fields__} == {"task", "n", "generation", "type", "at", "data"}
    assert {*Ending.__struct_fields__} == {"id", "state", "result", "error", "at"}
    handed = {*Claimed.__struct_fields__} - {*Task.__struct_fields__}
    assert handed == {"letters"}
    assert {*FIELDS} & {*Claimed.__struct_fields__} == {"payload", "journal", "bulk"}


async def test_what_the_ledgers_read_themselves_stays_clear(sealed: SealedLedger) -> None:
    driver = await sealed.use(NEW)
    await driver.backend.documents.put("cursor", "reader", '"17"', now=driver.now)
    found = await unwrap(driver.backend).documents.get("cursor", "reader", now=driver.now)
    assert found is not None
    assert found.body == '"17"'
    assert "cursor" in CLEAR


# The keys themselves.


@given(st.text(), st.text(), st.text())
def test_what_is_sealed_opens_for_its_owner_and_field_alone(
    text: str, owner: str, field: str
) -> None:
    ring = Keyring.read(BOTH)
    assert ring is not None
    sealed = ring.seal(text, owner, field)
    assert key_of(sealed) == "k2"
    assert ring.open(sealed, owner, field) == text
    for elsewhere in ((owner + "x", field), (owner, field + "x"), (field, owner + "y")):
        with pytest.raises(Unreadable):
            ring.open(sealed, *elsewhere)


@given(st.integers(0, 60), st.integers(1, 255))
def test_one_changed_bit_is_noticed(at: int, change: int) -> None:
    ring = Keyring.read(NEW)
    assert ring is not None
    head, _, body = ring.seal("some text that is long", "o", "f").rpartition(":")
    raw = bytearray(base64.b64decode(body))
    raw[at % len(raw)] ^= change
    with pytest.raises(Unreadable, match="does not open"):
        ring.open(f"{head}:{base64.b64encode(raw).decode()}", "o", "f")


@pytest.mark.parametrize("body", ["", "!!!", "AAAA", "A" * 40])
def test_a_torn_text_is_unreadable_and_no_crash(body: str) -> None:
    ring = Keyring.read(NEW)
    assert ring is not None
    with pytest.raises(Unreadable):
        ring.open(f"sealed:k2:{body}", "o", "f")


def test_no_two_texts_are_sealed_alike() -> None:
    ring = Keyring.read(NEW)
    assert ring is not None
    assert len({ring.seal("same", "o", "f") for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("abc", "id:base64"),
        (":AAAA", "id:base64"),
        ("a b:AAAA", "id:base64"),
        ("k1:not base64!", "id:base64|no base64"),
        ("k1:####", "no base64"),
        ("k1:c2hvcnQ=", "has 5 bytes, not 32"),
        (f"{K1},{K1}", "two encryption keys are called 'k1'"),
    ],
)
def test_keys_that_make_no_sense_are_refused_without_being_repeated(keys: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as refused:
        Keyring.read(keys)
    secret = keys.rpartition(":")[2]
    assert not secret or secret not in str(refused.value) + (refused.value.hint or "")


def test_keys_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{K2}\n{K1}\n")
    ring = Keyring.read("", str(file))
    assert ring is not None
    assert ring.ids == ("k2", "k1")
    before = Keyring.read(new_key("k3"), str(file))
    assert before is not None
    assert before.ids == ("k3", "k2", "k1")
    assert Keyring.read("") is None
    with pytest.raises(Invalid, match="cannot be read"):
        Keyring.read("", str(tmp_path / "missing"))


def test_a_new_key_is_one() -> None:
    ring = Keyring.read(new_key("k9"))
    assert ring is not None
    assert ring.sealing == "k9"
    assert new_key("k9") != new_key("k9")
    with pytest.raises(Invalid, match="is no name"):
        new_key("a:b")
