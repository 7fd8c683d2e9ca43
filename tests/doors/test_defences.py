"""Callers who mean harm, against a real server: each is refused, and the others do not notice.

Raw sockets on loopback; every wait has a deadline of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from starlette.requests import ClientDisconnect

from onward import server as serving
from onward.doors.errors import render
from onward.doors.guard import MAX_BODY, Guard
from onward.doors.refusal import Refusal
from onward.settings import Settings

pytestmark = [pytest.mark.contract("S0-9"), pytest.mark.slow]

HEADER_MS, BODY_MS, WRITE_MS = 1_000, 1_200, 3_000
LARGE = 32 << 20  # more than the kernel keeps for a reader that does not read
PATIENCE = 10.0


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with how much came in; /boom fails, before or after it began to answer."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["type"] == "websocket":
        await _accept(scope, receive, send)
        return
    size = await _size(receive)
    if scope["path"].endswith("/stall"):
        time.sleep(HEADER_MS / 1000 + 0.1)  # noqa: ASYNC251 nobody else gets a turn, but the clock
        Running.sweep()
    start = {"type": "http.response.start", "status": 200, "headers": []}
    if scope["path"].endswith("/boom"):
        raise RuntimeError("secret inside")
    if scope["path"].endswith("/starlette"):
        await send({**start, "status": 500})
        await send({"type": "http.response.body", "body": b"Internal Server Error"})
        raise RuntimeError("secret inside")
    if scope["path"].endswith("/own-500"):
        await send({**start, "status": 500})
        await send({"type": "http.response.body", "body": b'{"error":"Task timeout"}'})
        return
    await send(start)
    said = json.dumps({"size": size, "id": scope["state"]["request_id"]}).encode()
    body = b"x" * LARGE if scope["path"] == "/large" else said
    await send({"type": "http.response.body", "body": body})


async def _accept(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while scope["path"] == "/flood":
        await send({"type": "websocket.send", "text": "x" * MAX_BODY})
    await send({"type": "websocket.close"})


async def _size(receive: Any) -> int:
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect  # as Starlette does
        size += len(message["body"])
        more = message["more_body"]
    return size


class Running:
    def __init__(self, **settings: Any) -> None:
        chosen = Settings(
            host="127.0.0.1",
            port=0,
            header_timeout_ms=HEADER_MS,
            body_timeout_ms=BODY_MS,
            write_timeout_ms=WRITE_MS,
            **settings,
        )
        guarded = Guard(
            echo, allowed_hosts=["onward.example"], allowed_origins=["https://page.example"]
        )
        self.server = serving.server(guarded, chosen)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        _until(lambda: self.server.started or not self._thread.is_alive())
        Running.sweep = self._sweep  # type: ignore[method-assign]
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]

    @staticmethod
    def sweep() -> None:
        """As the server does every now and then; of the one that was started last."""

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.server.server_state.connections):
            assert isinstance(connection, serving.Connection)
            connection.sweep(now, HEADER_MS / 1000, BODY_MS / 1000)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def connect(self, send: bytes = b"") -> socket.socket:
        caller = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        if send:
            caller.sendall(send)
        return caller

    def ask(self, send: bytes) -> Answer:
        with self.connect(send) as caller:
            return read(caller)


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        line, *headers = head.decode("latin-1").split("\r\n")
        self.status = int(line.split()[1]) if line else 0
        self.headers = {
            name.lower(): value.strip() for name, _, value in (h.partition(":") for h in headers)
        }

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        threading.Event().wait(0.005)


def read(caller: socket.socket) -> Answer:
    """One answer: to its Content-Length, or to the end."""
    raw = b""
    while not _whole(raw):
        try:
            data = caller.recv(65536)
        except ConnectionResetError:
            break
        if not data:
            break
        raw += data
    return Answer(raw)


def _whole(raw: bytes) -> bool:
    head, found, body = raw.partition(b"\r\n\r\n")
    if not found:
        return False
    headers = Answer(head + found).headers
    if "content-length" in headers:
        return len(body) >= int(headers["content-length"])
    return body.endswith(b"0\r\n\r\n")


def is_closed(caller: socket.socket) -> bool:
    try:
        while caller.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True  # a timeout would have raised


def request(
    method: str = "POST", path: str = "/api/openai", body: bytes = b"", **headers: Any
) -> bytes:
    given = {"host": "127.0.0.1", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    started = Running()
    yield started
    started.stop()


def test_an_ordinary_request_passes_with_a_number(running: Running) -> None:
    answer = running.ask(request(body=b"12345"))
    assert answer.status == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-request-id"]
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-1.2_3", True), ("a" * 64, True), ("a" * 65, False), ("a b", False), ("<x>", False)],
)
def test_a_request_id_is_kept_if_it_is_a_plain_word(
    running: Running, given: str, kept: bool
) -> None:
    answer = running.ask(request(x_request_id=given))
    assert (answer.headers["x-request-id"] == given) is kept
    assert answer.headers["x-request-id"].encode() in answer.body


def test_a_silent_socket_is_closed(running: Running) -> None:
    began = time.monotonic()
    with running.connect() as caller:
        assert read(caller).status == 408
        assert is_closed(caller)
    assert time.monotonic() - began < HEADER_MS / 1000 + 2


def test_what_came_while_the_server_was_busy_came_in_time(running: Running) -> None:
    with running.connect() as caller:
        assert running.ask(request()).status == 200  # by now both are connected
        with running.connect(request(path="/stall")) as stalling:
            time.sleep(0.2)
            caller.sendall(request())
            assert read(stalling).status == 200
        assert read(caller).status == 200


def test_a_socket_that_falls_silent_between_requests_is_closed(running: Running) -> None:
    with running.connect(request()) as caller:
        assert read(caller).status == 200
        caller.sendall(b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        assert read(caller).status == 408
        assert is_closed(caller)


def _drip(caller: socket.socket, drop: bytes) -> Answer:
    """A byte whenever the server would otherwise hear nothing, until it answers."""
    caller.settimeout(0.05)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            caller.sendall(drop)
            data = caller.recv(65536)
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return Answer(b"")
        return Answer(data)
    raise AssertionError("dripped in vain")


def test_headers_that_drip_are_cut_off(running: Running) -> None:
    with running.connect(b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ") as caller:
        answer = _drip(caller, b"a")
        assert answer.status == 408
        assert answer.json == {"error": "The request did not arrive in time"}


def test_a_body_that_drips_is_cut_off(running: Running) -> None:
    head = request(content_length="1000").replace(b"content-length: 0\r\n", b"")
    with running.connect(head) as caller:
        answer = _drip(caller, b"a")
        assert answer.status == 408
        assert answer.json == {"error": "The body did not arrive in time"}


def test_a_refused_body_that_drips_is_cut_off(running: Running) -> None:
    head = request(content_length="200000000").replace(b"content-length: 0\r\n", b"")
    with running.connect(head) as caller:
        assert read(caller).status == 413
        assert _drip(caller, b"a").status == 0


def test_200_megabytes_are_refused_before_they_are_read(running: Running) -> None:
    head = b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 209715200\r\n\r\n"
    with running.connect(head) as caller:
        answer = read(caller)
        assert answer.status == 413
        assert answer.json == {"error": f"The body is larger than {MAX_BODY} bytes"}
        assert _pour(caller, b"x" * 65536) < 64 * MAX_BODY


def test_a_caller_who_writes_a_little_too_much_before_reading_finds_the_answer(
    running: Running,
) -> None:
    with running.connect(request(body=b"x" * (MAX_BODY + 1))) as caller:
        assert read(caller).status == 413
        caller.sendall(request(body=b"123"))
        assert read(caller).status == 200


def test_a_body_at_the_limit_passes(running: Running) -> None:
    answer = running.ask(request(body=b"x" * MAX_BODY))
    assert answer.status == 200
    assert str(MAX_BODY).encode() in answer.body


END = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
CHUNKED = b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"


def test_an_endless_chunked_body_is_refused_and_cut_off(running: Running) -> None:
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with running.connect(CHUNKED) as caller:
        with structlog.testing.capture_logs() as lines:
            for _ in range(MAX_BODY // 65536 + 1):
                caller.sendall(chunk)
            assert read(caller).status == 413
        assert lines == []
        assert _pour(caller, chunk) < 64 * MAX_BODY


def test_a_chunked_body_within_the_limit_passes(running: Running) -> None:
    answer = running.ask(CHUNKED + b"5\r\nhello\r\n0\r\n\r\n")
    assert answer.status == 200
    assert b'"size": 5' in answer.body


def _pour(caller: socket.socket, data: bytes) -> int:
    """How much goes out until the other end is shut."""
    sent = 0
    try:
        while sent < 256 * MAX_BODY:
            sent += caller.send(data)
    except (BrokenPipeError, ConnectionResetError):
        pass
    return sent


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(b"x-big: " + b"a" * 20_000 + b"\r\n\r\n", id="one, whole"),
        pytest.param(b"x-big: " + b"a" * 200_000, id="one, without an end"),
        pytest.param(b"".join(b"x-%d: aaaaaaaaaa\r\n" % n for n in range(2_000)), id="many"),
    ],
)
def test_huge_headers_are_refused(running: Running, headers: bytes) -> None:
    with running.connect() as caller:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            caller.sendall(b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\n" + headers)
        assert read(caller).status == 431
        assert is_closed(caller)


def test_a_large_body_behind_a_small_head_is_no_large_head(running: Running) -> None:
    assert running.ask(request(body=b"x" * 60_000)).status == 200


@pytest.mark.parametrize(
    "shape",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n\r\n123456",
        b"content-length: 5, 6\r\n\r\n123456",
        b"content-length: +5\r\n\r\n12345",
        b"content-length: -5\r\n\r\n",
        b"content-length: 0x5\r\n\r\n12345",
        b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n5x\r\nhello\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n-1\r\n\r\n",
        b"x: a\r\n b\r\n\r\n",
        b"x: a\n\r\n",
        b"x: a\x00b\r\n\r\n",
        b"host: 127.0.0.1\r\ncontent-length: 0\r\n\r\n",
        b"origin: http://127.0.0.1\r\norigin: http://evil.example\r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_two_ways_to_read_a_request_are_one_too_many(running: Running, shape: bytes) -> None:
    answer = running.ask(b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\n" + shape)
    assert answer.status == 400


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:9", "localhost", "LOCALHOST:80", "a.localhost", "[::1]", "[::1]:8070",
     "10.1.2.3", "onward.example", "onward.example:99"],
)  # fmt: skip
def test_a_host_that_can_only_be_us_passes(running: Running, host: str) -> None:
    assert running.ask(request(host=host)).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8070", "localhost.evil.example", "127.0.0.1.evil.example",
     "notlocalhost", "127.1.evil", "[::1", "a.onward.example", ""],
)  # fmt: skip
def test_a_name_re_pointed_at_loopback_is_refused(running: Running, host: str) -> None:
    for _ in range(2):
        assert running.ask(request(host=host)).status == 421


def test_no_host_at_all_is_refused(running: Running) -> None:
    assert running.ask(b"GET / HTTP/1.1\r\n\r\n").status == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1.evil.example",
     "https://page.example.evil.example"],
)  # fmt: skip
def test_another_page_may_change_nothing(running: Running, method: str, origin: str) -> None:
    answer = running.ask(request(method, "/api/v1/tasks/", host="127.0.0.1:7", origin=origin))
    assert answer.status == 403
    assert answer.json["detail"].startswith("This page may not do that here; ")
    assert "ONWARD_ALLOWED_ORIGINS" in answer.json["detail"]


# What Chromium sends: of a page on another site, and of one on another port of this machine.
IMAGE: dict[str, Any] = {"sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}
FETCH: dict[str, Any] = {
    "sec_fetch_mode": "cors",
    "sec_fetch_dest": "empty",
    "origin": "http://evil.example",
}
FRAME: dict[str, Any] = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}
LINK: dict[str, Any] = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("how", [IMAGE, FETCH, FRAME])
def test_another_sites_page_may_not_even_read(
    running: Running, method: str, how: dict[str, Any]
) -> None:
    answer = running.ask(request(method, sec_fetch_site="cross-site", **how) + END)
    assert answer.status == 403


def test_a_link_from_another_site_is_followed(running: Running) -> None:
    assert running.ask(request("GET", sec_fetch_site="cross-site", **LINK)).status == 200
    assert running.ask(request("POST", sec_fetch_site="cross-site", **LINK)).status == 403


@pytest.mark.parametrize("site", ["same-origin", "none", "same-site"])
def test_pages_of_our_own_site_may_read(running: Running, site: str) -> None:
    assert running.ask(request("GET", sec_fetch_site=site, **IMAGE)).status == 200


def test_our_own_page_may_also_behind_a_proxy_that_drops_the_port(running: Running) -> None:
    page: dict[str, Any] = {"host": "onward.example", "origin": "https://onward.example:8443"}
    assert running.ask(request(**page)).status == 403
    assert running.ask(request(**page, sec_fetch_site="same-site")).status == 403
    assert running.ask(request(**page, sec_fetch_site="same-origin")).status == 200


def test_a_page_that_is_named_may_also_from_another_site(running: Running) -> None:
    page: dict[str, Any] = {"origin": "https://page.example", "sec_fetch_site": "cross-site"}
    assert running.ask(request("POST", **page)).status == 200
    assert running.ask(request("GET", **page)).status == 200


def test_no_other_sites_page_embeds_an_answer(running: Running) -> None:
    assert running.ask(request()).headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("target", "status"),
    [("http://evil.example/x", 421), ("http://evil.example:8070/x", 421),
     ("http://127.0.0.1.evil.example/x", 421), ("http://user@evil.example/x", 421),
     ("http://127.0.0.1:8070/x", 200), ("http://[::1]:8070/x", 200),
     ("http://onward.example/x", 200)],
)  # fmt: skip
def test_the_host_of_an_absolute_target_counts(running: Running, target: str, status: int) -> None:
    assert running.ask(request("GET", target)).status == status


def test_the_host_of_an_absolute_target_is_the_pages_own(running: Running) -> None:
    forged = request("POST", "http://127.0.0.1:7/x", host="127.0.0.1", origin="http://127.0.0.1")
    assert running.ask(forged).status == 403


def test_a_head_request_is_a_get_without_its_body(running: Running) -> None:
    asked = request("HEAD", "/health") + request("GET", "/health", connection="close")
    with running.connect(asked) as caller:
        raw = b""
        while data := caller.recv(65536):
            raw += data
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert rest.startswith(b"HTTP/1.1 200"), "nothing in between"
    assert b'"size": 0' in rest


@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:7", "https://127.0.0.1:7", "https://page.example"]
)
def test_our_own_page_may(running: Running, origin: str) -> None:
    assert running.ask(request(host="127.0.0.1:7", origin=origin)).status == 200


def test_another_page_may_read_what_the_browser_lets_it(running: Running) -> None:
    assert running.ask(request("GET", origin="http://evil.example")).status == 200


def _handshake(*, host: str = "127.0.0.1", origin: str = "") -> bytes:
    lines = [
        "GET /ws/worker HTTP/1.1",
        f"host: {host}",
        "connection: Upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        *([f"origin: {origin}"] if origin else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_worker_without_an_origin_may_connect(running: Running) -> None:
    with running.connect(_handshake()) as caller:
        answer = Answer(caller.recv(65536))
        assert answer.status == 101
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"host": "evil.example"}])
def test_another_page_gets_no_socket(running: Running, headers: dict[str, str]) -> None:
    assert running.ask(_handshake(**headers)).status == 403


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "GZIP", "identity, gzip"])
def test_a_compressed_body_is_refused(running: Running, encoding: str) -> None:
    answer = running.ask(request(body=b"\x1f\x8b", content_encoding=encoding))
    assert answer.status == 415
    assert running.ask(request(body=b"1", content_encoding="identity")).status == 200
    squeezed = CHUNKED.replace(b"chunked", encoding.encode() + b", chunked") + b"0\r\n\r\n"
    assert running.ask(squeezed).status == 415


@pytest.mark.parametrize("path", ["/boom", "/starlette"])
@pytest.mark.parametrize(
    ("door", "kind", "body"),
    [
        ("/api/v1", "application/json", {"detail": "Internal error"}),
        ("/api/openai", "application/json", {"error": "Internal error"}),
        ("/api/task/x", "application/json", {"error": "Internal error"}),
        ("/flows", "application/json", {"error": "Internal error"}),
        ("/v1/chat", "application/json", {"error": {"message": "Internal error",
            "type": "server_error", "param": None, "code": "internal"}}),
        ("/api/v2", "application/problem+json", {"type": "urn:onward:error:internal",
            "title": "Internal Server Error", "status": 500, "code": "internal",
            "detail": "Internal error", "request_id": "r1"}),
    ],
)  # fmt: skip
def test_a_fault_of_ours_says_nothing_of_the_inside(
    running: Running, path: str, door: str, kind: str, body: Any
) -> None:
    with structlog.testing.capture_logs() as lines:
        answer = running.ask(request(path=door + path, x_request_id="r1"))
    assert (answer.status, answer.headers["content-type"]) == (500, kind)
    assert answer.json == body
    assert [(line["log_level"], line["request_id"]) for line in lines] == [("error", "r1")]


def test_a_500_that_the_door_means_goes_out_as_it_is(running: Running) -> None:
    answer = running.ask(request(path="/api/openai/own-500"))
    assert answer.status == 500
    assert b'{"error":"Task timeout"}' in answer.body


def test_two_hundred_slow_callers_keep_nobody_waiting(running: Running) -> None:
    slow = [
        running.connect(b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\n") for _ in range(200)
    ]
    took = []
    for _ in range(50):
        began = time.monotonic()
        assert running.ask(request(body=b"1")).status == 200
        took.append(time.monotonic() - began)
    assert sorted(took)[44] < 0.2
    for caller in slow:
        assert read(caller).status == 408
        caller.close()


def test_one_connection_too_many_is_told_so() -> None:
    running = Running(max_connections=3)
    try:
        inside = [running.connect(request()) for _ in range(3)]
        assert [read(caller).status for caller in inside] == [200] * 3
        assert running.ask(b"").status == 503
        inside[0].sendall(request())
        assert read(inside[0]).status == 200
        for caller in inside:
            caller.close()
        _until(lambda: not running.server.server_state.connections)
        assert running.ask(request()).status == 200
    finally:
        running.stop()


def test_without_keys_only_loopback_is_listened_on(capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.com"):  # noqa: S104 refused
        with pytest.raises(SystemExit) as stopped:
            serving.run(Settings(host=host), builtin_worker=False)
        assert stopped.value.code == 2
        assert f"refusing to listen on {host} without API keys: " in capsys.readouterr().err


SERVED = """
import asyncio, sys
from onward import logs, server
from onward.settings import Settings
from onward.doors.guard import Guard
from tests.doors.test_defences import echo

