"""Keys as people use them: commands, a server with TLS, workers and callers with keys of their own.

Also the canary: the text of a token is in no log, ledger, metric or error.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.core.errors import Invalid
from onward.settings import Settings
from tests.client.test_tls import certificate as certificate
from tests.e2e.shell import ONWARD, run
from tests.processes import HTTP, Process, Server, serving
from tests.running_app import running_app
from tests.support import poll_until

WORKER = """
from onward import Worker
worker = Worker()

@worker.service
async def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.mark.contract("K-2", "N-10")
async def test_elsewhere_than_on_loopback_a_key_is_needed() -> None:
    with pytest.raises(Invalid, match="without keys") as refused:
        async with running_app(host="0.0.0.0"):  # noqa: S104 nothing listens in this test
            pass
    assert "onward keys create" in (refused.value.hint or "")
    async with running_app(host="0.0.0.0", admin_key="k" * 32) as app:  # noqa: S104
        assert (await app.get("/api/v2/me")).status_code == 401


@pytest.mark.slow
@pytest.mark.contract("K-2", "N-10")
def test_the_server_refuses_with_exit_code_2(tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path}/onward.db"
    done = run("serve", "--host", "0.0.0.0", "--port", "0", "--ledger", ledger)  # noqa: S104
    assert done.returncode == 2
    assert "onward keys create" in done.stderr


@pytest.mark.slow
@pytest.mark.contract("K-1")
def test_keys_are_made_on_a_ledger_without_a_server(tmp_path: Path) -> None:
    ledger = ("--ledger", f"sqlite:///{tmp_path}/onward.db")
    assert run("keys", "create", "web", "--scope", "submit", *ledger).returncode == 2
    made = run("keys", "create", "root", "--scope", "admin", "--json", *ledger)
    first = json.loads(made.stdout)
    assert first.keys() == {"id", "name", "scopes", "token", "expires_at"}
    options = ("--rate", "100/s", "--expires", "90d")
    token = run("keys", "create", "web", "--scope", "submit", *options, *ledger).stdout.strip()
    assert token.startswith("onward_")
    listed = run("keys", "list", "--json", *ledger).stdout
    assert [key["name"] for key in json.loads(listed)["items"]] == ["root", "web"]
    assert token.rpartition("_")[2] not in listed
    assert run("keys", "revoke", first["id"], *ledger).returncode == 0, "the last one, too"
    assert run("keys", "revoke", "none", *ledger).returncode == 3


def test_a_command_beside_a_server_is_sent_to_the_server(tmp_path: Path) -> None:
    """A key in another file would be none of that server's."""
    with serving(tmp_path) as server:
        refused = run(
            "keys", "create", "a", "--scope", "admin", "--ledger", f"sqlite:///{server.file}"
        )
        assert refused.returncode == 4
        assert "leave out --ledger" in refused.stderr
        assert "other.db" not in refused.stderr
        misspelt = run("keys", "create", "a", "--scope", "amdin", "--server", server.url)
        assert "onward keys create --help" in misspelt.stderr
        never = run("keys", "create", "a", "--scope", "admin", "--expires", "never")
        assert "90d" in never.stderr


@pytest.mark.contract("K-10")
def test_a_blank_after_a_comma_is_no_part_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_TRUSTED_PROXIES", "127.0.0.1, ::1")
    monkeypatch.setenv("ONWARD_ALLOWED_HOSTS", "a.example, b.example ,")
    settings = Settings()
    assert settings.trusted_proxies == ("127.0.0.1", "::1")
    assert settings.allowed_hosts == ("a.example", "b.example")


@pytest.mark.slow
@pytest.mark.contract("K-3", "K-10")
@pytest.mark.parametrize(
    ("trusted", "secure"),
    [("", False), ("10.0.0.1", False), ("127.0.0.1", True), ("127.0.0.0/8", True)],
)
def test_only_a_trusted_proxy_says_that_it_is_tls(
    tmp_path: Path, trusted: str, secure: bool
) -> None:
    token = "k" * 40
    env = {"ONWARD_ADMIN_KEY": token} | ({"ONWARD_TRUSTED_PROXIES": trusted} if trusted else {})
    with serving(tmp_path, **env) as server:
        claims = {
            "x-forwarded-proto": "https",
            "x-forwarded-for": "127.0.0.1, 203.0.113.9",
            "forwarded": "for=127.0.0.1;proto=https",
            "x-forwarded-host": "elsewhere.example",
        }
        url = f"{server.url}/api/v2"
        assert HTTP.get(f"{url}/me", headers=claims).status_code == 401
        done = HTTP.post(f"{url}/login", json={"token": token}, headers=claims)
        HTTP.cookies.clear()
        cookie = done.headers["set-cookie"]
        assert (cookie.startswith("__Host-onward_key="), "Secure" in cookie) == (secure, secure)
        pair = {"cookie": cookie.partition(";")[0]}
        assert HTTP.get(f"{url}/me", headers={**claims, **pair}).status_code == 200
        HTTP.cookies.clear()


