"""Nothing of a payload in any log; and the keys, as whoever runs a server meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.client.address import http_options
from onward.services.privacy import MASK
from tests.e2e.shell import ONWARD, run
from tests.processes import HTTP, Process, Server, serving
from tests.support import poll_until

pytestmark = pytest.mark.slow

SECRET = "canary-5500"
JOBS = """
from onward import Context, Refused, Worker

worker = Worker()

@worker.service(sensitive=("card",), max_retries=0)
async def pay(card: str, how: str = "well", ctx: Context = None) -> dict:
    await ctx.progress(0.5, "half way")
    await ctx.emit({"card": card})
    await ctx.once("charge", lambda: {"card": card})
    if how == "badly":
        raise RuntimeError("the terminal is out of order")
    if how == "refused":
        raise Refused("not today")
    return {"card": card}
"""


class ServerAndWorker:
    """A server that says all it can, and a worker."""

    def __init__(self, server: Server, worker: Process, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.http = httpx2.Client(**http_options(server.url), timeout=60)
        self.worker = worker

    def submit(self, how: str, **more: Any) -> dict[str, Any]:
        body = {"type": "pay", "payload": {"card": SECRET, "how": how}, **more}
        return dict(self.http.post("/api/v2/tasks?wait_ms=30000", json=body).json())

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))


@pytest.mark.contract("S2-9", "R-9")
def test_no_log_says_what_a_payload_holds(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    with serving(tmp_path, up=True, ONWARD_LOG_LEVEL="debug", ONWARD_LOG_JSON="true") as server:
        worker = Process(
            *(*ONWARD, "worker", f"{tmp_path}/jobs.py:worker", "--server", server.url),
            log=tmp_path / "worker.log",
        )
        running = ServerAndWorker(server, worker, tmp_path)
        try:
            poll_until(lambda: running.http.get("/api/v2/services/pay").status_code == 200)
            _whole_life(running)
        finally:
            worker.stop()
            server.stop()
            running.http.close()
        said = running.logs()
    assert "pay failed (RuntimeError)" in said, "a failure is logged"
    assert "out of order" in said, "with what its author wrote"
    assert "schedule refused" in said
    assert SECRET not in said


def _whole_life(running: ServerAndWorker) -> None:
    done = running.submit("well")
    assert (done["state"], done["result"]) == ("succeeded", {"card": SECRET})
    assert running.submit("badly")["state"] == "dead"
    assert running.submit("refused")["state"] == "dead"
    http = running.http
    wrong = http.post("/api/v2/tasks", json={"type": "pay", "payload": {"card": [SECRET]}})
    assert wrong.status_code == 422
    assert SECRET not in wrong.text
    assert http.post("/api/v2/tasks", content=f'{{"type": "pay", {SECRET}').status_code == 400
    assert http.get("/api/v2/tasks", params={"q": SECRET}).json()["items"]
    tools = http.get("/api/v2/tools").json()
    assert "pay" in json.dumps(tools)
    called = http.post("/api/v2/tools/handoff_pay", json={"card": SECRET, "how": "badly"})
    assert called.status_code < 500
    openai = {"data": {"card": SECRET}}
    assert http.post("/api/openai", json=openai).status_code == 200
    schedule = {"name": "rent", "type": "pay", "payload": {"card": SECRET}, "every_ms": 1_000}
    assert http.post("/api/v2/schedules", json=schedule).status_code == 201
    narrow = http.get("/api/v2/services/pay").json()
    assert narrow["sensitive"] == ["card"]
    open_ = {"name": "pay", "task_types": ["pay"], "schema": {"pay": {"type": "integer"}}}
    assert http.post("/api/v2/services", json=open_).status_code == 201
    quoted = http.post("/api/v2/tasks", json={"type": "pay", "payload": {"card": SECRET}})
    assert SECRET in quoted.text, "it declares nothing sensitive any more: the caller is told all"
    poll_until(lambda: "schedule refused" in running.logs())


def onward(*words: str, code: int = 0, **env: str) -> str:
    done = run(*words, **env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_from_no_key_to_a_new_one(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    echo = {"type": "echo", "payload": {"card": SECRET}}
    with serving(tmp_path, up=True) as server:
        assert "off" in onward("keys", "encryption", "status", "--server", server.url)
        refused = onward("keys", "encryption", "rotate", "--server", server.url, code=4)
        assert "onward keys encryption new" in refused
        task = HTTP.post(f"{server.url}/api/v2/tasks?wait_ms=30000", json=echo).json()["id"]
        server.stop()
    first = onward("keys", "encryption", "new", "--name", "k1").strip()
    file.write_text(f"{first}\n")
    with serving(tmp_path, up=True, ONWARD_ENCRYPTION_KEYS_FILE=file) as server:
        said = onward("keys", "encryption", "status", "--server", server.url)
        assert "not sealed" in said
        assert "sealed anew, under k1" in onward(
            "keys", "encryption", "rotate", "--server", server.url
        )
        server.stop()
    second = onward("keys", "encryption", "new", "--name", "k2").strip()
    file.write_text(f"{second}\n{first}\n")
    with serving(tmp_path, up=True, ONWARD_ENCRYPTION_KEYS_FILE=file) as server:
        onward("keys", "encryption", "rotate", "--server", server.url)
        said = json.loads(onward("keys", "encryption", "status", "--json", "--server", server.url))
        assert (said["sealing"], said["keys"], set(said["held"])) == ("k2", ["k2", "k1"], {"k2"})
        assert "it may go" in onward("keys", "encryption", "status", "--server", server.url)
        server.stop()
    file.write_text(f"{second}\n")
    with serving(tmp_path, up=True, ONWARD_ENCRYPTION_KEYS_FILE=file) as server:
        found = HTTP.get(f"{server.url}/api/v2/tasks/{task}").json()
        assert found["payload"] == found["result"] == {"card": SECRET}
        server.stop()
    assert MASK not in str(found)


def test_doctor_says_how_it_is_about_encryption(tmp_path: Path) -> None:
    key = onward("keys", "encryption", "new", "--name", "k1").strip()
    ledger = f"sqlite:///{tmp_path}/x.db"

    def found(**env: str) -> tuple[str, str]:
        done = run(
            *("doctor", "--json", "--ledger", ledger, "--server", "http://127.0.0.1:9"), **env
        )
        (one,) = [one for one in json.loads(done.stdout) if one["about"] == "encryption"]
        return one["mark"], one["found"]

    assert found() == ("✓", "off: whatever is stored can be read in its files")
    assert found(ONWARD_ENCRYPTION_KEYS=key) == ("✓", "on, k1 seals")
    other = onward("keys", "encryption", "new", "--name", "k0").strip()
    both = found(ONWARD_ENCRYPTION_KEYS=f"{key},{other}")
    assert both == ("✓", "on, k1 seals, k0 only open")
    mark, said = found(ONWARD_ENCRYPTION_KEYS=f"{key}x")
    assert mark == "✗"
    assert key.partition(":")[2] not in said
    file = tmp_path / "keys"
    file.write_text(key)
    file.chmod(0o644)
    mark, said = found(ONWARD_ENCRYPTION_KEYS_FILE=str(file))
    assert (mark, "others may read" in said) == ("!", True)
    (tmp_path / "cryptography.py").write_text("raise ModuleNotFoundError('cryptography')")
    mark, said = found(ONWARD_ENCRYPTION_KEYS=key, PYTHONPATH=str(tmp_path))
    assert (mark, said) == ("✗", "encryption needs the package cryptography")


def test_a_server_with_keys_that_make_no_sense_does_not_start(tmp_path: Path) -> None:
    said = onward(
        *("serve", "--port", "0", "--ledger", f"sqlite:///{tmp_path}/x.db"),
        code=2,
        ONWARD_ENCRYPTION_KEYS="k1:tooshort",
    )
    assert "k1" in said
    assert "tooshort" not in said
    missing = onward(
        *("serve", "--port", "0", "--encryption-keys-file", f"{tmp_path}/missing"),
        *("--ledger", f"sqlite:///{tmp_path}/x.db"),
        code=2,
    )
    assert "cannot be read" in missing
