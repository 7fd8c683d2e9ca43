"""Callers who mean harm, against a real server: each is refused, and the others do not notice."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import structlog

from onward import server as serving
from onward.core.errors import Invalid
from onward.doors.errors import render
from onward.doors.refusal import Refusal
from onward.wire.base import MAX_BODY
from tests.doors.guarded_server import (
    LARGE,
    PATIENCE,
    WRITE_MS,
    Answer,
    GuardedServer,
    is_closed,
    read,
    request,
)
from tests.running_app import running_app
from tests.support import poll_until

pytestmark = [pytest.mark.contract("S0-9"), pytest.mark.slow]


def test_an_ordinary_request_passes_with_a_number(guarded: GuardedServer) -> None:
    answer = guarded.ask(request(body=b"12345"))
    assert answer.status == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-request-id"]
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-1.2_3", True), ("a" * 64, True), ("a" * 65, False), ("a b", False), ("<x>", False)],
)
def test_a_request_id_is_kept_if_it_is_a_plain_word(
    guarded: GuardedServer, given: str, kept: bool
) -> None:
    answer = guarded.ask(request(x_request_id=given))
    assert (answer.headers["x-request-id"] == given) is kept
    assert answer.headers["x-request-id"].encode() in answer.body


def test_a_silent_socket_is_closed(guarded: GuardedServer) -> None:
    with guarded.connect() as caller:
        assert read(caller).status == 408, "for its silence; an idle connection gets no answer"
        assert is_closed(caller)


def test_what_came_while_the_server_was_busy_came_in_time(guarded: GuardedServer) -> None:
    with guarded.connect() as caller:
        assert guarded.ask(request()).status == 200  # by now both are connected
        with guarded.connect(request(path="/stall")) as stalling:
            time.sleep(0.2)
            caller.sendall(request())
            assert read(stalling).status == 200
        assert read(caller).status == 200


def test_a_socket_that_falls_silent_between_requests_is_closed(guarded: GuardedServer) -> None:
    with guarded.connect(request()) as caller:
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


def test_headers_that_drip_are_cut_off(guarded: GuardedServer) -> None:
    with guarded.connect(b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ") as caller:
        answer = _drip(caller, b"a")
        assert answer.status == 408
        assert answer.json == {"error": "The request did not arrive in time"}


def test_a_body_that_drips_is_cut_off(guarded: GuardedServer) -> None:
    head = request(content_length="1000").replace(b"content-length: 0\r\n", b"")
    with guarded.connect(head) as caller:
        answer = _drip(caller, b"a")
        assert answer.status == 408
        assert answer.json == {"error": "The body did not arrive in time"}


def test_a_refused_body_that_drips_is_cut_off(guarded: GuardedServer) -> None:
    head = request(content_length="200000000").replace(b"content-length: 0\r\n", b"")
    with guarded.connect(head) as caller:
        assert read(caller).status == 413
        assert _drip(caller, b"a").status == 0


def test_200_megabytes_are_refused_before_they_are_read(guarded: GuardedServer) -> None:
    head = b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 209715200\r\n\r\n"
    with guarded.connect(head) as caller:
        answer = read(caller)
        assert answer.status == 413
        assert answer.json == {"error": f"The body is larger than {MAX_BODY} bytes"}
        assert _pour(caller, b"x" * 65536) < 64 * MAX_BODY


def test_a_caller_who_writes_a_little_too_much_before_reading_finds_the_answer(
    guarded: GuardedServer,
) -> None:
    with guarded.connect(request(body=b"x" * (MAX_BODY + 1))) as caller:
        assert read(caller).status == 413
        caller.sendall(request(body=b"123"))
        assert read(caller).status == 200


def test_a_body_at_the_limit_passes(guarded: GuardedServer) -> None:
    answer = guarded.ask(request(body=b"x" * MAX_BODY))
    assert answer.status == 200
    assert str(MAX_BODY).encode() in answer.body


CHUNKED = b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"


def test_an_endless_chunked_body_is_refused_and_cut_off(guarded: GuardedServer) -> None:
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with guarded.connect(CHUNKED) as caller:
        with structlog.testing.capture_logs() as lines:
            for _ in range(MAX_BODY // 65536 + 1):
                caller.sendall(chunk)
            assert read(caller).status == 413
        assert lines == []
        assert _pour(caller, chunk) < 64 * MAX_BODY


def test_a_chunked_body_within_the_limit_passes(guarded: GuardedServer) -> None:
    answer = guarded.ask(CHUNKED + b"5\r\nhello\r\n0\r\n\r\n")
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
def test_huge_headers_are_refused(guarded: GuardedServer, headers: bytes) -> None:
    with guarded.connect() as caller:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            caller.sendall(b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\n" + headers)
        assert read(caller).status == 431
        assert is_closed(caller)


def test_a_large_body_behind_a_small_head_is_no_large_head(guarded: GuardedServer) -> None:
    assert guarded.ask(request(body=b"x" * 60_000)).status == 200


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
def test_two_ways_to_read_a_request_are_one_too_many(guarded: GuardedServer, shape: bytes) -> None:
    answer = guarded.ask(b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\n" + shape)
    assert answer.status == 400


def test_a_head_request_is_a_get_without_its_body(guarded: GuardedServer) -> None:
    asked = request("HEAD", "/health") + request("GET", "/health", connection="close")
    with guarded.connect(asked) as caller:
        raw = b""
        while data := caller.recv(65536):
            raw += data
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert rest.startswith(b"HTTP/1.1 200"), "nothing in between"
    assert b'"size": 0' in rest


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "GZIP", "identity, gzip"])
def test_a_compressed_body_is_refused(guarded: GuardedServer, encoding: str) -> None:
    answer = guarded.ask(request(body=b"\x1f\x8b", content_encoding=encoding))
    assert answer.status == 415
    assert guarded.ask(request(body=b"1", content_encoding="identity")).status == 200
    squeezed = CHUNKED.replace(b"chunked", encoding.encode() + b", chunked") + b"0\r\n\r\n"
    assert guarded.ask(squeezed).status == 415


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
    guarded: GuardedServer, path: str, door: str, kind: str, body: Any
) -> None:
    with structlog.testing.capture_logs() as lines:
        answer = guarded.ask(request(path=door + path, x_request_id="r1"))
    assert (answer.status, answer.headers["content-type"]) == (500, kind)
    assert answer.json == body
    assert [(line["log_level"], line["request_id"]) for line in lines] == [("error", "r1")]


def test_a_500_that_the_door_means_goes_out_as_it_is(guarded: GuardedServer) -> None:
    answer = guarded.ask(request(path="/api/openai/own-500"))
    assert answer.status == 500
    assert b'{"error":"Task timeout"}' in answer.body


def test_two_hundred_slow_callers_keep_no_other_waiting() -> None:
    """Whatever time the others take: the slow ones are given up long after they are answered."""
    head = b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    patient = GuardedServer(header_timeout_ms=600_000)
    slow = [patient.connect(head) for _ in range(200)]
    try:
        poll_until(lambda: len(_connections(patient)) == 200)
        for _ in range(50):
            assert patient.ask(request(body=b"1")).status == 200
        assert len(_connections(patient)) >= 200
    finally:
        for caller in slow:
            caller.close()
        patient.stop()


def test_two_hundred_slow_callers_are_given_up(guarded: GuardedServer) -> None:
    slow = [
        guarded.connect(b"POST /api/openai HTTP/1.1\r\nhost: 127.0.0.1\r\n") for _ in range(200)
    ]
    assert guarded.ask(request(body=b"1")).status == 200
    for caller in slow:
        assert read(caller).status == 408
        caller.close()


def test_one_connection_too_many_is_told_so() -> None:
    guarded = GuardedServer(max_connections=3)
    try:
        inside = [guarded.connect(request()) for _ in range(3)]
        assert [read(caller).status for caller in inside] == [200] * 3
        assert guarded.ask(b"").status == 503
        inside[0].sendall(request())
        assert read(inside[0]).status == 200
        for caller in inside:
            caller.close()
        poll_until(lambda: not guarded.server.server_state.connections)
        assert guarded.ask(request()).status == 200
    finally:
        guarded.stop()


@pytest.mark.contract("K-2")
async def test_without_keys_only_loopback_is_listened_on() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.com"):  # noqa: S104 refused
        with pytest.raises(Invalid, match="without keys") as refused:
            async with running_app(host=host):
                pass
        assert "onward keys create" in (refused.value.hint or "")


SERVED = """
import asyncio, sys
from onward import logs, server
from onward.settings import Settings
from tests.doors.guarded_server import guarded_echo

