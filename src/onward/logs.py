"""Logging: one line an event, JSON for machines, colour for a terminal. Never a payload.

Everything of ours goes through structlog; what libraries say through `logging` comes out the same
way, from warning on.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Protocol

import structlog
from structlog.typing import EventDict, Processor

QUIET_S = 10.0


class LogSettings(Protocol):
    @property
    def log_level(self) -> Any: ...

    @property
    def log_json(self) -> bool: ...


class _Named(structlog.WriteLogger):
    def __init__(self, name: str = "onward") -> None:
        super().__init__(sys.stderr)
        self.name = name


class Seldom:
    """A warning to the letter the same as before is written once in a while, with how often it was.

    A ledger that is away is noticed many times a second, by everybody who needs it.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, int]] = {}

    def __call__(self, _: Any, level: str, event: EventDict) -> EventDict:
        if level not in ("warning", "error") or "exc_info" in event:
            return event
        now, line = time.monotonic(), repr(sorted(event.items()))
        since, again = self._since.get(line, (0.0, 0))
        if since and now - since < QUIET_S:
            self._since[line] = (since, again + 1)
            raise structlog.DropEvent
        self._since = {
            line: seen for line, seen in self._since.items() if now - seen[0] < 10 * QUIET_S
        }
        self._since[line] = (now, 0)
        return {**event, "again": again} if again else event


def configure(settings: LogSettings) -> None:
    as_json = settings.log_json or not sys.stderr.isatty()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([structlog.processors.format_exc_info] if as_json else []),
    ]
    # A traceback without the frames' variables: those are payloads.
    render: Processor = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if as_json
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[Seldom(), *shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(_level(settings.log_level)),
        logger_factory=_Named,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.asgi"):
        logging.getLogger(name).setLevel(logging.WARNING)


def speak_through_logging() -> None:
    """Our lines among those of another program's process, with its levels and its format."""
    render = structlog.processors.KeyValueRenderer(key_order=["event"])

    def with_trace_below(logger: Any, level: str, event: EventDict) -> str:
        trace = event.pop("exception", None)
        line = str(render(logger, level, event))
        return line if trace is None else f"{line}\n{trace}"

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            with_trace_below,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def _level(name: str) -> int:
    return logging.getLevelNamesMapping()[name.upper()]
