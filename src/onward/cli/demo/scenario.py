"""What happens in the demo: acts, each played again and again at its own pace.

An act hands in work as a client of this server would. All together that is a few tasks a second,
so that a laptop does not notice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from onward.cli.demo import shop
from onward.cli.demo.shop import COURIER, GROUP, HOUR_MS, ORDER, POSTER

if TYPE_CHECKING:
    from onward.client.http import Client

PHOTOS = ("harbour", "two cats", "panorama of the bay", "the old mill", "Ada at five", "first snow")
CUSTOMERS = ("Ada", "Grace", "Linus", "Barbara", "Donald")
QUESTIONS = ("When do you open?", "Is my poster ready?", "Do you print on canvas?")
SESSIONS = ("demo-ada", "demo-grace")
PRIORITIES = ("normal", "high", "low")
WINDOW = {"type": "demo-thumbnail", "payload": {"photo": "the shop window"}}
TOWER = {"type": "demo-caption", "payload": {"photo": "the clock tower"}}
NIGHT = {"flow": POSTER, "params": {"paper": "rag", "card": "4242", "text": "closed"}}
SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "demo-pulse": {**WINDOW, "every_ms": 5_000, "overlap": "skip", "missed": "skip"},
    "demo-minutely": {**TOWER, "cron": "* * * * *", "missed": "skip"},
    "demo-nightly": {**NIGHT, "cron": "0 3 * * MON-FRI", "timezone": "Europe/Berlin"},
}

OPEN_MOST = 4  # approvals that wait for the user; with more, the demo decides the oldest
SELDOM = 20  # rounds from one failure to the next: the dead stay until a person decides
CLOSED_S = 8.0  # the courier's desk, counted from when its breaker opened
OPENS_WITHIN_S = 60.0
LOOK_S = 0.3
AWAY_S = 1.0  # between two tries while the server does not answer


class Scenario:
    def __init__(self, client: Client, tell: Callable[[str], None]) -> None:
        self.client = client
        self.tell = tell  # what has just happened
        self.made: Counter[str] = Counter()
        self.on_change: Callable[[], None] = lambda: None
        self._away = False

    def summary(self) -> str:
        if self._away:
            return "no server answers; waiting for it to come back"
        made = ", ".join(f"{count} {what}" for what, count in self.made.items())
        return f"handed in: {made or 'nothing'}"

    async def prepare(self) -> None:
        """Flows and schedules; the same twice is the same."""
        from onward.cli.flow import published

        for flow in (shop.order(), shop.poster()):
            definition = flow.definition()
            newest = await published(self.client, str(definition["name"]))
            if newest is None or newest.definition != definition:
                await self.client.flows.publish(flow)
        for name, schedule in SCHEDULES.items():
            await self.client.schedules.put(name, **schedule)

    async def play(self) -> None:
        """Until it is canceled."""
        async with asyncio.TaskGroup() as acts:
            for act in ACTS:
                acts.create_task(self._repeat(act))

    async def _repeat(self, act: Act) -> None:
        from onward.client.errors import ProblemError, Unreachable

        await asyncio.sleep(act.first_s)
        for n in count():
            try:
                await act.play(self, n)
                self._away = False
            except Unreachable:
                # A user who kills the server wants to see what happens when it is back.
                self._away = True
                await asyncio.sleep(AWAY_S)
                continue
            except ProblemError as error:
                self.tell(f"refused: {error}")
            finally:
                self.on_change()
            await asyncio.sleep(act.every_s)

    async def submit(self, type: str, payload: Any, **options: Any) -> None:
        await self.client.submit(type, payload, **options)
        self.made["tasks"] += 1


async def photos(scene: Scenario, n: int) -> None:
    """The daily work: short and long, urgent and not, now and later."""
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
    match n % SELDOM:
        case 1:
            await scene.submit("demo-charge", {"card": "4242 0000"})
            scene.tell("a card is declined: another try would not help, so it is a dead letter")
        case 2:
            again = {"max_retries": 2, "backoff_ms": [500, 1_000]}
            await scene.submit("demo-charge", {"card": "4242 1111"}, **again)
            scene.tell("a receipt is not printed: tried three times, then a dead letter")
        case 3:
            await scene.submit("demo-label", {"customer": "Nemo"})
            scene.tell("a label for a customer without an address: another kind of dead letter")
        case _:
            await scene.submit("demo-charge", {"card": "4242 4242", "amount": 5.0 + n % 40})


async def parcels(scene: Scenario, n: int) -> None:
    await scene.submit(COURIER, {"parcel": f"parcel {n}"}, max_retries=20, backoff_ms=[2_000])


async def outage(scene: Scenario, n: int) -> None:
    """The courier's desk is closed: calls fail, the breaker opens, and closes when it is back."""
    shop.desk_closed.set()
    scene.tell("the courier's desk is closed: after some failures its breaker opens")
    try:
        for parcel in range(12):
            body = {"parcel": f"parcel {n}-{parcel}"}
            await scene.submit(COURIER, body, max_retries=20, backoff_ms=[400, 400, 1_500])
        async with asyncio.timeout(OPENS_WITHIN_S):
            health = await scene.client.health()
            while COURIER not in _open_breakers(health):
                await asyncio.sleep(LOOK_S)
                health = await scene.client.health()
        scene.tell("the breaker is open: parcels wait, and none is tried in vain")
        await asyncio.sleep(CLOSED_S)
    except TimeoutError:  # another worker serves the courier's queue as well
        scene.tell("the breaker did not open this time")
    finally:
        shop.desk_closed.clear()
    scene.tell("the desk is open again: one parcel is tried, then the others follow in waves")


