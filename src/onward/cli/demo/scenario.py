"""What happens in the demo: acts, each played again and again at its own pace.

An act hands in work as a client of this server would; what becomes of it the workers decide. All
together it is a few tasks a second, so that a laptop does not notice.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from onward.cli.demo import services
from onward.cli.demo.flows import HOUR_MS, ORDER, POSTER, order, poster
from onward.core.task import new_id

if TYPE_CHECKING:
    from onward.client.http import Client, Options
    from onward.client.wire import Wire
    from onward.wire.approvals import ApprovalView

PHOTOS = ("harbour", "two cats", "panorama of the bay", "the old mill", "Ada at five", "first snow")
CUSTOMERS = ("Ada", "Grace", "Linus", "Barbara", "Donald", "Nemo")  # nobody knows where Nemo lives
QUESTIONS = ("When do you open?", "Is my poster ready?", "Do you print on canvas?")
SESSIONS = ("demo-ada", "demo-grace")
PRIORITIES = ("normal", "high", "low")
GROUP = "demo-shop"
COURIER = "demo-courier"
ARCHIVE = "demo-archive"
PULSE = "demo-pulse"

PAGE = 200
OPEN_MOST = 4  # approvals that wait for whoever watches; with more, the demo decides the oldest
DYING = 3  # early rounds show each failure, later ones few: the dead stay until a person decides
SELDOM = 20
CLOSED_S = 8.0  # the courier's desk, counted from when its breaker opened
OPENS_WITHIN_S = 60.0
LOOK_S = 0.3  # between two looks for something that comes about by itself
TRIES = 5
AWAY_S = 1.0  # between two looks for a server that does not answer

SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    PULSE: {
        "type": "demo-thumbnail",
        "payload": {"photo": "the shop window"},
        "every_ms": 5_000,
        "overlap": "skip",
        "missed": "skip",
    },
    "demo-minutely": {
        "type": "demo-caption",
        "payload": {"photo": "the clock tower"},
        "cron": "* * * * *",
        "missed": "skip",
    },
    "demo-nightly": {
        "flow": POSTER,
        "params": {"paper": "rag", "card": "4242", "text": "closed"},
        "cron": "0 3 * * MON-FRI",
        "timezone": "Europe/Berlin",
    },
}


class Act(msgspec.Struct, frozen=True):
    play: Callable[[Scenario, int], Awaitable[None]]
    every_s: float
    rounds: int  # when everything is to be there once
    first_s: float = 0  # when it is first played, if nothing hurries


class Scenario:
    def __init__(self, client: Client, wire: Wire, *, streams: bool) -> None:
        self.client = client
        self.wire = wire  # for the doors that the client does not speak
        self.streams = streams
        self.made: Counter[str] = Counter()
        self.said: deque[str] = deque(maxlen=6)
        self.on_said: Callable[[str], None] = lambda _: None
        self.away = False
        self.breaker_opened = False
        self.acts = (*ACTS, *([Act(shelf, 5.0, 2)] if streams else []))

    def say(self, text: str) -> None:
        self.said.append(text)
        self.on_said(text)

    async def go_on(self) -> None:
        """Until somebody stops it."""
        await _together(self._again_and_again(act) for act in self.acts)

    async def once(self) -> None:
        await _together(self._rounds(act) for act in self.acts)

    async def _rounds(self, act: Act) -> None:
        for n in range(act.rounds):
            await self._surely(act, n)

    async def _surely(self, act: Act, n: int) -> None:
        """A connection that is cut, or a server that is busy, is no reason to give up at once."""
        from onward.client.errors import ProblemError, Unreachable

        for tries_left in reversed(range(TRIES)):
            try:
                return await act.play(self, n)
            except (Unreachable, ProblemError) as error:
                if not tries_left or getattr(error, "status", 503) != 503:
                    raise
            await asyncio.sleep(AWAY_S)
        return None

    async def _again_and_again(self, act: Act) -> None:
        from onward.client.errors import ProblemError, Unreachable

        await asyncio.sleep(act.first_s)
        for n in count():
            try:
                await act.play(self, n)
                self.away = False
            except Unreachable:
                # Whoever kills the server wants to see what happens when it comes back.
                self.away = True
                await asyncio.sleep(AWAY_S)
                continue
            except ProblemError as error:
                self.say(f"refused: {error}")
            await asyncio.sleep(act.every_s)

    async def submit(self, type: str, payload: Any, **options: Any) -> str:
        said: Options = options  # type: ignore[assignment]
        task = await self.client.submit(type, payload, **said)
        self.made["tasks"] += 1
        return task.id


async def _together(parts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All of them; the first failure ends the others, and is told as it is."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _shows(n: int, kind: int) -> bool:
    """Whether round `n` is one for a failure of this kind."""
    return n == kind or (n > DYING and n % SELDOM == kind)


async def photos(scene: Scenario, n: int) -> None:
    """The daily bread: short and long, urgent and not, now and later."""
    photo, priority = PHOTOS[n % len(PHOTOS)], PRIORITIES[n % len(PRIORITIES)]
    if n % 6 in (2, 5):
        await scene.submit("demo-print", {"photo": photo, "copies": n % 3 + 1}, priority=priority)
    elif n % 6 == 4:
        await scene.submit("demo-caption", {"photo": photo})
    else:
        later = {"delay_ms": 8_000} if n % 7 == 3 else {}
        await scene.submit("demo-thumbnail", {"photo": photo}, priority=priority, **later)


async def cards(scene: Scenario, n: int) -> None:
    """Most pay; one kind of failure dies at once, another after it was tried again."""
    if _shows(n, 1):
        await scene.submit("demo-charge", {"card": "4242 0000"})
        scene.say("a card is declined: no other try would help, so it is a dead letter at once")
    elif _shows(n, 2):
        again = {"max_retries": 2, "backoff_ms": [500, 1_000]}
        await scene.submit("demo-charge", {"card": "4242 1111"}, **again)
        scene.say("a receipt is not printed: tried three times, then a dead letter")
    elif _shows(n, 3):
        await scene.submit("demo-label", {"customer": "Nemo"})
        scene.say("a label for somebody without an address: another kind of dead letter")
    else:
        await scene.submit("demo-charge", {"card": "4242 4242", "amount": 5.0 + n % 40})


async def parcels(scene: Scenario, n: int) -> None:
    await scene.submit(COURIER, {"parcel": f"parcel {n}"}, max_retries=20, backoff_ms=[2_000])


async def outage(scene: Scenario, n: int) -> None:
    """The courier's desk is closed: calls fail, the breaker opens, and closes when it is back."""
    services.desk_closed.set()
    scene.say("the courier's desk is closed: after some failures its breaker opens")
    try:
        for parcel in range(12):
            body = {"parcel": f"parcel {n}-{parcel}"}
            await scene.submit(COURIER, body, max_retries=20, backoff_ms=[400, 400, 1_500])
        async with asyncio.timeout(OPENS_WITHIN_S):
            await until(lambda: _left_alone(scene))
        scene.breaker_opened = True
        scene.say("the breaker is open: parcels wait, and none is tried in vain")
        await asyncio.sleep(CLOSED_S)
    except TimeoutError:  # somebody else's courier answers for ours
        scene.say("the breaker did not open this time")
    finally:
        services.desk_closed.clear()
    scene.say("the desk is open again: one parcel is tried, then the others follow in waves")


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await true():
            return
        await asyncio.sleep(LOOK_S)


