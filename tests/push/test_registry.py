"""Who is registered, who counts as there, and what they are asked for (S4-4)."""

from __future__ import annotations

from typing import Any

import pytest

from onward.core.contract import Document
from onward.core.errors import NotFound
from onward.workers.http.address import Hosts
from onward.workers.http.registry import FORGOTTEN_AFTER, Registry
from onward.workers.roster import Roster
from tests.push.conftest import Hire, register, run, submit, wait_until
from tests.running_app import App, running_app

TTL_MS = 15_000
FULL = ("/workers/register", "/workers/heartbeat", "/workers/list", "/workers/allocate")
SHORT = ("/register", "/heartbeat", "/list", "/allocate")


@pytest.mark.contract("S4-4", "R-6")
@pytest.mark.parametrize(("to_register", "to_beat", "to_list", "to_allocate"), [FULL, SHORT])
async def test_a_worker_registers_beats_is_listed_and_allocated(
    app: App, to_register: str, to_beat: str, to_list: str, to_allocate: str
) -> None:
    body = {"id": "w1", "url": "http://127.0.0.1:9001", "services": ["sum", "route"], "load": 2}
    answer = await app.post(to_register, body)
    assert (answer.status_code, answer.json()) == (200, {"id": "w1"})
    registered_at = app.clock.now()
    app.clock.advance(1_000)
    answer = await app.post(to_beat, {"id": "w1", "load": 3})
    assert (answer.status_code, answer.json()) == (200, {"id": "w1"})

    shown = {
        "id": "w1",
        "url": "http://127.0.0.1:9001",
        "services": ["sum", "route"],
        "load": 3,
        "last_heartbeat": registered_at + 1_000,
        "status": "online",
    }
    assert (await app.get(to_list)).json() == [shown]
    assert (await app.get(to_list, params={"service": "sum"})).json() == [shown]
    assert (await app.get(to_list, params={"service": "other"})).json() == []
    assert (await app.get(to_allocate, params={"service": "sum"})).json() == shown


@pytest.mark.contract("S4-4", "R-6")
async def test_an_unknown_id_is_404_with_an_error(app: App) -> None:
    for answer in (
        await app.post("/workers/heartbeat", {"id": "stranger", "load": 0}),
        await app.post("/heartbeat", {"id": "stranger", "load": 0}),
        await app.post("/workers/deregister", {"id": "stranger"}),
        await app.get("/workers/allocate?service=sum"),
        await app.get("/allocate?service=sum"),
    ):
        assert answer.status_code == 404
        assert list(answer.json()) == ["error"]


@pytest.mark.contract("S4-4")
async def test_the_least_loaded_is_allocated_and_equals_take_turns(app: App) -> None:
    for id, load in (("busy", 5), ("idle", 0), ("lazy", 0)):
        await register(app, "http://127.0.0.1:9001", id=id, load=load)
    named = [(await app.get("/allocate?service=echo")).json()["id"] for _ in range(4)]
    assert sorted(named[:2]) == ["idle", "lazy"]
    assert named[:2] == named[2:]


@pytest.mark.contract("S4-4", "R-6", "R-9")
async def test_who_is_silent_past_the_ttl_is_not_chosen_and_later_forgotten(app: App) -> None:
    await register(app, "http://127.0.0.1:9001", id="w1")
    app.clock.advance(TTL_MS - 1)
    assert (await app.get("/allocate?service=echo")).status_code == 200
    app.clock.advance(1)
    assert (await app.get("/allocate?service=echo")).status_code == 404
    assert [(w["id"], w["status"]) for w in (await app.get("/list")).json()] == [("w1", "offline")]
    await app.onward.roster.refresh()
    assert not app.onward.roster.members()
    await app.post("/heartbeat", {"id": "w1", "load": 0})  # it was only slow
    assert (await app.get("/allocate?service=echo")).status_code == 200
    assert [member.id for member in app.onward.roster.members()] == ["w1"]

    app.clock.advance(FORGOTTEN_AFTER * TTL_MS)
    assert (await app.get("/list")).json() == []
    assert (await app.post("/heartbeat", {"id": "w1", "load": 0})).status_code == 404


