"""A reader written from the key structure of "AsyncTaskFlow" alone. `reader_003.py REDIS TASK`.

Prints the task's metadata, the queues and the counts, as its endpoints compute them.
"""

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import redis

r: Any = redis.Redis.from_url(sys.argv[1], decode_responses=True)


@dataclass
class TaskDetail:
    """Task Metadata Structure: each field, and no other."""

    task_id: str
    state: str
    content: str
    retry_count: str
    max_retries: str
    last_error: str
    error_type: str
    retry_after: str
    created_at: str
    updated_at: str
    completed_at: str
    result: str
    error_history: str


detail = TaskDetail(**r.hgetall(f"task:{sys.argv[2]}"))
states: dict[str, int] = defaultdict(int)
for key in r.scan_iter("task:*"):
    states[r.hget(key, "state")] += 1
letters = [TaskDetail(**r.hgetall(f"dlq:task:{id}")) for id in r.lrange("dlq:tasks", 0, 99)]
sys.stdout.write(
    json.dumps(
        {
            "detail": vars(detail),
            "history": json.loads(detail.error_history),
            "queues": {
                "primary": r.llen("tasks:pending:primary"),
                "retry": r.llen("tasks:pending:retry"),
                "scheduled": r.zcard("tasks:scheduled"),
                "dlq": r.llen("dlq:tasks"),
            },
            "states": states,
            "dead": [letter.last_error for letter in letters],
            "by_state": r.hgetall("metrics:tasks:by_state"),
            "depths": r.hgetall("metrics:queue:depths"),
        }
    )
)
