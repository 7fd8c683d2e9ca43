"""Hands in 10,000 texts of ten customers, the first customer's first, and looks at the results."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter

from model import digest

from onward import Client

TEXTS = int(os.environ.get("TEXTS", "10000"))
CUSTOMERS = [f"customer-{number}" for number in range(10)]


async def main() -> None:
    each = TEXTS // len(CUSTOMERS)
    texts = [
        {"customer": customer, "text": f"Text {number} of {customer}, with more to say"}
        for customer in CUSTOMERS
        for number in range(each)
    ]
    async with Client() as client:
        began = time.monotonic()
        batch = await client.submit_many(digest, texts, name="texts", tags=["texts"])
        print(f"{len(batch.ids)} texts handed in after {time.monotonic() - began:.1f} s")
        states = (await batch.wait()).states
        print(f"over after {time.monotonic() - began:.1f} s: {dict(states)}")
        results = await batch.results()
        most = max(int(result["at_once"]) for result in results)
        done = Counter(result["customer"] for result in results)
        print(f"at most {most} of a customer at once; {min(done.values())} of each are done")


asyncio.run(main())