@pytest.mark.contract("R-9")
async def test_the_ttl_is_a_setting() -> None:
    async with running_app(worker_ttl_ms=1_000) as app:
        await register(app, "http://127.0.0.1:9001", id="w1")
        app.clock.advance(1_000)
        assert (await app.get("/allocate?service=echo")).status_code == 404


@pytest.mark.contract("S4-4")
async def test_registering_again_replaces(app: App) -> None:
    await register(app, "http://127.0.0.1:9001", id="w1", services=["a", "b"])
    await register(app, "http://127.0.0.1:9002", id="w1", services=["b", "c"])
    (shown,) = (await app.get("/list")).json()
    assert (shown["url"], shown["services"]) == ("http://127.0.0.1:9002", ["b", "c"])
    assert (await app.get("/allocate?service=a")).status_code == 404
    assert await app.onward.roster.serves("c")
    assert not await app.onward.roster.serves("a")


async def test_a_worker_without_a_name_is_known_by_its_url(app: App) -> None:
    first = await register(app, "http://127.0.0.1:9001")
    again = await register(app, "http://127.0.0.1:9001/")
    other = await register(app, "http://127.0.0.1:9002", id="")
    assert first == again != other
    assert len((await app.get("/list")).json()) == 2


@pytest.mark.contract("S4-4")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not JSON"),
        (b"[]", "expected an object, got a list"),
        (b"{}", "/url: is required"),
        ({"url": 7, "services": ["a"]}, "url: expected text"),
        ({"url": "http://127.0.0.1:1"}, "/services: is required"),
        ({"url": "http://127.0.0.1:1", "services": []}, "services: expected a list"),
        ({"url": "http://127.0.0.1:1", "services": "sum"}, "services: expected a list"),
        ({"url": "http://127.0.0.1:1", "services": [""]}, "services/0: expected text"),
        ({"url": "http://127.0.0.1:1", "services": ["group:x"]}, "is a group"),
        ({"url": "http://127.0.0.1:1", "services": ["a"], "load": -1}, "load: expected a number"),
        ({"url": "http://127.0.0.1:1", "services": ["a"], "id": "a\nb"}, "id: expected text"),
        ({"url": "http://127.0.0.1:1", "services": ["a"], "slots": 0}, "slots: expected a whole"),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused_with_the_reason(
    app: App, body: Any, said: str
) -> None:
    more = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = await app.http.post("/workers/register", **more)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert said in answer.json()["error"]
    assert (await app.get("/list")).json() == []


async def test_allocate_wants_a_service(app: App) -> None:
    assert (await app.get("/workers/allocate")).status_code == 400


@pytest.mark.contract("S4-4", "N-5", "R-1")
async def test_live_workers_are_in_the_roster_once_and_leave_it(app: App) -> None:
    await register(app, "http://127.0.0.1:9001", id="w1", services=["sum", "route"])
    await register(app, "http://127.0.0.1:9001", id="w1", services=["sum", "route"])
    shown = (await app.get("/api/v2/workers")).json()["items"]
    assert [(one["id"], one["transport"], one["queues"]) for one in shown] == [
        ("w1", "http", ["sum", "route"])
    ]
    assert (await app.get("/health")).json()["details"]["workers"]["by_transport"] == {"http": 1}
    assert await app.onward.roster.serves("sum")

    await app.post("/workers/deregister", {"id": "w1"})
    assert not await app.onward.roster.serves("sum")
    assert (await app.get("/list")).json() == []


@pytest.mark.contract("S4-4", "N-4")
async def test_a_task_knows_whether_a_called_worker_is_there(app: App) -> None:
    id = await submit(app)
    explained = (await app.get(f"/api/v2/tasks/{id}/explain")).json()
    assert explained["reason"] == "no_worker"