logs.configure(Settings())  # to stderr

async def drain():
    print("drained", flush=True)

app = Guard(echo)
running = server.server(app, Settings(host="127.0.0.1", port=0), drain=drain)
tick = running.on_tick

async def told(counter):
    if counter == 0:
        print(running.servers[0].sockets[0].getsockname()[1], flush=True)
    return await tick(counter)

running.on_tick = told
running.run()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_with_zero(number: signal.Signals) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", SERVED],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as caller:
            caller.sendall(request())
            assert read(caller).status == 200
            process.send_signal(number)
            assert process.stdout.readline() == "drained\n"
            assert process.wait(PATIENCE) == 0


def test_the_shape_of_an_error_goes_by_whole_path_segments() -> None:
    for path in ("/tasksy", "/api/v10", "/v1x", "/api/openais", "/", ""):
        assert render(path, Refusal(404, "not_found", "no"))[0] == "application/problem+json"


@pytest.mark.parametrize("origin", ["onward.example", "ftp://x", "https://", "https://x/path"])
def test_an_allowed_origin_that_is_none_is_named_at_the_start(origin: str) -> None:
    Settings(allowed_origins=("https://page.example:8443/",))
    with pytest.raises(ValueError, match="is no origin like"):
        Settings(allowed_origins=(origin,))