def _open_breakers(health: Mapping[str, Any]) -> set[str]:
    breakers = health["details"]["circuit_breaker"]["services"]
    return {name for name, each in breakers.items() if each["state"] != "closed"}


async def desk(scene: Scenario, n: int) -> None:
    """A person is asked. What the user does not decide, the demo does, oldest first."""
    copies = 2 + n % 3
    reason = f"{copies} copies for {CUSTOMERS[n % 5]}, free of charge: really?"
    body = {"photo": PHOTOS[n % len(PHOTOS)], "copies": copies}
    await scene.submit("demo-print", body, approval={"reason": reason, "expires_ms": HOUR_MS})
    # Newest first; those of runs have the type of their flow.
    asked = (await scene.client.approvals(limit=200)).items
    ours = [each for each in asked if each.type.startswith(("demo-", "flow:demo-"))]
    for each in ours[OPEN_MOST:]:
        decide = scene.client.approve if n % 3 else scene.client.reject
        await decide(each.id, by="the demo")
    scene.tell("a print job waits for a person: /ui/approvals")


async def orders(scene: Scenario, n: int) -> None:
    """Small orders run through, as soon as they are paid; large ones wait for a signature."""
    order = {
        "order": f"order {n}",
        "customer": CUSTOMERS[n % 5],
        "photos": list(PHOTOS[: 2 + n % 4]),
        "total": 240 if n % 5 == 1 else 30,
    }
    run = await scene.client.flows.start(ORDER, order)
    scene.made["runs"] += 1
    # Half of them are paid before the run asks: a signal that comes early is kept.
    await asyncio.sleep(0 if n % 2 else 4)
    await scene.client.runs.signal(run.id, "payment", {"paid": order["total"]})


async def posters(scene: Scenario, n: int) -> None:
    text = f"grand opening {n}"
    await scene.client.flows.start(POSTER, {"paper": "cotton", "card": "4242 4242", "text": text})
    scene.made["runs"] += 1
    scene.tell("a poster's plate breaks: what its run did before is undone")


async def agents(scene: Scenario, n: int) -> None:
    """An agent hands off by its tools, and is notified; sometimes only that it takes longer."""
    session = SESSIONS[n % len(SESSIONS)]
    if n % 4 == 3:
        body = {"photo": "a wall of photos", "copies": 3}
        await scene.submit("demo-print", body, session_id=session, timeout_ms=2_000)
        scene.tell(f"{session} is notified that its task takes longer than it should; it goes on")
        return
    type = ("demo-caption", "demo-print")[n // 2 % 2]
    photo = {"photo": PHOTOS[n % len(PHOTOS)]}
    for tool in await scene.client.tools(session):
        if tool.__name__ == f"{type}_task_tool":
            await tool(task_type=type, parameters=photo)
            scene.made["agent calls"] += 1


async def chats(scene: Scenario, n: int) -> None:
    """A caller who waits, by what any OpenAI client sends; every other one reads a stream."""
    import httpx2

    from onward.client.address import http_options, key_of

    messages = [{"role": "user", "content": QUESTIONS[n % len(QUESTIONS)]}]
    body = {"model": GROUP, "messages": messages, "stream": n % 2 == 0}
    async with httpx2.AsyncClient(
        **http_options(scene.client.url, key=key_of()), timeout=30
    ) as http:
        try:
            await http.post("/v1/chat/completions", json=body)
        except httpx2.TransportError:  # the other acts notice, too
            return
    scene.made["chats"] += 1


class Act(NamedTuple):
    play: Callable[[Scenario, int], Awaitable[None]]
    every_s: float
    first_s: float = 0


ACTS = (
    Act(photos, 0.7),
    Act(cards, 3.0),
    Act(parcels, 4.0),
    Act(outage, 150.0, first_s=25.0),
    Act(desk, 20.0),
    Act(orders, 6.0),
    Act(posters, 25.0),
    Act(agents, 8.0),
    Act(chats, 5.0),
)
