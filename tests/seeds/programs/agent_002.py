"""An agent written from "Async Task Pattern Specification" alone. `agent_002.py REDIS SESSION`.

Hands off two reports, consumes their ends in `agent-group`, looks up what its user asks for, and
prints all of it as one line of JSON.
"""

import json
import sys
import uuid
from datetime import UTC, datetime
from typing import Any

import redis

r: Any = redis.Redis.from_url(sys.argv[1], decode_responses=True)
session = sys.argv[2]
ENDS = ["agent:stream:task.completed", "agent:stream:task.failed", "agent:stream:task.timeout"]
DAY_S = 86_400


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def delegate(params: dict[str, object]) -> str:
    """The tool: metadata, session index, event."""
    task = str(uuid.uuid4())
    about = {
        "task_id": task,
        "task_type": "report.generate",
        "session_id": session,
        "timeout": 300,
        "priority": "normal",
    }
    record = {**about, "status": "pending", "params": json.dumps(params), "created_at": now()}
    r.hset(f"task:{task}", mapping=record)
    r.expire(f"task:{task}", DAY_S)
    r.sadd(f"session:{session}:tasks", task)
    r.expire(f"session:{session}:tasks", DAY_S)
    data = json.dumps({**about, "params": params, "created_by": "agent"})
    event = {"event_id": str(uuid.uuid4()), "event_type": "task.create", "timestamp": now()}
    r.xadd("agent:stream:task.create", {**event, "data": data})
    return task


def hear(tasks: set[str]) -> dict[str, str]:
    """Until the end of each is consumed."""
    ends: dict[str, str] = {}
    while set(ends) < tasks:
        streams = dict.fromkeys(ENDS, ">")
        for stream, rows in r.xreadgroup("agent-group", "agent-1", streams, count=10, block=1000):
            for entry, event in rows:
                data = json.loads(event["data"])
                if data["task_id"] in tasks:
                    ends[data["task_id"]] = data["status"]
                r.xack(stream, "agent-group", entry)
    return ends


def told(tasks: set[str]) -> dict[str, str]:
    """The user's notifications."""
    types: dict[str, str] = {}
    after = "0"
    while set(types) < tasks:
        stream = f"user:stream:notifications:{session}"
        for _, rows in r.xread({stream: after}, block=1000):
            for entry, event in rows:
                message = json.loads(event["data"])
                types[message["task_id"]] = message["type"]
                after = entry
    return types


def look_up(task: str) -> dict[str, object]:
    """get_task_result_tool: the session must own the task."""
    assert r.sismember(f"session:{session}:tasks", task)
    while (found := r.hgetall(f"task:{task}"))["status"] in ("pending", "processing"):
        pass
    cached = r.get(f"task:{task}:result")
    life_s = r.ttl(f"task:{task}")
    return {
        "status": found["status"],
        "error": json.loads(found["error"] or "null"),
        "cached": None if cached is None else json.loads(cached)["result"],
        "lives_a_day": DAY_S - 120 < life_s <= DAY_S,
    }


good, bad = delegate({"quarter": "Q4"}), delegate({"quarter": "Q5"})
both = {good, bad}
ends, types = hear(both), told(both)
sys.stdout.write(
    json.dumps(
        {
            "good": {"end": ends[good], "told": types[good], **look_up(good)},
            "bad": {"end": ends[bad], "told": types[bad], **look_up(bad)},
        }
    )
)
