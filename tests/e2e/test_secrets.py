"""A password in a URL is in no log, banner, message or exception."""

from __future__ import annotations

import asyncio
import logging
import traceback
from pathlib import Path

import pytest

from onward import Client, Worker
from onward.client import tools
from onward.client.errors import Unreachable
from onward.settings import Settings
from tests.client.conftest import served
from tests.e2e.shell import ONWARD, run
from tests.processes import Process, free_port, serving
from tests.servers import RedisServer
from tests.support import poll_until, wait_until

CANARY = "c4n4ry"
WORKER = """
from onward import Worker
worker = Worker()

@worker.service
async def greet(name: str) -> str:
    return name
"""


def onward(folder: Path, *arguments: str, **env: str) -> str:
    ping = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    done = run(*arguments, cwd=folder, input=ping, **env)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_server_and_its_workers_never_print_a_password(tmp_path: Path) -> None:
    redis = RedisServer("valkey")
    redis.client.config_set("requirepass", CANARY)
    ledger = f"unix://:{CANARY}@{redis.socket}"
    (tmp_path / "jobs.py").write_text(WORKER)
    logs = []
    with serving(tmp_path, up=True, ledger=ledger, ONWARD_REDIS=ledger) as server:
        logs.append(server.log)
        with_user = server.url.replace("://", f"://svc:{CANARY}@")
        for via in ("socket", "http", "ledger", "streams"):
            log = tmp_path / f"{via}.log"
            where = {"streams": ("--redis", ledger), "ledger": ("--ledger", ledger)}.get(via, ())
            worker = Process(
                *(*ONWARD, "worker", str(tmp_path / "jobs.py:worker")),
                *("--via", via, *where),
                env={"ONWARD_URL": with_user},
                log=log,
            )
            poll_until(log.read_text, holds=lambda lines: "greet" in lines)
            assert worker.stop() == 0
            logs.append(log)
        said = onward(tmp_path, "doctor", "--ledger", ledger, ONWARD_URL=with_user)
        said += onward(tmp_path, "task", "show", "nobody", ONWARD_URL=with_user)
    redis.kill()
    said += "".join(log.read_text() for log in logs)
    assert str(redis.socket) in said, "it is shown, only without the password"
    assert CANARY not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--ledger", "LEDGER"),
        ("serve", "--ledger", f"redis://:a/{CANARY}@127.0.0.1:1/0"),
        ("serve", "--ledger", f"redis://:{CANARY}@127.0.0.1:1/many"),
        ("serve", "--ledger", f"postgres://:{CANARY}@127.0.0.1:1"),
        ("doctor", "--ledger", "LEDGER"),
        ("task", "list"),
        ("submit", "echo", "{}"),
        ("mcp",),
        ("task", "list", "--server", f"ftp://svc:{CANARY}@h"),
    ],
)
def test_a_command_that_fails_never_prints_a_password(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    port = free_port()
    given = [arg.replace("LEDGER", f"redis://:{CANARY}@127.0.0.1:{port}/0") for arg in arguments]
    said = onward(tmp_path, *given, ONWARD_URL=f"http://svc:{CANARY}@127.0.0.1:{port}")
    assert said
    assert CANARY not in said


async def test_neither_exceptions_nor_logs_of_the_sdk_hold_a_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    url = f"http://svc:{CANARY}@127.0.0.1:{free_port()}"
    worker = Worker(url)

    @worker.service
    async def greet(name: str) -> str:
        return name

    running = asyncio.create_task(worker.serve())
    async with Client(url) as client:
        with pytest.raises(Unreachable) as caught:
            await client.get("a")
    with pytest.raises(Unreachable) as in_sync:
        await asyncio.to_thread(tools, url, "s")
    await wait_until(lambda: "no connection" in caplog.text)
    running.cancel()
    await asyncio.wait([running])
    for raised in (caught, in_sync):
        assert CANARY not in "".join(traceback.format_exception(raised.value))
        error: BaseException | None = raised.value
        while error is not None:
            request = getattr(error, "_request", None)
            assert CANARY not in f"{vars(error)} {error!r} {getattr(request, 'url', '')}"
            error = error.__cause__ or error.__context__
    async with served() as there, Client(there.replace("://", f"://svc:{CANARY}@")) as client:
        await client.health()
    assert CANARY not in caplog.text


def test_settings_do_not_show_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"redis://:{CANARY}@127.0.0.1:6379/0"
    for name in ("ONWARD_LEDGER", "ONWARD_REDIS", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"):
        monkeypatch.setenv(name, url)
    assert CANARY not in repr(Settings())
    monkeypatch.setenv("ONWARD_LEDGER", f"{url}x")
    with pytest.raises(ValueError, match="no number of a database") as refused:
        Settings()
    assert CANARY not in str(refused.value)
