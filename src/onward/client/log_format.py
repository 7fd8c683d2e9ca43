"""How the process of a worker writes its own log: lines for people, or JSON for machines."""

from __future__ import annotations

import logging
from typing import Any

import msgspec


def configure(*, as_json: bool) -> None:
    """Unless the program has configured logging itself."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else PlainLines("%(asctime)s  %(message)s", "%X"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each call of ours


class PlainLines(logging.Formatter):
    """With the task and its attempt at the end of what a handler logs."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 logging's name
        line = super().formatMessage(record)
        task = getattr(record, "task_id", None)
        if task is None or task in line:
            return line
        return f"{line}  [task {task}, attempt {getattr(record, 'attempt', None)}]"


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": round(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "task_id": getattr(record, "task_id", None),
            "attempt": getattr(record, "attempt", None),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
