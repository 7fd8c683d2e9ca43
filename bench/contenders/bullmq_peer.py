"""BullMQ, in node; driven by bullmq_peer.cjs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bench.contenders import npm
from bench.contenders.payload import PAYLOAD

SCRIPT = Path(__file__).with_suffix(".cjs")


def install() -> str | None:
    return npm.install("bullmq", "bullmq@6.7.0", "ioredis@6.0.0")


def submit(tasks: int) -> Any:
    return npm.answer(_command("submit", tasks))


def idle(samples: int, warm: int, pause_ms: float) -> Any:
    return npm.answer(_command("idle", samples, warm, pause_ms))


def worker() -> list[str]:
    return _command("work")


def _command(what: str, *more: Any) -> list[str]:
    socket = os.environ["BENCH_URL"].removeprefix("unix://")
    return npm.command(SCRIPT, "bullmq", what, socket, PAYLOAD, *more)
