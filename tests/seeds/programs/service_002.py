"""A service written from "Async Task Pattern Specification" alone. `service_002.py REDIS CONSUMER`.

It consumes task.create in `report-service-group`, keeps to its own task_type, and publishes
task.completed or task.failed. A report of quarter "Q5" has insufficient data.
"""

import json
import sys
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import redis

r: Any = redis.Redis.from_url(sys.argv[1], decode_responses=True)
CREATE, GROUP = "agent:stream:task.create", "report-service-group"


def publish(type_: str, data: dict[str, object]) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event = {"event_id": str(uuid.uuid4()), "event_type": type_, "timestamp": at}
    r.xadd(f"agent:stream:{type_}", {**event, "data": json.dumps(data)})


def handle(task: dict[str, object]) -> None:
    began = time.time()
    deadline = int(str(task["timeout"]))  # a number, as in the document's example
    params = task["params"]
    assert deadline > 0
    assert isinstance(params, dict)
    took = {"task_id": task["task_id"], "duration_ms": int((time.time() - began) * 1000)}
    if params["quarter"] == "Q5":
        error = {"code": "INSUFFICIENT_DATA", "message": "Not enough data", "details": {}}
        said = {**took, "status": "failed", "error": error, "failed_by": "report-service"}
        publish("task.failed", said)
        return
    result = {"file_url": "https://storage/report.pdf", "summary": params["quarter"]}
    done = {**took, "status": "success", "result": result, "completed_by": "report-service"}
    publish("task.completed", done)


try:
    r.xgroup_create(CREATE, GROUP, id="0", mkstream=True)
except redis.ResponseError as error:
    if "BUSYGROUP" not in str(error):
        raise
while True:
    reply = r.xreadgroup(GROUP, sys.argv[2], {CREATE: ">"}, count=5, block=1000)
    for _, rows in reply:
        for entry, event in rows:
            task = json.loads(event["data"])
            if task["task_type"] == "report.generate":
                handle(task)
            r.xack(CREATE, GROUP, entry)
