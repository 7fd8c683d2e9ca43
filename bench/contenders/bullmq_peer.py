"""BullMQ, in node: installed once from npm into bench/.cache, driven by bullmq_peer.cjs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from bench.contenders.payload import PAYLOAD

PACKAGES = ("bullmq@6.7.0", "ioredis@6.0.0")
CACHE = Path(__file__).parent.parent / ".cache" / "bullmq"
SCRIPT = Path(__file__).with_suffix(".cjs")
os.environ["BENCH_NODE"] = str(CACHE)


def install() -> str | None:
    """Why it cannot be measured here; None: it can."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return "there is no node"
    if not (CACHE / "node_modules" / "bullmq").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / "package.json").write_text('{"private": true}')
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES]
        try:
            subprocess.run(command, cwd=CACHE, check=True, capture_output=True, timeout=30)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            shutil.rmtree(CACHE)
            return f"npm could not install it ({type(error).__name__})"
    return None


def submit(tasks: int) -> Any:
    return _said("submit", tasks)


def idle(samples: int, warm: int, pause_ms: float) -> Any:
    return _said("idle", samples, warm, pause_ms)


def worker() -> list[str]:
    return ["env", f"BENCH_NODE={CACHE}", *_command("work")]


def _said(*what: Any) -> Any:
    done = subprocess.run(_command(*what), check=True, stdout=subprocess.PIPE, timeout=30)
    return json.loads(done.stdout)


def _command(what: str, *more: Any) -> list[str]:
    socket = os.environ["BENCH_REDIS"].removeprefix("unix://")
    return ["node", str(SCRIPT), what, socket, PAYLOAD, *map(str, more)]