async def _left_alone(scene: Scenario) -> bool:
    found = await scene.client.health()
    breaker = found["details"]["circuit_breaker"]["services"].get(COURIER, {})
    return breaker.get("state") in ("open", "half_open")


async def desk(scene: Scenario, n: int) -> None:
    """Somebody is asked. What whoever watches does not decide, the demo does, oldest first."""
    copies = 2 + n % 3
    reason = f"{copies} copies for {CUSTOMERS[n % 5]}, on the house: really?"
    terms = {"reason": reason, "expires_ms": HOUR_MS}
    body = {"photo": PHOTOS[n % len(PHOTOS)], "copies": copies}
    await scene.submit("demo-print", body, approval=terms)
    waiting = await asked(scene.client)
    for each in waiting[:-OPEN_MOST]:
        if n % 3:
            await scene.client.approve(each.id, by="the demo", comment="looks fine")
        else:
            await scene.client.reject(each.id, by="the demo", comment="too many")
    scene.say("a print job waits for a person: /ui/approvals")


async def asked(client: Client) -> Sequence[ApprovalView]:
    """The demo's own approvals that are open, oldest first: of tasks, and of runs that wait."""
    page = await client.approvals(limit=PAGE)
    runs = await client.runs.list(flow=ORDER, state="waiting", limit=PAGE)
    ours = {run.id for run in runs.items}
    return [each for each in reversed(page.items) if of_demo(each.queue) or each.task_id in ours]


