"""The examples, each started by its one command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from onward import SyncClient
from tests.documents.pages import ROOT
from tests.processes import HTTP, free_port
from tests.support import poll_until

EXAMPLES = ROOT / "examples"
PATIENCE_S = 120

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Running:
    """`python examples/run.py NAME`, with a server of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.web = f"http://127.0.0.1:{free_port()}"
        env = {
            **os.environ,
            "ONWARD_URL": self.url,
            "ONWARD_PORT": self.url.rpartition(":")[2],
            "PORT": self.web.rpartition(":")[2],
        }
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "run.py"), name],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line)

    def has_told(self, word: str) -> bool:
        return any(word in line for line in self.lines)

    def wait_for(self, word: str) -> None:
        self._until(lambda: self.has_told(word), word)

    def wait_for_web(self, path: str) -> None:
        def answers() -> bool:
            with suppress(Exception):
                return HTTP.get(self.web + path).status_code < 500
            return False

        self._until(answers, self.web)

    def _until(self, holds: Any, what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < until, f"no {what}:\n{''.join(self.lines)}"
            assert self.process.poll() is None or holds(), "".join(self.lines)
            time.sleep(0.05)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def example(name: str, folder: Path) -> Iterator[Running]:
    running = Running(name, folder)
    try:
        yield running
    finally:
        code = running.end()
        if running.process.stdout is not None:
            running.process.stdout.close()
    assert code == 0, "".join(running.lines)


def test_every_example_says_how_it_is_started() -> None:
    started = {path.parent.name for path in EXAMPLES.glob("*/Procfile")}
    assert started >= {"agent_mcp", "celery_moved", "chat", "documents", "fastapi", "texts"}
    for name in started:
        assert f"python examples/run.py {name}" in (EXAMPLES / name / "README.md").read_text()


def test_a_fastapi_application_shows_how_far_its_jobs_are(tmp_path: Path) -> None:
    with example("fastapi", tmp_path) as running:
        running.wait_for_web("/")
        made = HTTP.post(f"{running.web}/reports", json={"topic": "owls", "pages": 3}).json()
        told = HTTP.get(f"{running.web}/reports/{made['id']}/events", timeout=PATIENCE_S).text
        assert told.count("event: progress") >= 1
        assert "event: over" in told
        found = HTTP.get(f"{running.web}/reports/{made['id']}").json()
        assert found["state"] == "succeeded"
        assert len(found["report"].splitlines()) == 3
        assert HTTP.get(f"{running.web}/reports/unknown").status_code == 404


def test_a_chat_is_answered_by_a_worker_that_has_no_port(tmp_path: Path) -> None:
    with example("chat", tmp_path) as running:
        running.wait_for_web("/openapi.json")
        running.wait_for("connected to")
        with HTTP.stream(
            "POST", f"{running.web}/chat", json={"text": "How are you?"}, timeout=PATIENCE_S
        ) as answer:
            parts = list(answer.iter_text())
        assert answer.status_code == 200
        assert "You asked: How are you?" in "".join(parts)
        assert len(parts) > 1, "it came at once, not word by word"


def test_a_large_invoice_waits_for_a_person(tmp_path: Path) -> None:
    books = EXAMPLES / "documents" / "books.txt"
    books.unlink(missing_ok=True)
    try:
        with example("documents", tmp_path) as running:
            running.wait_for("small: booked 12.50 for Ada & Sons")
            running.wait_for("letter: sent back: not by us")
            with SyncClient(running.url) as client:
                (asked,) = poll_until(lambda: client.approvals().items, PATIENCE_S)
                assert asked.payload["input"] == {"vendor": "Grace Ltd", "total": 4200.0}
                client.approve(asked.id, comment="as agreed")
            running.wait_for("large: booked 4200.00 for Grace Ltd")
        assert sorted(books.read_text().splitlines()) == ["Ada & Sons 12.50", "Grace Ltd 4200.00"]
    finally:
        books.unlink(missing_ok=True)


@pytest.mark.contract("N-7")
def test_an_agent_uses_tools_by_mcp(tmp_path: Path) -> None:
    with example("agent_mcp", tmp_path) as running:
        running.wait_for("later: {'title': 'Report Q1 2027'")
        told = "".join(running.lines)
        assert "answer: " in told
        assert "'title': 'Report Q4 2026'" in told
        assert "page 4 of 4" in told
        assert "pay" not in told.partition("tools:")[2].partition("\n")[0].split(", ")


BEFORE = """
import json, tasks
tasks.app.conf.update(task_always_eager=True, task_store_eager_result=False, broker_url="memory://")
tasks.app.conf.result_backend = "cache+memory://"
print(json.dumps(tasks.buy(7, 9.5, "ada@example.org")))
"""


def test_a_celery_project_does_the_same_after_its_move(tmp_path: Path) -> None:
    before = subprocess.run(
        [sys.executable, "-c", BEFORE],
        cwd=EXAMPLES / "celery_moved" / "before",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert before.returncode == 0, before.stderr
    said = json.loads(before.stdout.splitlines()[-1])
    assert said == "to ada@example.org: charged 9.50 for order 7"
    with example("celery_moved", tmp_path) as running:
        running.wait_for(said)


@pytest.mark.contract("L-3", "B-5")
def test_many_texts_are_done_within_their_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEXTS", "100")
    monkeypatch.setenv("PAUSE_S", "1")  # long enough to overlap on a busy machine
    with example("texts", tmp_path) as running:
        running.wait_for("10 of each are done")
        told = "".join(running.lines)
    assert "100 texts handed in" in told
    assert "'succeeded': 100" in told
    most = int(told.partition("at most ")[2].partition(" ")[0])
    assert 2 <= most <= 5
