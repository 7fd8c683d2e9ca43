"""A small agent that hands off work and goes on talking. No model: a few rules stand in for one.

With a server running (`onward up`), `python examples/agent/agent.py` plays a conversation, and
`python examples/agent/agent.py --chat` lets you have one.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

from onward import Context, Worker
from onward.client import tools
from onward.client.errors import Unreachable
from onward.core.task import new_id

CONVERSATION = (
    "Please write the report for Q4 2026.",
    "How much is 17 * 23, by the way?",
    "What is going on?",
    "(a moment passes)",
    "Thanks. Show me the report.",
)


def report_service() -> Worker:
    """The back end, on its own: a process elsewhere would do as well."""
    worker = Worker(id=f"reports-{new_id()[-6:]}")

    @worker.service
    async def report(quarter: str, year: int, ctx: Context) -> dict[str, Any]:
        """Write a quarterly report."""
        for page in range(1, 5):
            await ctx.progress(page / 5, f"page {page} of 4")
            await asyncio.sleep(0.4)
        return {"title": f"Report {quarter} {year}", "pages": 4}

    threading.Thread(target=lambda: asyncio.run(worker.serve()), daemon=True).start()
    until = time.monotonic() + 10
    while not worker.connected:
        if time.monotonic() > until:
            raise SystemExit("the report service found no server")
        time.sleep(0.05)
    return worker


class Agent:
    """Step by step as numbered below: what the user hears is never kept waiting by the work."""

    def __init__(self, session: str) -> None:
        self._tools = {tool.__name__: tool for tool in tools(session_id=session)}
        self._last: str | None = None

    def hear(self, said: str) -> Iterator[str]:
        """1. A request comes in; each answer is a line."""
        found = re.search(r"report for (Q[1-4]) (\d{4})", said)
        if found:
            yield self._hand_off(found[1], int(found[2]))
        elif sum_ := re.search(r"(\d+) \* (\d+)", said):
            yield f"{int(sum_[1]) * int(sum_[2])}."  # 5. Other things go on meanwhile.
        elif "show" in said.lower() and self._last:
            yield self._fetch(self._last)
        else:
            yield from self._look()

    def news(self) -> Iterator[str]:
        """What comes of itself, if it comes soon."""
        for _ in range(60):
            lines = list(self._look())
            if lines[0].startswith("*"):
                yield from lines
                return
            time.sleep(0.5)

    def _hand_off(self, quarter: str, year: int) -> str:
        # 2. The tool is called, which publishes the task; 3. the server keeps it; 4. and we have
        # something to say at once.
        answer = self._tools["report_task_tool"](
            task_type="report", parameters={"quarter": quarter, "year": year}
        )
        self._last = answer["task_id"]
        return str(answer["acknowledgment_message"])

    def _look(self) -> Iterator[str]:
        answer = self._tools["list_user_tasks_tool"](status_filter="all")
        # 6. and 7. The server has heard of the end meanwhile; 8. the user is told with the next
        # answer, whatever it is about.
        for notice in answer["notifications"]:
            yield f"* {notice['message']}"
        for task in answer["tasks"]:
            yield f"{task['summary']} ({task['status']})"

    def _fetch(self, task: str) -> str:
        answer = self._tools["get_task_result_tool"](task_id=task)
        if answer["status"] != "completed":
            return str(answer["message"])
        return f"Here it is: {answer['result']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chat", action="store_true", help="have the conversation yourself")
    chat = parser.parse_args().chat
    try:
        tools()
    except Unreachable as error:
        raise SystemExit(str(error)) from error
    report_service()
    agent = Agent(session=f"agent-{new_id()}")
    for said in _typed() if chat else CONVERSATION:
        if not chat:
            print(f"\nyou    {said}")
        for line in agent.news() if said.startswith("(") else agent.hear(said):
            print(f"agent  {line}")


def _typed() -> Iterator[str]:
    while True:
        try:
            yield input("\nyou    ")
        except EOFError:
            return


if __name__ == "__main__":
    main()
