"""Servers behind TLS: what is wrong is said as what it is."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from onward import Client
from onward.cli.checkup import examine
from onward.client import tools
from onward.client.errors import ProblemError, Unreachable

TEAPOT = b"HTTP/1.1 418 I'm a teapot\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of no authority but its own, for 127.0.0.1; key and certificate in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path, pem = tmp_path / "here.pem", serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + made.public_bytes(pem))
    return path


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(TEAPOT)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@pytest.fixture
async def behind_tls(certificate: Path) -> AsyncIterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=context)
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_a_certificate_that_is_not_trusted_is_named(
    behind_tls: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(behind_tls) as client:
        with pytest.raises(Unreachable, match=r"certificate verify failed: self.signed") as refused:
            await client.health()
    assert "SSL_CERT_FILE" in (refused.value.hint or "")
    assert "verify=" in (refused.value.hint or "")
    with pytest.raises(Unreachable, match="certificate verify failed"):
        await asyncio.to_thread(tools, behind_tls, "s")
    found = await asyncio.to_thread(lambda: list(examine("sqlite:///:memory:", behind_tls)))
    assert any("certificate verify failed" in finding.found for finding in found)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with Client(behind_tls) as client:
        with pytest.raises(ProblemError, match="418"):
            await client.health()


async def test_a_server_without_tls_is_named() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Client(url) as client:
        with pytest.raises(Unreachable, match="no TLS connection") as refused:
            await client.health()
    assert "http://" in (refused.value.hint or "")
    server.close()


async def test_a_client_can_be_told_which_authority_to_trust(
    behind_tls: str, certificate: Path
) -> None:
    for trusted in (str(certificate), ssl.create_default_context(cafile=certificate), False):
        async with Client(behind_tls, verify=trusted) as client:
            with pytest.raises(ProblemError, match="418"):
                await client.health()


async def test_a_client_sends_its_headers_and_waits_as_long_as_it_is_told() -> None:
    heads: list[bytes] = []
    hung_up = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.read()  # until the client hangs up: it gets no answer
        writer.close()
        await writer.wait_closed()
        hung_up.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Client(
        url, headers={"x-team": "shop"}, timeout=datetime.timedelta(seconds=2)
    ) as client:
        with pytest.raises(Unreachable):
            await client.cancel("01990000")
    await hung_up.wait()
    server.close()

    assert [b"x-team: shop" in head for head in heads] == [True]
