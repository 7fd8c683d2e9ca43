"""One call to a worker's URL: what is sent, and which outcome a response is.

Decides what of the exchange is the task's failure. Never follows a redirect, never uses a proxy
from the environment, never connects to an address other than those that were checked.
"""

from __future__ import annotations

import ssl
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from onward import __version__, signature
from onward.core import strict_json
from onward.core.errors import Invalid
from onward.core.outcome import Failed, Outcome, Released, Succeeded
from onward.core.task import Claimed, Instant, Json, TaskId, encode
from onward.core.trace import handed_on
from onward.faults import Fault, bounded_delay
from onward.wire.base import MAX_BODY
from onward.workers.http.address import PinnedUrl
from onward.workers.http.registry import HttpWorker

CONNECT_S, CANCEL_S = 2.0, 2.0
# Most servers close an idle connection after 5 s. It is closed here before that: a request that is
# on its way when the worker closes may or may not have been read.
KEEP_ALIVE_S = 2.0
MOST_ERROR = 300  # characters of an error in a response

INVALID = "InvalidResponse"
HEADERS = {
    "accept": "application/json",
    "accept-encoding": "identity",
    "content-type": "application/json",
    "user-agent": f"onward/{__version__}",
}


class Unreached(Exception):
    """No connection: the worker has not seen the task."""


class PostReply(msgspec.Struct, frozen=True):
    status: int
    retry_after_ms: int | None


class ExecBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of /exec: what a flow sends to a node's service."""

    input: msgspec.Raw
    params: dict[str, msgspec.Raw]


_decode_body = msgspec.json.Decoder(ExecBody).decode


def request_body(payload: Json) -> tuple[bytes, bool]:
    """The body, and whether the payload had to be wrapped as `input`."""
    raw = payload.encode()
    try:
        _decode_body(raw)
    except msgspec.DecodeError:
        return b'{"input":' + raw + b',"params":{}}', True
    return raw, False


class OutboundHttp:
    """All outgoing connections of this server to workers and webhooks."""

    def __init__(self) -> None:
        self._transports: dict[str, httpx2.AsyncHTTPTransport] = {}

    async def execute(self, worker: HttpWorker, task: Claimed, now: Instant) -> Outcome:
        """Raises Unreached if there is no connection; any other fault is the call's outcome."""
        body, wrapped = request_body(task.payload)
        headers = {
            "x-onward-task": task.id,
            "x-onward-type": quote(task.type, safe=""),
            "x-onward-attempt": str(task.attempt),
            "x-onward-fence": str(task.fence),
            "idempotency-key": f"{_header(task.key or task.id)}:{task.generation}",
        }
        if wrapped:
            headers["x-onward-payload"] = "input"
        if traceparent := handed_on(task):
            headers["traceparent"] = traceparent
        path = f"/exec/{quote(task.queue, safe='')}"
        try:
            headers |= _signature(worker, body, now)
            response = await self._post(worker, path, body, headers)
            try:
                body_read = await _read(response)
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            return _failed("NetworkTimeout", f"the worker broke off its answer: {_name(error)}")
        except _TooLong:
            return _failed(INVALID, f"the answer is larger than {MAX_BODY} bytes", retryable=False)
        return outcome(response.status_code, response.headers, body_read, now)

    async def cancel(self, worker: HttpWorker, task: TaskId, now: Instant) -> None:
        """A request only: a worker need not have /cancel, nor answer it."""
        body = encode({"task_id": task}).encode()
        headers = _signature(worker, body, now)
        try:
            response = await self._post(worker, "/cancel", body, headers, answer_s=CANCEL_S)
            await response.aclose()
        except (Unreached, httpx2.TransportError):
            pass

    async def post(
        self, url: PinnedUrl, body: bytes, headers: dict[str, str], now: Instant
    ) -> PostReply:
        """To a webhook. Only the status counts; OSError if there is no response."""
        try:
            response = await self._post(url, "", body, headers)
        except (Unreached, httpx2.TransportError) as error:
            raise OSError(_name(error)) from error
        await response.aclose()
        after = _retry_after_ms(response.headers.get("retry-after"), now)
        return PostReply(response.status_code, after)

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.aclose()

    async def _post(
        self,
        target: HttpWorker | PinnedUrl,
        path: str,
        body: bytes,
        headers: dict[str, str],
        *,
        answer_s: float | None = None,
    ) -> httpx2.Response:
        parts = urlsplit(target.url)
        # Connections are reused by address: one whose certificate was checked for one name must not
        # serve another.
        transport = self._transport(target.host if parts.scheme == "https" else "")
        why: Exception = OSError("no address")
        for address in target.addresses:
            at = f"[{address}]" if ":" in address else address
            port = f":{parts.port}" if parts.port is not None else ""
            # Connects to the address that was checked; the name is only sent, never looked up.
            request = httpx2.Request(
                "POST",
                f"{parts.scheme}://{at}{port}{parts.path}{path}",
                headers={**HEADERS, **headers, "host": parts.netloc},
                content=body,
                extensions={
                    "sni_hostname": target.host,
                    "timeout": {"connect": CONNECT_S, "read": answer_s, "write": answer_s},
                },
            )
            try:
                return await transport.handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                why = error
        raise Unreached(_name(why)) from why

    def _transport(self, name: str) -> httpx2.AsyncHTTPTransport:
        known = self._transports.get(name)
        if known is None:
            # The bare transport: a client would send the cookies of one worker to the next.
            known = self._transports[name] = httpx2.AsyncHTTPTransport(
                # Without TLS no certificate is needed, and loading them takes a while.
                verify=True if name else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                trust_env=False,
                limits=httpx2.Limits(
                    max_connections=None,  # bounded by slots
                    max_keepalive_connections=256,
                    keepalive_expiry=KEEP_ALIVE_S,
                ),
            )
        return known


