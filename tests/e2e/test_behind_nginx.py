"""Two servers behind a real nginx with TLS, by the commands of deploy.md and with the
configuration in deploy/nginx; only ports, paths and the ledger are filled in.
"""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.client.test_tls import certificate as certificate
from tests.processes import HTTP, Process, free_port
from tests.servers import fresh_postgres_url, fresh_url, program
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/conf.d/*.conf;
}}
"""


def fill_in(text: str, **values: object) -> str:
    for name, value in values.items():
        written = WRITTEN[name]
        assert written in text, f"{written!r} is not there any more"
        text = text.replace(written, str(value))
    return text


WRITTEN = {
    "first": "127.0.0.1:8071",
    "second": "127.0.0.1:8072",
    "listen": "listen 443 ssl",
    "cert": "/etc/onward/tls/cert.pem",
    "key": "/etc/onward/tls/key.pem",
    "ledger": "redis://127.0.0.1:6379/0",
    "url": "https://onward.example",
    "port1": "8071",
    "port2": "8072",
}


def commands(**values: object) -> list[str]:
    """The blocks of shell in the section, one after the other, filled in."""
    text = (ROOT / "docs" / "operations" / "deploy.md").read_text()
    section = text.partition("## Two servers behind nginx\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, flags=re.S)
    marked = "\0".join(blocks)
    return fill_in(marked, **values).split("\0")


def worker_code() -> str:
    text = (ROOT / "docs" / "operations" / "deploy.md").read_text()
    found = re.search(r"A worker, `jobs.py`.*?```python\n(.*?)```", text, flags=re.S)
    assert found is not None
    return found[1]


class Shell:
    """One bash for all commands, as a person has one; its background jobs end with it."""

    def __init__(self, folder: Path, **env: str) -> None:
        self._log = folder / "shell.log"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with self._log.open("wb") as log:
            self.popen = subprocess.Popen(
                ["bash", "-e"],
                cwd=folder,
                env={**os.environ, **env, "PATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def run(self, block: str) -> list[str]:
        """What it prints; a command that fails ends the shell, and the test."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(f"{block}\necho ::over::\n")
        self.popen.stdin.flush()
        lines: list[str] = []
        for line in self.popen.stdout:
            if line.strip() == "::over::":
                return lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"{block} failed:\n{self._log.read_text()[-3000:]}")

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.communicate()


class Behind:
    """The folder in which the commands run; nginx; what the test asks through it, and directly."""

    def __init__(self, folder: Path, certificate: Path, ledger: str) -> None:
        self.folder = folder
        self.ports = (free_port(), free_port())
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        (folder / "jobs.py").write_text(worker_code())
        self.blocks = commands(
            ledger=ledger, url=self.url, port1=self.ports[0], port2=self.ports[1]
        )
        self.shell = Shell(
            folder, SSL_CERT_FILE=str(certificate), ONWARD_ARCHIVE="", ONWARD_LEASE_MS="2000"
        )
        self.nginx: Process | None = None
        self._certificate = certificate

    def start_nginx(self) -> None:
        conf = self.folder / "conf.d"
        conf.mkdir()
        first, second = (f"127.0.0.1:{port}" for port in self.ports)
        source = ROOT / "deploy" / "nginx"
        (conf / "upstream.conf").write_text(
            fill_in((source / "upstream.conf").read_text(), first=first, second=second)
        )
        (conf / "onward.conf").write_text(
            fill_in(
                (source / "onward.conf").read_text(),
                listen=f"listen 127.0.0.1:{self.port} ssl",
                cert=self._certificate,
                key=self._certificate,
            )
        )
        user = "" if os.getuid() else f"user {pwd.getpwuid(0).pw_name};"
        main = self.folder / "nginx.conf"
        main.write_text(NGINX.format(folder=self.folder, user=user))
        command = (program("nginx"), "-p", str(self.folder), "-c", str(main), "-e", "stderr")
        checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
        assert "[warn]" not in checked.stderr
        self.nginx = Process(*command, log=self.folder / "nginx.out")

    def token(self, name: str) -> str:
        return (self.folder / f"{name}.key").read_text().strip()

    def ask(
        self, method: str, path: str, by: str | None = None, *, at: str = "", **more: Any
    ) -> httpx2.Response:
        headers = more.pop("headers", {})
        if by is not None:
            headers = {**headers, "authorization": f"Bearer {self.token(by)}"}
        return HTTP.request(method, f"{at or self.url}{path}", headers=headers, **more)

    def status(self, path: str, by: str | None = None, *, at: str = "") -> int | None:
        with suppress(httpx2.TransportError):
            return self.ask("GET", path, by, at=at).status_code
        return None

    def servers(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def wait_for(self, status: int | None, path: str, by: str | None = None, *, at: str) -> None:
        """None: nothing answers there."""
        poll_until(lambda: [self.status(path, by, at=at)], 120, holds=[status].__eq__)

    def close(self) -> None:
        if self.nginx is not None:
            self.nginx.kill()
        self.shell.close()


@pytest.fixture(params=["valkey", "postgres15"])
def behind(request: pytest.FixtureRequest, tmp_path: Path, certificate: Path) -> Iterator[Behind]:
    program("nginx")
    kind = str(request.param)
    ledger = fresh_postgres_url(kind) if kind.startswith("postgres") else fresh_url(kind)
    made = Behind(tmp_path, certificate, ledger)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.contract("K-3", "K-5", "K-6", "K-7", "K-9", "K-10")
def test_the_commands_of_the_document(behind: Behind) -> None:
    first_key, serve, keys, work, hand_in, revoke = behind.blocks
    behind.shell.run(first_key)
    behind.shell.run(serve)
    for url in behind.servers():
        behind.wait_for(200, "/ready", at=url)
    behind.start_nginx()
    behind.wait_for(200, "/ready", at=behind.url)
    behind.shell.run(keys)
    behind.shell.run(work)
    poll_until(lambda: [_workers(behind)], 120, holds=[1].__eq__)

    printed = behind.shell.run(hand_in)
    assert "hello Ada" in "\n".join(printed)
    mine = behind.ask("GET", "/api/v2/tasks", "web").json()["items"]
    assert [task["result"] for task in mine] == ["hello Grace", "hello Ada"]
    decided = behind.ask("GET", "/api/v2/approvals?status=approved", "boss").json()["items"]
    assert [(one["task_id"], one["by"]) for one in decided] == [(mine[0]["id"], "boss")]

    _events_arrive_as_they_happen(behind)
    _both_servers_are_asked(behind)
    _headers_pass(behind)

    behind.shell.run(revoke)
    for url in (*behind.servers(), behind.url):
        behind.wait_for(401, "/api/v2/me", "web", at=url)
    poll_until(lambda: [_workers(behind)], 120, holds=[0].__eq__)
    assert behind.status("/api/v2/me", "boss") == 200

    _a_server_that_is_gone_is_passed_over(behind)


def _workers(behind: Behind) -> int:
    return len(behind.ask("GET", "/api/v2/workers", "admin").json()["items"])


def _events_arrive_as_they_happen(behind: Behind) -> None:
    """The task waits for its approval: were the stream buffered, nothing would be read before."""
    body = {"type": "greet", "payload": {"name": "Mary"}, "approval": {}}
    task = behind.ask("POST", "/api/v2/tasks", "web", json=body).json()["id"]
    headers = {
        "authorization": f"Bearer {behind.token('web')}",
        "accept": "text/event-stream",
    }
    seen = []
    with HTTP.stream("GET", f"{behind.url}/api/v2/tasks/{task}/events", headers=headers) as stream:
        for line in stream.iter_lines():
            if not line.startswith("event: "):
                continue
            seen.append(line.removeprefix("event: "))
            if len(seen) == 1:
                done = behind.ask("POST", f"/api/v2/approvals/{task}/approve", "boss", json={})
                assert done.status_code == 200, done.text
            if seen[-1] == "task.succeeded":
                break
    assert seen[0] == "task.created"


def _both_servers_are_asked(behind: Behind) -> None:
    def answered() -> list[float]:
        pages = [behind.ask("GET", "/metrics", "admin", at=at).text for at in behind.servers()]
        counts = [re.search(r'_http_requests_total\{status="200"\} (\S+)', page) for page in pages]
        return [float(found[1]) for found in counts if found is not None]

    before = answered()

    def grown() -> list[float]:
        """By more than the question for its metrics, which is asked each time."""
        for _ in range(4):
            assert behind.status("/api/v2/me", "web") == 200
        return [now - then for now, then in zip(answered(), before, strict=True)]

    rounds = iter(range(1, 1000))
    poll_until(grown, 120, holds=lambda found: min(found) > next(rounds))


def _headers_pass(behind: Behind) -> None:
    login = behind.ask("POST", "/api/v2/login", json={"token": behind.token("web")})
    assert "; Secure" in login.headers["set-cookie"], "the server knows that the caller has TLS"
    large = behind.ask("POST", "/api/v2/tasks", "web", content=b" " * (3 << 20))
    assert (large.status_code, large.json()["code"]) == (413, "too_large")
    mine = behind.ask("GET", "/ready", headers={"host": "onward.example", "x-request-id": "mine-1"})
    assert (mine.status_code, mine.headers["x-request-id"]) == (200, "mine-1")
    assert behind.ask("GET", "/ready", headers={"host": "evil.example"}).status_code == 421


def _a_server_that_is_gone_is_passed_over(behind: Behind) -> None:
    (first, *_) = behind.shell.run("jobs -p")
    os.kill(int(first), signal.SIGKILL)

    def submitted() -> int:
        return behind.ask(
            "POST",
            "/api/v2/tasks",
            "admin",
            json={"type": "greet", "payload": {"name": "Ada"}},
            headers={"idempotency-key": "after-the-kill"},
        ).status_code

    behind.wait_for(None, "/ready", at=behind.servers()[0])
    # nginx may still hold a connection to the one that was killed, and learn of it by this call.
    poll_until(submitted, holds=(200, 201, 202).__contains__)
