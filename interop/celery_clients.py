"""What people watch Celery with, against Onward's Celery workers: `celery inspect`, and Flower.

`python celery_clients.py PORT`, in an environment that has both and Flower.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from typing import Any

PORT = sys.argv[1]
CELERY = (sys.executable, "-m", "celery", "-A", "onward.workers.celery")
WAIT_S = 60.0


def inspect(what: str) -> Any:
    command = (*CELERY, "inspect", what, "--json", "--timeout", "10")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, (what, done.stdout, done.stderr)
    (answer,) = json.loads(done.stdout).values()
    return answer


def answering() -> bool:
    """The worker may still be starting."""
    command = (*CELERY, "inspect", "ping", "--timeout", "1")
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def with_inspect() -> None:
    until = time.monotonic() + WAIT_S
    while not answering() and time.monotonic() < until:
        time.sleep(0.2)
    assert inspect("ping") == {"ok": "pong"}
    assert [queue["name"] for queue in inspect("active_queues")]
    assert any(name.startswith("onward") for name in inspect("registered"))
    assert inspect("stats")["pool"]["processes"]
    for what in ("active", "reserved", "scheduled", "revoked"):
        assert inspect(what) is not None


def asked(path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=30) as response:
        body = response.read().decode()
    return json.loads(body) if path.startswith("/api/") else body


def with_flower() -> None:
    command = (
        *CELERY,
        "flower",
        f"--port={PORT}",
        "--address=127.0.0.1",
        "--inspect_timeout=10000",
    )
    env = {**os.environ, "FLOWER_UNAUTHENTICATED_API": "true"}
    flower = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + WAIT_S
        workers: dict[str, Any] = {}
        while not workers and time.monotonic() < until:
            try:
                workers = asked("/api/workers?refresh=1")
            except OSError:
                time.sleep(0.5)
        assert workers, "Flower finds no worker"
        (worker,) = workers
        assert workers[worker]["registered"]
        for page in ("/workers", f"/worker/{worker}", "/tasks", "/broker"):
            assert "<html" in asked(page), page
    finally:
        flower.terminate()
        flower.wait()


with_inspect()
print("ok  celery inspect")
with_flower()
print("ok  Flower")
