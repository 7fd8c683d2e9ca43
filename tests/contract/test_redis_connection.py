"""The connection under the Redis ledger: over TCP, over TLS, and with what goes wrong on it."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.exceptions import ConnectionError, InvalidResponse, NoPermissionError, ResponseError

from onward.core.errors import LedgerUnavailable
from onward.core.task import State
from onward.ledgers.redis import RedisBackend, client
from onward.ledgers.redis.client import connect
from onward.ledgers.redis.connection import RedisConnection, open_connection
from tests.contract.driver import Driver
from tests.contract.peers import Peer, listening
from tests.processes import free_port
from tests.servers import RedisServer, fresh_url, shared
from tests.support import wait_until

WELCOME = b"+OK\r\n" * 8  # to whatever redis-py says when it connects


def certify(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine alone, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "onward test")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


async def test_a_ledger_over_tls(tmp_path: Path) -> None:
    certificate, key = certify(tmp_path)
    port = free_port()
    server = RedisServer(
        "redis7",
        *("--tls-port", str(port), "--bind", "127.0.0.1", "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(certificate), "--tls-key-file", str(key)),
    )
    url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
    backend, peer = RedisBackend(url), Peer()
    try:
        async with listening("redis7", peer, to=backend):
            other = RedisBackend(url)
            over = await Driver(other).finished(payload=f'"{"x" * 100_000}"')
            await wait_until(lambda: over.id in peer.ended)
            await other.close()
        assert (await Driver(backend).task(over.id)).state is State.SUCCEEDED
    finally:
        await backend.close()
        server.close()


@asynccontextmanager
async def a_line(url: str) -> AsyncIterator[RedisConnection]:
    redis = connect(url)
    line = await open_connection(redis)
    try:
        yield line
    finally:
        await line.close()
        await redis.aclose()


async def test_a_refusal_is_an_error_and_the_line_goes_on() -> None:
    async with a_line(fresh_url("valkey")) as line:
        with pytest.raises(ResponseError, match="unknown command"):
            await line.ask("NONSENSE")
        assert await line.ask("PING") == b"PONG"


async def test_refusals_are_told_apart_as_redis_py_does() -> None:
    redis: Any = shared("valkey").client
    redis.execute_command("ACL", "SETUSER", "shy", "on", ">secret", "~*", "+ping", "+client")
    try:
        async with a_line(f"unix://shy:secret@{shared('valkey').socket}") as line:
            with pytest.raises(NoPermissionError):
                await line.ask("GET", "x")
    finally:
        redis.acl_deluser("shy")


async def test_what_is_said_on_a_channel_is_no_reply() -> None:
    heard: list[tuple[bytes, bytes]] = []
    async with a_line(fresh_url("valkey")) as line:
        line.on_message = lambda channel, said: heard.append((channel, said))
        assert await line.ask("SUBSCRIBE", "one") == [b"subscribe", b"one", 1]
        shared("valkey").client.publish("one", "hello")
        assert await line.ask("SUBSCRIBE", "two") == [b"subscribe", b"two", 2]
    assert heard == [(b"one", b"hello")]


async def test_a_list_that_looks_like_a_message_is_a_reply() -> None:
    async with a_line(fresh_url("valkey")) as line:
        await line.ask("RPUSH", "list", "message", "a", "b")
        assert await line.ask("LRANGE", "list", 0, -1) == [b"message", b"a", b"b"]


async def test_who_waits_is_told_when_the_line_breaks() -> None:
    async with a_line(fresh_url("valkey")) as line:
        waiting = asyncio.ensure_future(line.ask("BLPOP", "nothing", 0))
        await asyncio.sleep(0.05)
        shared("valkey").client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(ConnectionError):
            await waiting
        assert line.lost.done()
        with pytest.raises(ConnectionError):
            await line.ask("PING")


async def test_a_caller_that_leaves_during_hello_leaves_no_connection_behind() -> None:
    redis = connect(fresh_url("valkey"))
    connection = redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    redis.connection_pool.make_connection = lambda: connection  # type: ignore[method-assign]
    opening = asyncio.ensure_future(open_connection(redis))
    while not connection.is_connected:  # noqa: ASYNC110 the very turn in which it is
        await asyncio.sleep(0)
    assert opening.cancel()
    await asyncio.wait([opening])
    assert not connection.is_connected
    await redis.aclose()


async def test_a_call_that_outlives_its_ledger_closes_its_line() -> None:
    backend = RedisBackend(fresh_url("valkey"))
    await backend.maintain()
    (line,) = backend.functions._free
    late = asyncio.ensure_future(backend.functions.command("BLPOP", "late", 0))
    await wait_until(lambda: shared("valkey").client.info("clients")["blocked_clients"] == 1)
    await backend.close()
    shared("valkey").client.rpush("late", "here")
    assert await late == [b"late", b"here"]
    await asyncio.wait_for(line.lost, 30)


async def test_where_one_line_is_dead_the_others_are_not_tried_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = RedisBackend(fresh_url("valkey"))
    functions = backend.functions
    await asyncio.gather(*[functions.command("PING") for _ in range(3)])
    lines = list(functions._free)
    assert len(lines) == 3
    monkeypatch.setattr(client, "CALL_TIMEOUT_S", 0.05)
    with pytest.raises(LedgerUnavailable):
        await functions.command("BLPOP", "nothing", 0)
    await asyncio.wait([line.lost for line in lines], timeout=30)
    assert all(line.lost.done() for line in lines)
    await backend.close()


async def test_what_is_no_redis_is_not_listened_to() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(WELCOME)
        while b"PING" not in await reader.read(1_000):
            pass
        writer.write(b"HTTP/1.1 400 Bad Request\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, a_line(f"redis://127.0.0.1:{port}/0") as line:
        with pytest.raises(InvalidResponse):
            await line.ask("PING")
        assert line.lost.done()
