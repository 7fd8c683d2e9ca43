"""Work that comes in on one server goes straight into a free hand of another (docs/adr/0018)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from onward.core import machine
from onward.core.contract import Fate, Spare, Verdict
from onward.core.outcome import Parked, Released, Succeeded
from onward.core.task import State, Task
from onward.ledgers.redis import RedisBackend, bell
from onward.ledgers.redis.board import Board
from onward.ledgers.redis.client import NAME
from tests.contract.desk import Desk, submission
from tests.contract.ears import Ear, listening
from tests.servers import FLAVOURS, fresh_url, shared
from tests.support import LEASE_MS, NOW, PROFILES, a_task, an_ask, ids, wait_until

SPARE = Spare("far", LEASE_MS)
FAR = {"worker": "far", "lease_ms": LEASE_MS}
IDLE, BELL = f"onward:idle:{NAME}:q", "onward:bell"


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Two:
    """Two servers: work comes in here, and there somebody has nothing to do."""

    def __init__(self, here: RedisBackend, there: RedisBackend, ear: Ear, client: Any) -> None:
        self.here, self.there = Desk(here), Desk(there)
        self.ear = ear
        self.redis = client
        self.near, self.far = here, there

    async def say(self, **idle: Spare) -> None:
        """What is free there, said in a call that is made anyway."""
        self.ear.idle = idle
        await self.there.claim("nothing")

    async def submit(self, **fields: Any) -> Task:
        return await self.here.submit(queue="q", **fields)

    async def lose_the_line(self) -> None:
        """The bells of both break and are hung up anew."""
        both = self.near.functions, self.far.functions
        for functions in both:
            assert functions.voice
            functions.voice = ""
        assert self.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub") == len(both)
        await wait_until(lambda: all(functions.voice for functions in both))


@pytest.fixture
async def two(flavour: str) -> AsyncIterator[Two]:
    async with two_servers(flavour) as servers:
        yield servers


@asynccontextmanager
async def two_servers(flavour: str) -> AsyncIterator[Two]:
    here, ear = RedisBackend(fresh_url(flavour)), Ear()
    there = RedisBackend(shared(flavour).url)
    async with listening(flavour, Ear(), to=here), listening(flavour, ear, to=there):
        servers = Two(here, there, ear, shared(flavour).client)
        await servers.say(q=SPARE)
        yield servers
    await here.close()
    await there.close()


async def test_a_task_is_born_in_a_hand_that_is_free_elsewhere(two: Two) -> None:
    receipt = (await two.here.insert(submission(a_task(id="t", queue="q")))).receipts[0]
    assert (receipt.fate, receipt.running) == (Fate.FRESH, True)
    await wait_until(lambda: two.ear.given)
    (held,) = two.ear.given
    task = await two.here.task("t")
    assert (held.id, held.worker, held.fence, held.attempt) == ("t", "far", 1, 1)
    assert (held.type, held.queue, held.payload) == (task.type, task.queue, task.payload)
    assert (task.state, task.worker, task.lease_until) == (State.RUNNING, "far", NOW + LEASE_MS)
    assert await two.here.history("t") == ["task.created", "task.claimed"]
    assert "q" not in two.ear.queues, "there is nothing to look for"
    assert await two.here.store.counts() == await two.here.recount()
    assert await two.there.settle(held, Succeeded("1")) is Verdict.APPLIED
    assert await two.here.claim("q") == []


async def test_what_happens_to_a_task_is_told_to_other_servers(two: Two) -> None:
    task = await two.here.running(queue="other")
    await wait_until(lambda: task.id in two.ear.tasks)


async def test_a_given_task_is_the_same_as_a_claimed_one(two: Two) -> None:
    fields: dict[str, Any] = {
        "payload": f'"{"x" * 1_000}"',
        "expires_at": NOW + 90_000,
        "attempt_ms": 5_000,
        "attempt": 2,
        "key": "k",
        "parent": "p",
    }
    given = await two.submit(**fields)
    claimed = await two.submit(**fields)
    assert (given.state, claimed.state) == (State.RUNNING, State.QUEUED)
    (held,) = await two.here.claim("q", worker="far")
    await wait_until(lambda: two.ear.given)
    known = {name: getattr(held, name) for name in held.__struct_fields__ if name != "id"}
    assert {name: getattr(two.ear.given[0], name) for name in known} == known
    for name in ("state", "fence", "rev", "attempt", "due_at", "lease_until", "attempt_by"):
        assert getattr(await two.here.task(given.id), name) == getattr(
            await two.here.task(claimed.id), name
        )


async def test_a_hand_is_filled_once(two: Two) -> None:
    first, second = await two.submit(), await two.submit()
    assert (first.state, second.state) == (State.RUNNING, State.QUEUED)
    await two.say(q=SPARE)
    third = await two.submit()
    assert third.state is State.QUEUED, "whoever waits goes first"
    await wait_until(lambda: two.ear.given and "q" in two.ear.queues)
    assert ids(two.ear.given) == [first.id]


async def test_every_idle_server_has_its_turn(two: Two, flavour: str) -> None:
    third = Ear(q=Spare("third", LEASE_MS))
    backend = RedisBackend(shared(flavour).url)
    async with listening(flavour, third, to=backend):
        await Desk(backend).claim("nothing")
        tasks = [await two.submit() for _ in range(3)]
        await wait_until(lambda: two.ear.given and third.given)
    await backend.close()
    assert [task.worker for task in tasks] == ["far", "third", None]
    assert ids([*two.ear.given, *third.given]) == ids(tasks[:2])


async def test_what_is_free_no_more_is_given_nothing(two: Two) -> None:
    await two.say()
    assert (await two.submit()).state is State.QUEUED


async def test_who_finds_work_by_itself_is_given_nothing(two: Two) -> None:
    first = a_task(queue="q")
    await two.here.insert(submission(first), hands=(an_ask("other", worker="here"),))
    await two.say(q=SPARE, r=SPARE)
    assert first.id in ids(two.ear.given)
    await two.here.submit(queue="r2")
    queued = a_task(queue="q", payload='"' + "x" * 5_000 + '"')
    await two.here.insert(submission(queued))
    two.ear.idle = {"q": SPARE}
    assert ids(await two.there.claim("q", worker="far")) == [queued.id]
    assert two.redis.hgetall(IDLE) == {}, "it is in the hand that was free"
    assert (await two.submit()).state is State.QUEUED


async def test_who_finds_nothing_stays_free(two: Two) -> None:
    assert await two.there.claim("q", worker="far") == []
    assert (await two.submit()).state is State.RUNNING


async def test_who_has_gone_is_given_nothing(two: Two, flavour: str) -> None:
    async with listening(flavour, Ear()):
        await two.far.bell.close()
        await wait_until(lambda: two.redis.pubsub_numsub(BELL)[0][1] == 2)
        assert (await two.submit()).state is State.QUEUED
    assert two.redis.hgetall(IDLE) == {}


async def test_who_retires_has_what_it_was_given_and_is_given_no_more(two: Two) -> None:
    before = await two.submit()
    await two.say(q=SPARE)
    await two.far.bell.retire()
    assert ids(two.ear.given) == [before.id]
    assert two.redis.hgetall(IDLE) == {}
    await two.say(q=SPARE)
    await two.lose_the_line()
    await two.say(q=SPARE)
    assert (await two.submit()).state is State.QUEUED
    await wait_until(lambda: "q" in two.ear.queues)


async def test_who_has_been_silent_for_long_is_given_nothing(two: Two) -> None:
    assert 0 < two.redis.pttl(IDLE) <= 3_000, "nor remembered"
    two.here.now += 3_000
    assert (await two.submit()).state is State.QUEUED


async def test_a_server_gives_nothing_to_itself(two: Two) -> None:
    task = a_task(queue="q")
    await two.there.insert(submission(task))
    assert (await two.there.task(task.id)).state is State.QUEUED


async def test_own_hands_come_first(two: Two) -> None:
    task = a_task(queue="q")
    inserted = await two.here.insert(submission(task), hands=(an_ask("q", worker="here"),))
    assert [held.worker for held in inserted.claimed] == ["here"]


async def test_a_full_queue_takes_what_a_hand_elsewhere_takes(two: Two) -> None:
    fates = [
        (await two.here.insert(submission(a_task(queue="q"), cap=0))).receipts[0].fate
        for _ in range(2)
    ]
    assert fates == [Fate.FRESH, Fate.FULL]


async def test_a_long_payload_is_fetched(two: Two) -> None:
    assert (await two.submit(payload=f'"{"x" * 5_000}"')).state is State.QUEUED


async def test_what_must_stay_near_is_fetched(two: Two) -> None:
    near, far = a_task(queue="q"), a_task(queue="q")
    inserted = await two.here.insert(submission(near, near=True))
    assert not inserted.receipts[0].running
    await two.there.claim("q")
    await two.say()
    await two.say(q=SPARE)
    assert (await two.here.insert(submission(far))).receipts[0].running, "and no other by mistake"


async def test_a_child_is_given_too(two: Two) -> None:
    parent = await two.here.running(queue="parents")
    child = a_task(queue="q")
    await two.here.settle(parent, Parked(seen=0, journal="1", waiting_for="children"), child)
    await wait_until(lambda: two.ear.given)
    assert ids(two.ear.given) == [child.id]


async def test_what_is_handed_back_is_as_good_as_new(two: Two) -> None:
    task = await two.submit()
    await wait_until(lambda: two.ear.given)
    await two.there.settle(two.ear.given[0], Released())
    back = await two.here.task(task.id)
    assert (back.state, back.attempt) == (State.QUEUED, 0)
    assert ids(await two.here.claim("q")) == [task.id]


async def test_what_was_not_heard_is_read_when_the_bell_is_back(two: Two) -> None:
    voice = two.far.functions.voice
    heard, lost = await two.submit(), a_task(queue="q")
    await wait_until(lambda: two.ear.given)
    await two.say(q=SPARE)
    take, two.far.bell._take = two.far.bell._take, lambda *_: None  # type: ignore[method-assign]
    await two.here.insert(submission(lost))
    await wait_until(lambda: two.redis.hlen(f"onward:given:{voice}"))
    two.far.bell._take = take  # type: ignore[method-assign]
    await two.lose_the_line()
    assert ids(two.ear.given) == [heard.id, lost.id]
    await two.lose_the_line()
    assert ids(two.ear.given) == [heard.id, lost.id], "not again"
    await two.say(q=SPARE)
    assert (await two.submit()).state is State.RUNNING, "and it is given more"


async def test_what_was_heard_is_not_read_whatever_is_heard_meanwhile(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [await two.submit()]
    get = two.far.tasks.get

    async def get_slowly(wanted: Sequence[str]) -> Any:
        found = await get(wanted)
        await wait_until(lambda: two.near.functions.voice)
        for _ in range(2):
            tasks.append(a_task(queue="q"))
            spare = msgspec.msgpack.encode({**FAR, "at": NOW})
            two.redis.hset(IDLE, two.far.bell._me, spare)
            await two.here.insert(submission(tasks[-1]))
            await wait_until(lambda: tasks[-1].id in ids(two.ear.given))
        return found

    monkeypatch.setattr(two.far.tasks, "get", get_slowly)
    await two.lose_the_line()
    assert ids(two.ear.given) == ids(tasks)


async def test_a_line_that_died_without_a_word_is_noticed(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell, "ECHO_S", 0.2)
    for backend in (two.near, two.far):
        await backend.maintain()
    line = two.far.bell._line
    assert line is not None
    line._transport.pause_reading()
    lost = await two.submit()
    assert lost.state is State.RUNNING
    await two.far.maintain()
    await two.say(q=SPARE)
    assert (await two.submit()).state is State.QUEUED, "nothing is free there"
    await wait_until(lambda: two.ear.given)
    assert ids(two.ear.given) == [lost.id], "read on another line"


async def test_what_is_another_ones_by_now_is_not_read(two: Two) -> None:
    take, two.far.bell._take = two.far.bell._take, lambda *_: None  # type: ignore[method-assign]
    task = await two.submit()
    over = machine.on_due(await two.here.task(task.id), NOW + LEASE_MS, PROFILES[task.profile])
    two.here.now += LEASE_MS
    await two.here.apply(over)
    assert ids(await two.here.claim("q")) == [task.id], "its lease has lapsed"
    two.far.bell._take = take  # type: ignore[method-assign]
    await two.lose_the_line()
    assert two.ear.given == []


async def test_a_gift_that_nobody_understands_is_passed_over(two: Two) -> None:
    voice = two.far.functions.voice
    for said in (b"\xc1 what?", b"\x91\x01"):
        two.redis.publish(f"{BELL}:{voice}", said)
    task = await two.submit()
    await wait_until(lambda: two.ear.given)
    assert ids(two.ear.given) == [task.id]
    assert two.far.functions.voice == voice


async def test_one_that_nobody_understands_does_not_cost_the_bell(two: Two) -> None:
    voice = two.far.functions.voice
    for row in (b"\xc1 what?", b"\x91\x01", b"\x93\xa1x\xa1w\x01"):
        two.redis.hset(f"onward:given:{voice}", "other", row)
        await two.lose_the_line()
    two.redis.delete(f"onward:given:{voice}")
    assert two.far.functions.voice == voice


async def test_who_may_not_speak_on_the_channels_neither_gives_nor_is_given(flavour: str) -> None:
    async with two_servers(flavour) as two:
        two.redis.execute_command(
            *("ACL", "SETUSER", "shy", "on", ">secret", "~*", "+@all", "resetchannels", f"&{BELL}")
        )
        shy, ear = RedisBackend(f"unix://shy:secret@{shared(flavour).socket}"), Ear(q=SPARE)
        async with listening(flavour, ear, to=shy):
            assert (await Desk(shy).submit(queue="q")).state is State.QUEUED
            await wait_until(lambda: "q" in two.ear.queues)
            await two.there.claim("q")
            await two.say()
            assert (await two.submit()).state is State.QUEUED
            await wait_until(lambda: "q" in ear.queues)
        await shy.close()
        two.redis.acl_deluser("shy")


def said(board: Board) -> dict[str, Any] | None:
    """None: not even that nothing has changed."""
    with board.telling() as changes:
        if not changes:
            return None
        return msgspec.msgpack.decode(changes[0]) if changes[0] else {}


def test_what_is_said_is_what_has_changed() -> None:
    board = Board()
    assert said(board) is None, "nobody listens"
    idle = {"a": SPARE}
    board.spare = lambda: dict(idle)
    assert said(board) == {"free": {"a": FAR}, "gone": []}
    assert said(board) == {}
    idle["b"] = SPARE
    del idle["a"]
    assert said(board) == {"free": {"b": FAR}, "gone": ["a"]}
    board.filled("b")
    assert said(board) == {"free": {"b": FAR}, "gone": []}
    board.doubt()
    assert said(board) == {"free": {"b": FAR}, "gone": []}


def test_what_may_not_have_been_heard_is_said_again() -> None:
    board, idle = Board(), {"a": SPARE}
    board.spare = lambda: dict(idle)
    with pytest.raises(ConnectionError), board.telling():
        raise ConnectionError
    assert said(board) == {"free": {"a": FAR}, "gone": []}
    idle.clear()
    with pytest.raises(ConnectionError), board.telling():
        raise ConnectionError
    assert said(board) == {"free": {}, "gone": ["a"]}
    assert said(board) == {}


def test_it_is_said_in_one_call_at_a_time() -> None:
    board = Board()
    board.spare = lambda: {"a": SPARE}
    with board.telling() as first, board.telling() as second:
        assert first[0]
        assert second == (b"",)
