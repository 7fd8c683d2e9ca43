"""What is done to a document: small services, each with one job."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel

from onward import Context, Refused, Worker

worker = Worker()


class Facts(BaseModel):
    vendor: str
    total: float


@worker.service
def extract(text: str) -> Facts:
    """Read vendor and total from the text of an invoice."""
    vendor = re.search(r"^From: (.+)$", text, flags=re.M)
    total = re.search(r"^Total: ([\d.]+)$", text, flags=re.M)
    if vendor is None or total is None:
        raise Refused("this is no invoice")  # will not be one at the next attempt either
    return Facts(vendor=vendor[1], total=float(total[1]))


@worker.service
def is_known(vendor: str) -> bool:
    return vendor in {"Ada & Sons", "Grace Ltd"}


@worker.service
def spam_score(text: str) -> float:
    return 0.9 if "!!!" in text else 0.1


@worker.service
def book(ctx: Context, vendor: str, total: float) -> str:
    """Write it into the books: once, whatever happens."""

    def write() -> str:
        with Path("books.txt").open("a") as books:
            books.write(f"{vendor} {total:.2f}\n")
        return f"booked {total:.2f} for {vendor}"

    return ctx.once("book", write)


@worker.service
def send_back(reason: str) -> str:
    return f"sent back: {reason}"
