"""What `onward doctor` makes of a server's /health."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onward.cli.checkup import BAD, ODD, ServerReply, _owner, _server
from onward.settings import Settings

OPEN = {"circuit_breaker": {"status": "open", "services": {"ocr": {"state": "open"}}}}
VOLATILE = {"ledger": {"status": "degraded", "warnings": ["Redis keeps nothing on disk"]}}
FAILING = {"background": {"status": "unhealthy", "failing": {"scheduler": "failed 5 times"}}}
ALONE = {"workers": {"status": "unhealthy", "error": "no worker is connected"}}


@pytest.mark.parametrize(
    ("status", "details", "mark", "says"),
    [
        ("degraded", OPEN, ODD, "circuit_breaker: open for ocr"),
        ("degraded", VOLATILE, ODD, "ledger: Redis keeps nothing on disk"),
        ("unhealthy", FAILING, BAD, "background: scheduler failed 5 times"),
        ("unhealthy", ALONE, BAD, "workers: no worker is connected"),
    ],
)
def test_doctor_names_what_is_wrong_with_the_server(
    status: str, details: dict[str, Any], mark: str, says: str
) -> None:
    well = {"redis": {"status": "not_configured"}, "encryption": {"status": "healthy"}}
    answer = ServerReply({"status": status, "version": "1", "details": {**well, **details}}, None)
    (found,) = _server(None, Settings(), answer)
    assert found.mark == mark
    assert found.found.endswith(f", {status}; {says}")


@pytest.mark.parametrize(
    "secret",
    [
        ["--redis", "redis://:c4n4ry@127.0.0.1:6379"],
        ["--ledger=unix://u:c4n4ry@/run/redis.sock"],
        ["--redis", "redis://:c4n4ry and more@127.0.0.1"],
        ["redis://127.0.0.1?password=c4n4ry"],
        ["redis://:" + "c4n4ry" * 20 + "@127.0.0.1"],  # its @ is behind the cut
    ],
)
def test_doctor_shows_the_server_that_holds_the_file_without_its_passwords(
    tmp_path: Path, secret: list[str]
) -> None:
    ledger = tmp_path / "ledger.db"
    waits = [sys.executable, "-c", "input('started')", "serve", *secret]
    with (
        subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server,
        Path(f"{ledger}.lock").open("w") as lock,
    ):
        assert server.stdout is not None
        assert server.stdout.read(7) == b"started"
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(f"process {server.pid}", file=lock, flush=True)
        owner = _owner(ledger)
        server.communicate(b"\n")
    assert owner is not None
    assert owner.startswith(f"process {server.pid} (")
    assert " serve" in owner
    assert "c4n4ry" not in owner
