"""Publishes the flow and hands in three documents, as a mailbox would."""

from __future__ import annotations

import asyncio

from flow import flow
from onward import Client

DOCUMENTS = {
    "small": "From: Ada & Sons\nTotal: 12.50\n",
    "large": "From: Grace Ltd\nTotal: 4200\n",
    "letter": "Dear all, how are you?\n",
}


async def main() -> None:
    async with Client() as client:
        await client.flows.publish(flow)
        runs = {
            name: await client.flows.start("invoice", {"text": text}, request_id=f"mail-{name}")
            for name, text in DOCUMENTS.items()
        }
        for name, run in runs.items():
            print(f"{name}: {run.id}")
        for name in ("small", "letter"):
            ended = await client.runs.wait(runs[name].id)
            print(f"{name}: {ended.result['outcome']}")
        print("large: waits for you, on the page or by: onward approvals list")
        ended = await client.runs.wait(runs["large"].id)
        print(f"large: {ended.result['outcome']}")


asyncio.run(main())
