"""A worker written from "Task Queue Protocol (Redis Streams) v1.2.1" alone.

`worker_001.py REDIS NAME VISIBILITY_TIMEOUT_S`.

Effects outside are counted in the hash `effects`, once for each idempotency_key. It fails a tool
called `flaky` until its third try, `hopeless` always, and stands still over `stuck` the first time.
"""

import json
import sys
import time
from typing import Any

import redis

r: Any = redis.Redis.from_url(sys.argv[1], decode_responses=True)
name = sys.argv[2]
VISIBILITY_TIMEOUT_S = float(sys.argv[3])


def do(task: dict[str, str]) -> object:
    tool, payload = task["tool_name"], json.loads(task["payload"])
    if tool == "hopeless" or (tool == "flaky" and int(task["retry_count"]) < 2):
        raise RuntimeError(f"{tool} failed")
    if tool == "stuck" and r.set("stuck-once", 1, nx=True):
        time.sleep(3600)
    if r.sadd("effect-keys", task["idempotency_key"]):
        r.hincrby("effects", tool)
    return {"doubled": payload["n"] * 2}


def handle(entry: str, task: dict[str, str]) -> None:
    answer = {"task_id": task["task_id"], "worker": name, "finished_at": str(time.time())}
    try:
        answer |= {"status": "succeeded", "result": json.dumps(do(task))}
    except RuntimeError as error:
        answer |= {"status": "failed", "error": str(error)}
    r.xadd("stream:result", answer)
    r.xack("stream:task", "cg:workers", entry)


while True:
    try:
        idle_ms = int(VISIBILITY_TIMEOUT_S * 1000)
        _, claimed, *_ = r.xautoclaim("stream:task", "cg:workers", name, idle_ms)
        new = r.xreadgroup("cg:workers", name, {"stream:task": ">"}, count=1, block=200)
    except redis.ResponseError:  # no group yet
        time.sleep(0.05)
        continue
    for entry, fields in [*claimed, *(row for _, rows in new for row in rows)]:
        if fields:
            handle(entry, fields)
