"""What of the demo there is on the server: for the picture, for scripts, and to know the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from onward.cli.demo.flows import ORDER, POSTER
from onward.cli.demo.scenario import (
    ARCHIVE,
    COURIER,
    PAGE,
    PULSE,
    SCHEDULES,
    SESSIONS,
    asked,
    of_demo,
)

if TYPE_CHECKING:
    from onward.cli.demo.scenario import Scenario


class Inventory(msgspec.Struct, kw_only=True):
    tasks: Mapping[str, int] = {}  # by state
    runs: Mapping[str, Mapping[str, int]] = {}  # by flow and state
    dead_letters: Mapping[str, int] = {}  # by what they died of
    open_approvals: int = 0
    schedules: Mapping[str, str | None] = {}  # with the task that each made last
    notices: Mapping[str, int] = {}  # by session
    workers: Mapping[str, int] = {}  # by transport
    streamed: int = 0  # tasks that were done by way of a Redis stream
    breaker: str = "closed"

    def missing(self, scene: Scenario, fired_before: str | None) -> list[str]:
        """What a whole demo has and this one has not, yet."""
        fired = self.schedules.get(PULSE)
        wanted = {
            "tasks that succeeded": self.tasks.get("succeeded", 0),
            "three kinds of dead letters": len(self.dead_letters) >= 3,
            "an open approval": self.open_approvals,
            "an order that went through": self.runs.get(ORDER, {}).get("succeeded", 0),
            "a poster that was undone": self.runs.get(POSTER, {}).get("failed", 0),
            "a schedule that fired": fired is not None and fired != fired_before,
            "a notice in each session": all(self.notices.get(each, 0) for each in SESSIONS),
            "an open breaker": scene.breaker_opened,
            "a chat": scene.made["chats"],
            "work from a stream": self.streamed or not scene.streams,
        }
        return [what for what, there in wanted.items() if not there]


async def read(scene: Scenario) -> Inventory:
    client, wire = scene.client, scene.wire
    queues, dead, approvals, schedules, workers = await asyncio.gather(
        wire.ask(dict[str, Any], wire.request("GET", "/api/v2/queues")),
        client.dead_letters(),
        asked(client),
        client.schedules.list(limit=1_000),
        client.workers(),
    )
    mine = [queue for queue in queues["items"] if of_demo(queue["name"])]
    states: Counter[str] = Counter()
    for queue in mine:
        states.update({state: count for state, count in queue["states"].items() if count})
    by_name = {queue["name"]: queue for queue in mine}
    return Inventory(
        tasks=states,
        runs={flow: await _runs(scene, flow) for flow in (ORDER, POSTER)},
        dead_letters={
            group.fingerprint: group.count
            for group in dead.items
            if any(of_demo(type) for type in group.types)
        },
        open_approvals=len(approvals),
        schedules={each.name: each.last_task_id for each in schedules.items if _ours(each.name)},
        notices={session: await _notices(scene, session) for session in SESSIONS},
        workers=Counter(each.transport for each in workers if of_demo(each.id)),
        streamed=by_name.get(ARCHIVE, {"states": {}})["states"].get("succeeded", 0),
        breaker=(by_name.get(COURIER, {}).get("breaker") or {"state": "closed"})["state"],
    )


def _ours(schedule: str) -> bool:
    return schedule in SCHEDULES


async def _runs(scene: Scenario, flow: str) -> Mapping[str, int]:
    """Of the newest ones."""
    page = await scene.client.runs.list(flow=flow, limit=PAGE)
    return Counter(run.state for run in page.items)


async def _notices(scene: Scenario, session: str) -> int:
    path = f"/api/v2/sessions/{session}/notifications"
    request = scene.wire.request("GET", path, limit=PAGE)
    return len((await scene.wire.ask(dict[str, Any], request))["items"])
