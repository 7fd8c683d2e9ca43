"""graphile-worker, in node; driven by graphile_peer.cjs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bench.contenders import npm
from bench.contenders.payload import PAYLOAD

SCRIPT = Path(__file__).with_suffix(".cjs")


def install() -> str | None:
    return npm.install("graphile", "graphile-worker@0.17.3", "pg@8.23.1")


def submit(tasks: int) -> Any:
    return npm.answer(_command("submit", tasks))


def worker() -> list[str]:
    return _command("work")


def _command(what: str, *more: Any) -> list[str]:
    return npm.command(SCRIPT, "graphile", what, os.environ["BENCH_URL"], PAYLOAD, *more)