def _signature(worker: HttpWorker, body: bytes, now: Instant) -> dict[str, str]:
    """None for a worker that registered without a key."""
    return {signature.HEADER: signature.signed(worker.secret, body, now)} if worker.secret else {}


class _TooLong(Exception):
    pass


async def _read(response: httpx2.Response) -> bytes:
    body = bytearray()
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 narrows
    async for part in response.stream:  # raw bytes: a compressed response is never unpacked
        body += part
        if len(body) > MAX_BODY:
            raise _TooLong
    return bytes(body)


class ExecReply(msgspec.Struct, rename="camel"):
    result: msgspec.Raw = msgspec.Raw(b"")
    error: Any = ""
    error_type: str | None = None  # ours, as the rest
    status: int | None = None
    retryable: bool | None = None
    retry_after_ms: int | None = None
    released: bool = False  # with an error: the worker cannot do the task and has not begun it


_decode_reply = msgspec.json.Decoder(ExecReply).decode


def outcome(status: int, headers: httpx2.Headers, body: bytes, now: Instant) -> Outcome:
    if 300 <= status < 400:
        where = f"a redirect ({status}), which is not followed"
        return _failed(INVALID, f"the worker answered with {where}", retryable=False)
    if not 200 <= status < 300:
        return Failed(
            Fault(
                kind="HttpError",
                message=_error_in(body)
                or f"the worker answered {status} {_phrase(status)}".rstrip(),
                status=status,
                retry_after_ms=_retry_after_ms(headers.get("retry-after"), now),
            )
        )
    return _answered(body)


def _answered(body: bytes) -> Outcome:
    try:
        strict_json.parse_object(body)
        answer = _decode_reply(body)
    except (Invalid, msgspec.DecodeError) as error:
        return _failed(INVALID, f"the answer cannot be read: {error}", retryable=False)
    if answer.error:
        text = answer.error if isinstance(answer.error, str) else encode(answer.error)
        after = answer.retry_after_ms
        fault = Fault(
            kind=answer.error_type or "Error",
            message=text,
            status=answer.status,
            retryable=answer.retryable,
            retry_after_ms=None if after is None else bounded_delay(after),
        )
        return Released(fault) if answer.released else Failed(fault)
    result = bytes(answer.result)
    if not result and b'"error"' not in body:
        return _failed(INVALID, "the answer has neither result nor error", retryable=False)
    return Succeeded(result.decode() or "null")


def _error_in(body: bytes) -> str:
    """The `error` of a response that failed, if it has one."""
    try:
        answer = _decode_reply(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return answer.error[:MOST_ERROR] if isinstance(answer.error, str) else ""


def _retry_after_ms(header: str | None, now: Instant) -> int | None:
    if header is None:
        return None
    if header.isascii() and header.isdigit():
        return bounded_delay(int(header[:9]) * 1000)
    try:
        return bounded_delay(int(parsedate_to_datetime(header).timestamp() * 1000) - now)
    except (ValueError, OverflowError):
        return None


def _header(text: str) -> str:
    return text if text.isascii() and text.isprintable() else quote(text)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _failed(kind: str, message: str, *, retryable: bool | None = None) -> Failed:
    return Failed(Fault(kind=kind, message=message, retryable=retryable))


def _name(error: Exception) -> str:
    return str(error) or type(error).__name__
