"""The demo's services and flows: a small print shop.

Its failures are part of the show: cards are declined, receipts are not printed, and the courier's
desk is closed now and then. Nothing here touches the world outside.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from onward import Context, Refused, TryAgain, Worker
from onward.flow.builder import Flow, params, shared

GROUP, COURIER = "demo-shop", "demo-courier"
ORDER, POSTER = "demo-order", "demo-poster"
HOUR_MS = 3_600_000  # how long a flow waits for a person or a payment
GRACE_MS = 5_000

desk_closed = asyncio.Event()  # set by the demo for a while: then the courier takes no parcels


def thumbnail(photo: str, width: int = 320) -> dict[str, Any]:
    """Make a small picture. A plain function: it runs in a thread."""
    time.sleep(0.05 + len(photo) % 5 / 20)
    return {"photo": photo, "width": width}


async def print_photo(photo: str, ctx: Context, copies: int = 1) -> dict[str, Any]:
    """Print, and report progress. A panorama jams at the first try."""
    if "panorama" in photo and ctx.attempt == 1:
        raise TryAgain("the paper is jammed", after_ms=700)
    steps = 8 * copies
    for step in range(steps):
        await ctx.progress(step / steps, f"copy {step // 8 + 1} of {copies}")
        await asyncio.sleep(0.25)
    return {"photo": photo, "copies": copies}


async def caption(photo: str, ctx: Context) -> str:
    """Write a caption, word by word: a follower of the task reads along."""
    words = f"{photo}, early in the morning, before anyone was up".split()
    for word in words:
        await ctx.emit(f"{word} ")
        await asyncio.sleep(0.1)
    return " ".join(words)


class CardDeclined(Refused):
    """No other try will help."""


async def charge(card: str, ctx: Context, amount: float = 12.5) -> str:
    """Charge a card, once however often it is tried, and print the receipt."""
    if card.endswith("0000"):
        raise CardDeclined(f"card {card} was declined by its bank")
    receipt: str = await ctx.once("charge", lambda: f"receipt-{ctx.task_id[-6:]}")
    if card.endswith("1111"):
        raise RuntimeError("the receipt is not printed: printer 7 does not answer")
    await asyncio.sleep(0.2)
    return receipt


async def undo(what: str) -> dict[str, str]:
    """Undo a charge or a reservation."""
    await asyncio.sleep(0.3)
    return {"undone": what}


async def reserve(paper: str) -> str:
    """Put a sheet aside."""
    await asyncio.sleep(0.3)
    return f"a sheet of {paper}"


async def engrave(text: str) -> str:
    """Engrave a plate; it always breaks."""
    await asyncio.sleep(0.5)
    raise Refused(f"the plate for {text!r} broke")


async def check(order: str) -> dict[str, Any]:
    """Check an order."""
    await asyncio.sleep(0.4)
    return {"order": order, "checked": True}


class AddressUnknown(Refused):
    """The customer has no address."""


async def label(customer: str) -> str:
    """Print an address label."""
    await asyncio.sleep(0.2)
    if customer == "Nemo":
        raise AddressUnknown("no address is known for this customer")
    return f"to {customer}, by parcel"


class DeskClosed(Exception):
    status = 503


async def courier(parcel: str) -> dict[str, str]:
    """Hand a parcel to the courier, if the desk is open."""
    await asyncio.sleep(0.1)
    if desk_closed.is_set():
        raise DeskClosed("the courier's desk is closed")
    return {"parcel": parcel, "picked_up_by": "the courier"}


async def answer(payload: dict[str, Any], ctx: Context) -> str:
    """Answer a question from an OpenAI client."""
    messages = payload.get("messages") or [{"content": "nothing"}]
    reply = f"You asked: {messages[-1].get('content')} We open at nine."
    for word in reply.split(" "):
        await ctx.emit(f"{word} ")
        await asyncio.sleep(0.05)
    return reply


STUDIO: dict[str, Any] = {
    "demo-thumbnail": thumbnail,
    "demo-print": print_photo,
    "demo-caption": caption,
    "demo-charge": charge,
    "demo-refund": undo,
    "demo-reserve": reserve,
    "demo-release": undo,
    "demo-engrave": engrave,
    "demo-stock": check,
    "demo-fraud": check,
}
POST: dict[str, Any] = {"demo-label": label, COURIER: courier}
TYPES = (*STUDIO, *POST)


def workers(url: str) -> tuple[Worker, Worker, Worker]:
    """The studio and the reception, and the post, which may be called over HTTP."""
    token = secrets.token_hex(3)
    studio, reception, post = (
        Worker(url, id=f"demo-{name}-{token}", concurrency=slots, grace_ms=GRACE_MS)
        for name, slots in (("studio", 8), ("reception", 4), ("post", 4))
    )
    for worker, services in ((studio, STUDIO), (post, POST)):
        for name, function in services.items():
            worker.service(name=name)(function)
    reception.group(GROUP)(answer)
    return studio, reception, post


def order() -> Flow:
    """Checked by two, large ones by a person; each photo made, left to dry, paid, labelled."""
    flow = Flow(ORDER, description="An order of prints, from the check to the label.")
    checks = flow.parallel(
        "check",
        ["demo-stock", "demo-fraud"],
        input=params.order,
        output="checks",
        parallel_mode="concurrent",
    )
    size = flow.choice("size", {"large": params.total > 100}, default_action="small")
    sign = flow.approval(
        "sign",
        reason="More than 100: shall it be printed?",
        timeout_ms=HOUR_MS,
        input={"order": params.order, "customer": params.customer, "total": params.total},
    )
    make = flow.foreach(
        "make", "demo-thumbnail", input=params.photos, output="prints", max_parallel=2
    )
    dry = flow.timer("dry", 1_500)
    paid = flow.wait_event("paid", shared.payment, timeout_ms=HOUR_MS)
    send = flow.executor("label", "demo-label", input=params.customer, output="label")
    checks >> size
    size - "large" >> sign
    size - "small" >> make
    sign - "approved" >> make
    make >> dry >> paid >> send
    return flow


def poster() -> Flow:
    """The last step fails, and what the others did is undone, last things first."""
    flow = Flow(POSTER, description="A poster whose plate breaks: paper and money go back.")
    paper = flow.executor(
        "paper", "demo-reserve", input=params.paper, output="sheet", compensate="demo-release"
    )
    money = flow.executor(
        "charge", "demo-charge", input=params.card, output="receipt", compensate="demo-refund"
    )
    plate = flow.executor("engrave", "demo-engrave", input=params.text, output="plate")
    paper >> money >> plate
    return flow