def of_demo(name: str) -> bool:
    return name.startswith(("demo-", "flow:demo-", f"group:{GROUP}"))


async def orders(scene: Scenario, n: int) -> None:
    """Small orders run through, as soon as they are paid; large ones wait for a signature."""
    large = n % 5 == 1
    params = {
        "order": f"order {n}",
        "customer": CUSTOMERS[n % 5],
        "photos": list(PHOTOS[: 2 + n % 4]),
        "total": 240 if large else 30,
    }
    run = await scene.client.flows.start(ORDER, params)
    scene.made["runs"] += 1
    # Half of them are paid before the run asks: a signal that comes early is kept.
    await asyncio.sleep(0 if n % 2 else 4)
    await scene.client.runs.signal(run.id, "payment", {"paid": params["total"]})


async def posters(scene: Scenario, n: int) -> None:
    params = {"paper": "cotton", "card": "4242 4242", "text": f"grand opening {n}"}
    await scene.client.flows.start(POSTER, params)
    scene.made["runs"] += 1
    scene.say("a poster's plate breaks: what its run did before is undone")


async def agents(scene: Scenario, n: int) -> None:
    """An agent hands off by its tools, and is told; sometimes only that it takes longer."""
    session = SESSIONS[n % len(SESSIONS)]
    if n % 4 == 3:
        body = {"photo": "a wall of photos", "copies": 3}
        await scene.submit("demo-print", body, session_id=session, timeout_ms=2_000)
        scene.say(f"{session} is told that its task takes longer than it should; it goes on")
        return
    type = ("demo-caption", "demo-print")[n // 2 % 2]
    path = f"/api/v2/tools/{type}_task_tool"
    arguments = {"task_type": type, "parameters": {"photo": PHOTOS[n % len(PHOTOS)]}}
    request = scene.wire.request("POST", path, body=arguments, key=new_id(), session_id=session)
    await scene.wire.tell(request)
    scene.made["agent calls"] += 1


async def chats(scene: Scenario, n: int) -> None:
    """Callers who wait: an OpenAI client with and without a stream, and the dispatcher's door."""
    said = {"messages": [{"role": "user", "content": QUESTIONS[n % len(QUESTIONS)]}]}
    if n % 3 == 2:
        request = scene.wire.request("POST", "/api/openai", body={**said, "group": GROUP})
    else:
        body = {**said, "model": GROUP, "stream": n % 3 == 0}
        request = scene.wire.request("POST", "/v1/chat/completions", body=body)
    await scene.wire.tell(request)
    scene.made["chats"] += 1


async def shelf(scene: Scenario, n: int) -> None:
    """Work for the worker on a Redis stream."""
    await scene.submit(ARCHIVE, {"photo": PHOTOS[n % len(PHOTOS)]})


ACTS = (
    Act(photos, 0.7, 14),
    Act(cards, 3.0, 4),
    Act(parcels, 4.0, 2),
    Act(outage, 150.0, 1, first_s=25.0),
    Act(desk, 20.0, 3),
    Act(orders, 6.0, 3),
    Act(posters, 25.0, 1),
    Act(agents, 8.0, 4),
    Act(chats, 5.0, 3),
)


async def prepare(client: Client) -> Mapping[str, str | None]:
    """Flows and schedules; the same twice is the same. Returns what each schedule made last."""
    from onward.cli.flow import published

    for flow in (order(), poster()):
        definition = flow.definition()
        name = str(definition["name"])
        newest = await published(client, name)
        if newest is None or newest.definition != definition:
            await client.flows.publish(flow)
    return {
        name: (await client.schedules.put(name, **schedule)).last_task_id
        for name, schedule in SCHEDULES.items()
    }