UPGRADE = (
    b"GET /flood HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def _unread(running: Running) -> list[int]:
    return [one.transport.get_write_buffer_size() for one in _connections(running)]


def _connections(running: Running) -> list[Any]:
    return list(running.server.server_state.connections)


@pytest.mark.parametrize("asked", [request("GET", "/large"), UPGRADE], ids=["answer", "socket"])
def test_a_caller_who_does_not_read_is_cut_off(asked: bytes) -> None:
    running = Running()
    try:
        with running.connect(asked) as caller:
            _until(lambda: sum(_unread(running)) > 0)
            _until(lambda: not _connections(running))
            assert is_closed(caller)
    finally:
        running.stop()


def test_a_caller_who_reads_slowly_gets_all_of_it(running: Running) -> None:
    with running.connect(request("GET", "/large", connection="close")) as caller:
        began, size = time.monotonic(), 0
        while data := caller.recv(1 << 20):
            size += len(data)
            if time.monotonic() - began < 2 * WRITE_MS / 1000:
                time.sleep(0.1)
    assert size > LARGE


def test_unread_answers_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many who do not read, the longest silent go first, before their time."""
    monkeypatch.setattr(sys.modules[__name__], "WRITE_MS", 600_000)
    monkeypatch.setattr(serving, "MAX_UNREAD", 2 * LARGE)
    running = Running()
    callers: list[socket.socket] = []
    try:
        callers += [running.connect(request("GET", "/large")) for _ in range(5)]
        _until(lambda: running.server.server_state.total_requests == 5)
        _until(lambda: sum(_unread(running)) <= 2 * LARGE)
        assert 1 <= len(_connections(running)) <= 2
    finally:
        for caller in callers:
            caller.close()
        running.stop()
