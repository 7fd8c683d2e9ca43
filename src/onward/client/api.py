"""One server over HTTP: requests out, values or our own errors back.

A request that is cut before its answer is sent once more if the server would not take it twice.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from onward.client.address import http_options, key_of
from onward.client.coalescing import Coalesced
from onward.client.errors import Unreachable, problem_from
from onward.tracing import outgoing

T = TypeVar("T")

CONNECT_S, ANSWER_S = 5.0, 30.0
SILENCE_S = 60.0  # an event stream this long without even a comment is cut
SAFE_TWICE = frozenset({"GET", "PUT", "DELETE"})
IDEMPOTENCY_KEY = "idempotency-key"


class ServerApi:
    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        answer_s: float = ANSWER_S,
        verify: bool | str | ssl.SSLContext | None = None,
    ) -> None:
        self.url = url
        self.key: str | None = key_of(key)
        self._answer_s = answer_s
        self.reached: bool = False
        self.coalesced: Coalesced = Coalesced(self)
        self.away_since: float | None = None
        self._http = httpx2.AsyncClient(
            **http_options(url, headers, verify, self.key),
            # Everybody who waits holds a connection: a pool of a hundred would make them queue.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
        )

    async def close(self) -> None:
        await self._http.aclose()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        key: str | None = None,
        wait_ms: int = 0,
        **params: Any,
    ) -> httpx2.Request:
        if wait_ms:
            params["wait_ms"] = wait_ms
        headers = {"accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        if key is not None:
            headers[IDEMPOTENCY_KEY] = key
        if method == "POST":
            headers |= outgoing()
        return self._http.build_request(
            method,
            path,
            content=None if body is None else encode(body),
            params={name: value for name, value in params.items() if value is not None},
            headers=headers,
            timeout=httpx2.Timeout(self._answer_s + wait_ms / 1000, connect=CONNECT_S, pool=None),
        )

    async def call(self, kind: type[T], method: str, *path: str, **more: Any) -> T:
        """One request to /api/v2, its answer as a `kind`; `path` is given part by part."""
        return await self.get_json(kind, self.request(method, _path(path), **more))

    async def tell(self, method: str, *path: str, **more: Any) -> None:
        """The same, if the answer has nothing to say."""
        await self.send(self.request(method, _path(path), **more))

    async def get_json(self, kind: type[T], request: httpx2.Request, *, ok_status: int = 0) -> T:
        """The answer as a `kind`; `ok_status` names an error status whose body is an answer too."""
        response = await self.send(request, ok_status=ok_status)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError as error:
            raise problem_from(response.status_code, b"") from error

    async def send(self, request: httpx2.Request, *, ok_status: int = 0) -> httpx2.Response:
        response = await self._send(request)
        if response.is_error and response.status_code != ok_status:
            raise problem_from(response.status_code, response.content)
        return response

    async def follow(self, *path: str, after: int) -> AsyncGenerator[str, None]:
        """The data of each server-sent event, until the server ends the stream."""
        request = self._http.build_request(
            "GET",
            _path(path),
            params={"masked": "false"},  # what a caller's own task puts out is the caller's
            headers={"accept": "text/event-stream", "last-event-id": str(after)},
            timeout=httpx2.Timeout(SILENCE_S, connect=CONNECT_S, pool=None),
        )
        response = await self._send(request, stream=True)
        try:
            if response.is_error:
                raise problem_from(response.status_code, await response.aread())
            async for sent in httpx2.EventSource(response):
                if sent.data:  # else it only says how soon to come back
                    yield sent.data
        except httpx2.TransportError as error:
            raise Unreachable(self.url, cut=True, cause=error) from error
        finally:
            await response.aclose()

    async def _send(self, request: httpx2.Request, *, stream: bool = False) -> httpx2.Response:
        try:
            return await self._send_once(request, stream=stream)
        except httpx2.TransportError as error:
            if request.method not in SAFE_TWICE and IDEMPOTENCY_KEY not in request.headers:
                raise Unreachable(self.url, cut=True, cause=error) from error
        try:
            return await self._send_once(request, stream=stream)
        except httpx2.TransportError as error:
            raise Unreachable(self.url, cut=True, cause=error) from error

    async def _send_once(self, request: httpx2.Request, *, stream: bool) -> httpx2.Response:
        try:
            response = await self._http.send(request, stream=stream)
        except httpx2.TransportError as error:
            if self.away_since is None:
                self.away_since = monotonic()
            if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                raise Unreachable(self.url, cause=error) from error
            raise
        self.reached, self.away_since = True, None
        return response


def _path(parts: Iterable[str]) -> str:
    return "/".join(("/api/v2", *(quote(part, safe="") for part in parts)))


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_models)


def _models(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")
    return dump(mode="json", by_alias=True)
