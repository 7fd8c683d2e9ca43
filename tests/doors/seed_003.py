"""A reader and a producer written from the third seed alone: plain Redis commands, its words."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from tests.servers import shared

METADATA = {
    "task_id", "state", "content", "retry_count", "max_retries", "last_error", "error_type",
    "retry_after", "created_at", "updated_at", "completed_at", "result", "error_history",
}  # fmt: skip
STATES = {"PENDING", "ACTIVE", "COMPLETED", "FAILED", "DLQ"}


class Seed003:
    def __init__(self, prefix: str = "") -> None:
        self.redis: Any = shared("valkey").client
        self._prefix = prefix

    # The reader.

    def task(self, task: str) -> dict[str, str]:
        return self._hash(f"task:{task}")

    def detail(self, task: str) -> dict[str, Any]:
        """As the metadata section has it; every field must be there."""
        found = self.task(task)
        assert set(found) == METADATA, sorted(set(found) ^ METADATA)
        assert found["state"] in STATES
        for name in ("created_at", "updated_at"):
            assert found[name].endswith("Z"), found[name]
            datetime.fromisoformat(found[name])
        counts = {name: int(found[name]) for name in ("retry_count", "max_retries")}
        return {**found, **counts, "error_history": json.loads(found["error_history"])}

    def state(self, task: str) -> str | None:
        return self.task(task).get("state")

    def ids(self, name: str) -> list[str]:
        if not self._holds(name, b"list"):
            return []
        return [id.decode() for id in self.redis.lrange(self._prefix + name, 0, -1)]

    def scheduled(self) -> dict[str, float]:
        rows = self.redis.zrange(f"{self._prefix}tasks:scheduled", 0, -1, withscores=True)
        return {id.decode(): score for id, score in rows}

    def status(self) -> dict[str, Any]:
        """As its endpoint computes it."""
        states: Counter[str] = Counter()
        for key in self.redis.scan_iter(f"{self._prefix}task:*"):
            if not key.endswith(b":result"):
                states[self.redis.hget(key, "state").decode()] += 1
        queues = {
            "primary": self.redis.llen(f"{self._prefix}tasks:pending:primary"),
            "retry": self.redis.llen(f"{self._prefix}tasks:pending:retry"),
            "scheduled": self.redis.zcard(f"{self._prefix}tasks:scheduled"),
            "dlq": self.redis.llen(f"{self._prefix}dlq:tasks"),
        }
        return {"queues": queues, "states": dict(states)}

    def dead_letters(self, limit: int = 100) -> list[dict[str, str]]:
        ids = self.ids("dlq:tasks")[:limit]
        return [self._hash(f"dlq:task:{id}") for id in ids]

    def metrics(self) -> tuple[dict[str, int], dict[str, int]]:
        depths, states = self._hash("metrics:queue:depths"), self._hash("metrics:tasks:by_state")
        return _numbers(depths), _numbers(states)

    def _hash(self, name: str) -> dict[str, str]:
        found = self.redis.hgetall(self._prefix + name) if self._holds(name, b"hash") else {}
        return {
            field.decode(errors="replace"): value.decode(errors="replace")
            for field, value in found.items()
        }

    def _holds(self, name: str, type_: bytes) -> bool:
        """Not so while something foreign stands there."""
        return bool(self.redis.type(self._prefix + name) == type_)

    # The producer.

    def create_task(self, content: str, *, push: str = "lpush", **more: Any) -> str:
        task = str(uuid.uuid4())
        self.store(task, content=content, **more)
        getattr(self.redis, push)(f"{self._prefix}tasks:pending:primary", task)
        return task

    def store(self, task: str, **fields: Any) -> None:
        data = {
            "task_id": task,
            "state": "PENDING",
            "created_at": datetime.now(UTC).replace(tzinfo=None).isoformat(),
            "retry_count": 0,
            "max_retries": 3,
            **fields,
        }
        self.redis.hset(f"{self._prefix}task:{task}", mapping=data)

    def retry_task(self, task: str, queue: str = "") -> None:
        again = {"state": "PENDING", "retry_count": 0, "updated_at": "2026-01-01T00:00:00"}
        self.redis.hset(f"{self._prefix}task:{task}", mapping=again)
        name = f"tasks:pending:retry:{queue}" if queue else "tasks:pending:retry"
        self.redis.lpush(self._prefix + name, task)


def _numbers(found: dict[str, str]) -> dict[str, int]:
    return {name: int(count) for name, count in found.items() if count.isdigit()}