@pytest.mark.contract("S4-4")
async def test_a_worker_that_turns_to_another_server_is_there_once(app: App) -> None:
    onward = app.onward
    roster = Roster(onward.backend, onward.clock)
    second = Registry(
        onward.backend, onward.clock, roster, Hosts(["127.0.0.1"]), ttl_ms=TTL_MS, slots=1
    )
    await register(app, "http://127.0.0.1:9001", id="w1")
    await second.register("http://127.0.0.1:9001", ["echo"], id="w1")
    await onward.roster.refresh()
    for one in (roster, onward.roster):
        assert [(member.id, member.transport) for member in one.members()] == [("w1", "http")]

    await second.leave("w1")
    await onward.roster.refresh()
    assert not await onward.roster.serves("echo")


async def test_a_socket_worker_of_the_same_name_is_another_worker(app: App) -> None:
    await app.worker(workerId="w1", group=None, services=["other"])
    await register(app, "http://127.0.0.1:9001", id="w1")
    shown = (await app.get("/api/v2/workers")).json()["items"]
    assert sorted(one["transport"] for one in shown) == ["http", "socket"]


async def test_a_heartbeat_does_not_bring_an_old_url_back(app: App) -> None:
    """It was read before the worker registered anew, and would be written after."""
    registry = app.onward.registry
    await register(app, "http://127.0.0.1:9001", id="w1")
    documents = registry._documents

    class Late:
        """Between a heartbeat's reading and its writing, the worker registers anew."""

        moved = False

        def __getattr__(self, name: str) -> Any:
            return getattr(documents, name)

        async def get(self, kind: str, key: str, *, now: int) -> Document | None:
            found = await documents.get(kind, key, now=now)
            if not self.moved:
                self.moved = True
                await register(app, "http://127.0.0.1:9002", id="w1")
            return found

    registry._documents = Late()
    await registry.heartbeat("w1", 4)
    (shown,) = (await app.get("/list")).json()
    assert (shown["url"], shown["load"]) == ("http://127.0.0.1:9002", 4)


async def test_registrations_are_the_ledgers_and_outlive_a_server(app: App) -> None:
    await register(app, "http://127.0.0.1:9001", id="w1")
    onward = app.onward
    later = Registry(
        onward.backend, onward.clock, onward.roster, Hosts(["127.0.0.1"]), ttl_ms=TTL_MS, slots=1
    )
    assert [worker.id for worker in await later.all()] == ["w1"]
    assert [worker.id for worker in later.live("echo")] == ["w1"]


async def test_who_was_allowed_under_an_earlier_list_is_not_called(app: App) -> None:
    await register(app, "http://127.0.0.1:9001", id="w1")
    onward = app.onward
    stricter = Registry(
        onward.backend, onward.clock, onward.roster, Hosts(["10.0.0.0/8"]), ttl_ms=TTL_MS, slots=1
    )
    (worker,) = await stricter.all()
    assert not stricter.alive(worker)
    assert not stricter.live("echo")
    with pytest.raises(NotFound):
        await stricter.allocate("echo")


async def test_there_is_an_end_to_registering(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.workers.http.registry.MOST", 1)
    await register(app, "http://127.0.0.1:9001", id="w1")
    body = {"url": "http://127.0.0.1:9002", "services": ["echo"], "id": "w2"}
    assert (await app.post("/register", body)).status_code == 503
    await register(app, "http://127.0.0.1:9003", id="w1")


@pytest.mark.contract("S4-4")
async def test_a_task_waits_while_every_worker_is_silent(app: App, hire: Hire) -> None:
    worker = hire()
    id = await register(app, worker)
    app.clock.advance(TTL_MS)
    waiting = await submit(app, "hello")
    await app.settled()
    found = await app.task(waiting)
    assert (found["state"], found["attempt"]) == ("queued", 0)
    assert not worker.calls

    await app.post("/heartbeat", {"id": id, "load": 0})
    await wait_until(lambda: worker.calls)
    assert (await run(app, "again"))["result"] == "again"
