"""The demo's services: a small print shop, written as anybody would write workers.

Its failures are part of the show: cards are declined, receipts are not printed, and the courier's
desk is closed now and then. Nothing here touches the world outside.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from onward import Context, Refused, TryAgain, Worker

SHIFT = secrets.token_hex(3)  # two demos may run at a time: each knows its own workers by this
GRACE_MS = 5_000

HERE = "http://127.0.0.1:8070"  # until the demo says where its server really is

studio = Worker(HERE, id=f"demo-studio-{SHIFT}", concurrency=8, grace_ms=GRACE_MS)
reception = Worker(HERE, id=f"demo-reception-{SHIFT}", concurrency=4, grace_ms=GRACE_MS)
post = Worker(HERE, id=f"demo-post-{SHIFT}", concurrency=4, grace_ms=GRACE_MS)  # called over HTTP
archive = Worker(HERE, id=f"demo-archive-{SHIFT}", concurrency=2, grace_ms=GRACE_MS)  # on a stream


@studio.service(name="demo-thumbnail")
def thumbnail(photo: str, width: int = 320) -> dict[str, Any]:
    """Make a small picture. A plain function: it runs in a thread."""
    time.sleep(0.05 + len(photo) % 5 / 20)
    return {"photo": photo, "width": width, "bytes": 1_000 + len(photo) * 37}


@studio.service(name="demo-print", timeout_ms=60_000)
async def print_photo(photo: str, ctx: Context, copies: int = 1) -> dict[str, Any]:
    """Print, and say how far it is. A panorama jams at the first try."""
    if "panorama" in photo and ctx.attempt == 1:
        raise TryAgain("the paper is jammed", after_ms=700)
    steps = 8 * copies
    for step in range(steps):
        await ctx.progress(step / steps, f"copy {step // 8 + 1} of {copies}")
        await asyncio.sleep(0.25)
    return {"photo": photo, "copies": copies}


@studio.service(name="demo-caption")
async def caption(photo: str, ctx: Context) -> str:
    """Write a caption, word by word: whoever follows the task reads along."""
    words = f"{photo}, seen by somebody who was there early".split()
    for word in words:
        await ctx.emit(f"{word} ")
        await asyncio.sleep(0.1)
    return " ".join(words)


class CardDeclined(Refused):
    """No other try will help."""


@studio.service(name="demo-charge")
async def charge(card: str, ctx: Context, amount: float = 12.5) -> str:
    """Charge a card, once however often it is tried, and print the receipt."""
    if card.endswith("0000"):
        raise CardDeclined(f"card {card} was declined by its bank")
    receipt: str = await ctx.once("charge", lambda: f"receipt-{ctx.task_id[-6:]}")
    if card.endswith("1111"):
        raise RuntimeError("the receipt is not printed: printer 7 does not answer")
    await asyncio.sleep(0.2)
    return receipt


@studio.service(name="demo-refund")
async def refund(receipt: str) -> dict[str, str]:
    """Undo a charge."""
    return {"refunded": receipt}


@studio.service(name="demo-reserve")
async def reserve(paper: str) -> str:
    """Put a sheet aside."""
    await asyncio.sleep(0.3)
    return f"a sheet of {paper}"


@studio.service(name="demo-release")
async def release(sheet: str) -> dict[str, str]:
    """Put the sheet back."""
    await asyncio.sleep(0.3)
    return {"released": sheet}


@studio.service(name="demo-engrave")
async def engrave(text: str) -> str:
    """Engrave a plate; it always breaks."""
    await asyncio.sleep(0.5)
    raise Refused(f"the plate for {text!r} broke")


@studio.service(name="demo-stock")
async def stock(order: str) -> dict[str, Any]:
    """Look whether there is paper."""
    await asyncio.sleep(0.3)
    return {"order": order, "sheets": 100 + len(order)}


@studio.service(name="demo-fraud")
async def fraud(order: str) -> dict[str, Any]:
    """Look at who orders."""
    await asyncio.sleep(0.6)
    return {"order": order, "risk": len(order) % 3 / 10}


class AddressUnknown(Refused):
    """Nobody lives there."""


@post.service(name="demo-label")
async def label(customer: str) -> str:
    """Print an address label."""
    await asyncio.sleep(0.2)
    if customer == "Nemo":
        raise AddressUnknown("no address is known for this customer")
    return f"to {customer}, by parcel"


desk_closed = asyncio.Event()  # the demo sets it for a while: then whoever comes is sent away


class DeskClosed(Exception):
    status = 503


@post.service(name="demo-courier")
async def courier(parcel: str) -> dict[str, str]:
    """Hand a parcel to the courier, if somebody is there."""
    await asyncio.sleep(0.1)
    if desk_closed.is_set():
        raise DeskClosed("nobody is at the courier's desk")
    return {"parcel": parcel, "picked_up_by": "the courier"}


@reception.group("demo-shop")
async def answer(payload: dict[str, Any], ctx: Context) -> str:
    """Answer whoever asks by an OpenAI client, or through the dispatcher door."""
    messages = payload.get("messages") or [{"content": "nothing"}]
    reply = f"You asked: {messages[-1].get('content')} We open at nine."
    for word in reply.split(" "):
        await ctx.emit(f"{word} ")
        await asyncio.sleep(0.05)
    return reply


@archive.service(name="demo-archive")
async def shelve(photo: str) -> dict[str, str]:
    """Put a photo on the shelf."""
    await asyncio.sleep(0.2)
    return {"photo": photo, "shelf": photo[:1].upper()}