class Secured:
    """A server with TLS and a first key; commands that trust its certificate."""

    def __init__(self, folder: Path, certificate: Path) -> None:
        self.folder = folder
        self.env = {"SSL_CERT_FILE": str(certificate)}
        ledger = f"sqlite:///{folder}/ledger.db"
        made = run("keys", "create", "root", "--scope", "admin", "--ledger", ledger)
        self.tokens = {"root": made.stdout.strip()}
        self.server = Server(folder, ONWARD_TLS_CERT=certificate, ONWARD_TLS_KEY=certificate)
        self.server.url = self.server.url.replace("http:", "https:")
        self.server.wait_ready()
        self.printed: list[str] = []
        self._workers: list[Process] = []

    def run(self, by: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = run(*arguments, ONWARD_URL=self.server.url, ONWARD_KEY=self.tokens[by], **self.env)
        self.printed.append(done.stderr)
        return done

    def make(self, name: str, *scopes: str) -> None:
        wanted = [part for scope in scopes for part in ("--scope", scope)]
        made = self.run("root", "keys", "create", name, *wanted)
        self.tokens[name] = made.stdout.strip()

    def work(self, by: str, *arguments: str) -> None:
        env = {"ONWARD_URL": self.server.url, "ONWARD_KEY": self.tokens[by], **self.env}
        log = self.folder / f"worker{len(self._workers)}.log"
        where = f"{self.folder}/jobs.py:worker"
        self._workers.append(Process(*ONWARD, "worker", where, *arguments, env=env, log=log))

    def get(self, by: str, path: str) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.tokens[by]}"}
        return HTTP.get(f"{self.server.url}{path}", headers=headers)

    def workers(self) -> list[Any]:
        found: list[Any] = self.get("root", "/api/v2/workers").json()["items"]
        return found

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self.server.kill()


@pytest.mark.slow
@pytest.mark.contract("K-1", "K-9", "K-10", "K-11")
@pytest.mark.parametrize("via", ["socket", "http"])
def test_a_caller_and_a_worker_with_keys_of_their_own(
    tmp_path: Path, certificate: Path, via: str
) -> None:
    (tmp_path / "jobs.py").write_text(WORKER)
    secured = Secured(tmp_path, certificate)
    try:
        secured.make("web", "submit")
        secured.make("box", "work:greet")
        secured.work("box", "--via", via, *(["--listen", "http://127.0.0.1:0"] * (via == "http")))
        done = secured.run("web", "submit", "greet", '{"name": "Ada"}', "--wait", "--json")
        assert json.loads(done.stdout)["result"] == "hello Ada"
        assert json.loads(done.stdout)["owner"] == secured.tokens["web"].split("_")[1]
        by_flag = run(
            "task", "list", "--json", "--server", secured.server.url,
            "--key", secured.tokens["web"], **secured.env,
        )  # fmt: skip
        assert len(json.loads(by_flag.stdout)["items"]) == 1
        nobody = run("task", "list", "--server", secured.server.url, **secured.env)
        assert nobody.returncode == 4
        assert "a key is needed" in nobody.stderr
        lesser = secured.run("web", "queue", "pause", "greet")
        assert (lesser.returncode, "→ use a key that may" in lesser.stderr) == (4, True)
        if via == "http":
            called = secured.get("root", "/workers/list").json()[0]["url"]
            for path in ("/exec/greet", "/cancel"):
                for signature in ({}, {"x-onward-signature": f"t=1,v1={'0' * 64}"}):
                    refused = HTTP.post(f"{called}{path}", json={}, headers=signature)
                    assert refused.status_code == 401, path
        if via == "socket":
            box = secured.tokens["box"].split("_")[1]
            assert secured.run("root", "keys", "revoke", box).returncode == 0
            poll_until(lambda: not secured.workers())
        metrics = secured.get("root", "/metrics").text
    finally:
        secured.close()
    written = [path for path in tmp_path.iterdir() if path.is_file() and path.suffix != ".pem"]
    kept = b"".join(path.read_bytes() for path in written) + metrics.encode()
    kept += "".join(secured.printed).encode()
    assert b"key.create" in kept, "the ledger is among them"
    for token in secured.tokens.values():
        assert token.rpartition("_")[2].encode() not in kept
