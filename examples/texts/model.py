"""A model that bears only so much: five texts of a customer at once, a thousand a second in all.

It is made up: what it answers is the beginning of the text, and how much it had to do just then.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter

from onward import Concurrency, RateLimit, Worker

worker = Worker(concurrency=100)
running: Counter[str] = Counter()
PAUSE_S = float(os.environ.get("PAUSE_S", "0.05"))  # what a text takes


@worker.service(
    partition_by="customer",
    concurrency=Concurrency(per_partition=5),
    rate=[RateLimit(count=1000, per_ms=1000)],
)
async def digest(customer: str, text: str) -> dict[str, str | int]:
    running[customer] += 1
    at_once = running[customer]
    await asyncio.sleep(PAUSE_S)
    running[customer] -= 1
    return {"customer": customer, "digest": text[:20], "at_once": at_once}
