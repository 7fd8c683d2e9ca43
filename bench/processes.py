"""Contenders in processes of their own: started in a group, bounded in time, ended as a group."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ROUND_S = 40.0  # no contender's round takes longer; one that does has failed


class ContenderFailed(Exception):
    pass


def call(function: str, *, tree: Path | None = None, **arguments: Any) -> Any:
    """`module:function` of bench.contenders in a fresh interpreter; its answer. `tree`: another one
    whose Onward is measured, by this tree's contender.
    """
    command = [sys.executable, "-m", "bench.processes", function, json.dumps(arguments)]
    env = os.environ if tree is None else {**os.environ, "PYTHONPATH": str(tree / "src")}
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            answer, _ = process.communicate(timeout=ROUND_S)
        except subprocess.TimeoutExpired:
            raise ContenderFailed(f"{function} took longer than {ROUND_S:.0f} s") from None
        finally:
            end(process)
    if process.returncode:
        raise ContenderFailed(f"{function} ended with {process.returncode}")
    return json.loads(answer.splitlines()[-1])


@contextmanager
def running(
    command: Sequence[str], *, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server or a worker, for as long as the block lasts. Its last words are shown if it dies."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            died = process.poll()
            end(process)
            if died:
                log.seek(0)
                sys.stderr.write(log.read()[-4_000:].decode(errors="replace"))


def end(process: subprocess.Popen[Any], *, grace_s: float = 3.0) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    # The group may outlive its first process. It is ours alone: `start_new_session` made it.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def cpu_s(process: subprocess.Popen[Any]) -> float:
    """Processor time that it has used so far; 0 where the system does not tell."""
    stat = Path(f"/proc/{process.pid}/stat")
    if not stat.exists():
        return 0.0
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(ready: Any, *, what: str, process: subprocess.Popen[Any], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not ready():
        if process.poll() is not None:
            raise ContenderFailed(f"{what} ended with {process.returncode} before it was ready")
        if time.monotonic() > deadline:
            raise ContenderFailed(f"{what} was not ready within {within_s:.0f} s")
        time.sleep(0.02)


def end_tidily() -> None:
    """Make SIGTERM unwind us: whatever was started is ended, and no file is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _child() -> None:
    end_tidily()
    name, _, function = sys.argv[1].partition(":")
    module = importlib.import_module(f"bench.contenders.{name}")
    answer = getattr(module, function)(**json.loads(sys.argv[2]))
    print(json.dumps(answer))


if __name__ == "__main__":
    _child()
