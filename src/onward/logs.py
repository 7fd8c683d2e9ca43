"""Logging: one line an event, JSON for machines, colour for a terminal. Never a payload.

Everything of ours goes through structlog; what libraries say through `logging` comes out the same
way, from warning on.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Protocol

import structlog
from structlog.typing import Processor


class LogSettings(Protocol):
    @property
    def log_level(self) -> Any: ...

    @property
    def log_json(self) -> bool: ...


class _Named(structlog.WriteLogger):
    def __init__(self, name: str = "onward") -> None:
        super().__init__(sys.stderr)
        self.name = name


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
        processors=[*shared, render],
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


def _level(name: str) -> int:
    return logging.getLevelNamesMapping()[name.upper()]
