"""An agent that knows Onward by MCP alone. A rule stands in for its model.

Any other MCP client does the same: see README.md for the configuration of one.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from mcp import Client

URL = os.environ.get("ONWARD_URL", "http://127.0.0.1:8070")


def choose(tools: list[Any], question: str) -> tuple[str, dict[str, Any]]:
    """What a language model would do: read the descriptions, pick a tool, fill in its arguments."""
    wanted = next(each for each in tools if each.name == "quarterly_report")
    quarter, year = question.rstrip("?.").split()[-2:]
    return wanted.name, {"quarter": quarter, "year": int(year)}


async def main() -> None:
    async with Client(f"{URL}/mcp?session_id=ada") as client:
        while True:  # until the worker has connected
            tools = (await client.list_tools()).tools
            if any(tool.name == "quarterly_report" for tool in tools):
                break
            await asyncio.sleep(0.2)
        print("tools:", ", ".join(sorted(tool.name for tool in tools)))

        async def report(progress: float, total: float | None, message: str | None) -> None:
            print(f"  {progress:.0%} {message or ''}")

        question = "Please write the report for Q4 2026"
        name, arguments = choose(tools, question)
        print(f"{question} -> {name}({arguments})")
        answer = await client.call_tool(name, arguments, progress_callback=report)
        print("answer:", answer.structured_content)

        # What takes longer is handed off: the answer has an id, and the end is notified.
        handed = await client.call_tool(
            "quarterly_report_task_tool",
            {"task_type": "quarterly_report", "parameters": {"quarter": "Q1", "year": 2027}},
        )
        print("handed off:", handed.structured_content["acknowledgment_message"])
        task_id = handed.structured_content["task_id"]
        while True:
            found = await client.call_tool("get_task_result_tool", {"task_id": task_id})
            if found.structured_content["status"] in ("completed", "failed"):
                break
            await asyncio.sleep(0.5)
        print("later:", found.structured_content["result"])


asyncio.run(main())