logs.configure(Settings())  # to stderr

async def drain():
    print("drained", flush=True)

app = guarded_echo()
running = server.server(app, Settings(host="127.0.0.1", port=0), drain=drain)
tick = running.on_tick

async def announced(counter):
    if counter == 0:
        print(running.servers[0].sockets[0].getsockname()[1], flush=True)
    return await tick(counter)

running.on_tick = announced
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


UPGRADE = (
    b"GET /flood HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def _unread(guarded: GuardedServer) -> list[int]:
    return [one.transport.get_write_buffer_size() for one in _connections(guarded)]


def _connections(guarded: GuardedServer) -> list[Any]:
    return list(guarded.server.server_state.connections)


@pytest.mark.parametrize("asked", [request("GET", "/large"), UPGRADE], ids=["answer", "socket"])
def test_a_caller_who_does_not_read_is_cut_off(asked: bytes) -> None:
    guarded = GuardedServer()
    try:
        with guarded.connect(asked) as caller:
            poll_until(lambda: sum(_unread(guarded)) > 0)
            poll_until(lambda: not _connections(guarded))
            assert is_closed(caller)
    finally:
        guarded.stop()


def test_a_caller_who_reads_slowly_gets_all_of_it(guarded: GuardedServer) -> None:
    with guarded.connect(request("GET", "/large", connection="close")) as caller:
        began, size = time.monotonic(), 0
        while data := caller.recv(1 << 20):
            size += len(data)
            if time.monotonic() - began < 2 * WRITE_MS / 1000:
                time.sleep(0.1)
    assert size > LARGE


def test_unread_answers_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many who do not read, the longest silent go first, before their time."""
    monkeypatch.setattr(serving, "MAX_UNREAD", 2 * LARGE)
    guarded = GuardedServer(write_timeout_ms=600_000)
    callers: list[socket.socket] = []
    try:
        callers += [guarded.connect(request("GET", "/large")) for _ in range(5)]
        poll_until(lambda: guarded.server.server_state.total_requests == 5)
        poll_until(lambda: sum(_unread(guarded)) <= 2 * LARGE)
        assert 1 <= len(_connections(guarded)) <= 2
    finally:
        for caller in callers:
            caller.close()
        guarded.stop()
