"""The server's tools for agents as Python functions, for a framework that takes such functions.

Each has the name, the text and the signature of the server's definition, and the definition itself
as `schema`. They call the server that defines them; nothing runs here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import quote

import httpx2
import msgspec

from onward.client.address import http_options, server_url
from onward.client.api import ANSWER_S, CONNECT_S, IDEMPOTENCY_KEY, encode
from onward.client.errors import Unreachable, problem_from
from onward.core.task import new_id

if TYPE_CHECKING:
    from onward.client.api import ServerApi

PATH = "/api/v2/tools"

_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}


class ToolFunction(Protocol):
    __name__: str
    schema: Mapping[str, Any]

    def __call__(self, **arguments: Any) -> Any: ...


def plain_tools(url: str | None = None, session_id: str | None = None) -> list[ToolFunction]:
    """Functions that return when the server has replied."""
    server = _BlockingServer(server_url(url), session_id)
    definitions = server.call("GET", PATH, format="openai")
    return [_function(definition, _calling(server, definition)) for definition in definitions]


async def async_tools(api: ServerApi, session_id: str | None = None) -> list[ToolFunction]:
    """The same for a program with an event loop: functions to be awaited."""
    definitions = await api.call(
        list[dict[str, Any]], "GET", PATH, format="openai", session_id=session_id
    )
    return [
        _function(definition, _awaiting(api, definition, session_id)) for definition in definitions
    ]


class _BlockingServer:
    """The server, for a program without an event loop."""

    def __init__(self, url: str, session: str | None) -> None:
        self.url = url
        self._session = {} if session is None else {"session_id": session}

    def call(self, method: str, path: str, body: Any = None, **params: str) -> Any:
        headers = {"accept": "application/json"}
        if body is not None:
            # The same for both tries: a task that was accepted before the cut is not made twice.
            headers |= {"content-type": "application/json", IDEMPOTENCY_KEY: new_id()}
        with httpx2.Client(
            **http_options(self.url),
            timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S),
        ) as http:
            request = http.build_request(
                method,
                path,
                content=None if body is None else encode(body),
                params={**self._session, **params},
                headers=headers,
            )
            response = self._send(http, request)
        if response.is_error:
            raise problem_from(response.status_code, response.content)
        return msgspec.json.decode(response.content)

    def _send(self, http: httpx2.Client, request: httpx2.Request) -> httpx2.Response:
        try:
            return http.send(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Unreachable(self.url, cause=error) from error
        except httpx2.TransportError:
            try:
                return http.send(request)
            except httpx2.TransportError as error:
                raise Unreachable(self.url, cut=True, cause=error) from error


def _calling(server: _BlockingServer, definition: Mapping[str, Any]) -> Callable[..., Any]:
    path = _path(definition)

    def call(*given: Any, **arguments: Any) -> Any:
        return server.call("POST", path, _bound(call, given, arguments))

    return call


def _awaiting(
    api: ServerApi, definition: Mapping[str, Any], session: str | None
) -> Callable[..., Any]:
    path = _path(definition)

    async def call(*given: Any, **arguments: Any) -> Any:
        body = _bound(call, given, arguments)
        return await api.call(
            dict[str, Any], "POST", path, body=body, key=new_id(), session_id=session
        )

    return call


def _path(definition: Mapping[str, Any]) -> str:
    return f"{PATH}/{quote(definition['function']['name'], safe='')}"


def _bound(call: Callable[..., Any], given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """The arguments by name; TypeError for one that is not in the signature."""
    arguments = inspect.signature(call).bind(*given, **named).arguments
    return {name: value for name, value in arguments.items() if value is not None}


def _function(definition: Mapping[str, Any], call: Any) -> ToolFunction:
    defined = definition["function"]
    properties: Mapping[str, Any] = defined["parameters"]["properties"]
    required = set(defined["parameters"].get("required", ()))
    ordered = sorted(properties, key=lambda name: name not in required)
    hints = {name: _hint(properties[name], name in required) for name in ordered}
    signature = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if name in required else None,
                annotation=hints[name],
            )
            for name in ordered
        ],
        return_annotation=dict[str, Any],
    )
    call.__name__ = call.__qualname__ = defined["name"]
    call.__module__ = "onward.client"
    call.__doc__ = _doc(defined["description"], properties)
    call.__annotations__ = {**hints, "return": dict[str, Any]}
    call.__signature__ = signature
    call.schema = definition
    function: ToolFunction = call
    return function


def _hint(schema: Mapping[str, Any], required: bool) -> Any:
    if "enum" in schema and all(isinstance(word, str) for word in schema["enum"]):
        hint: Any = Literal[tuple(schema["enum"])]
    else:
        kind = schema.get("type")
        hint = _TYPES.get(kind, Any) if isinstance(kind, str) else Any
    return hint if required else hint | None


def _doc(description: str, properties: Mapping[str, Any]) -> str:
    """A model that reads only this must know what to write."""
    lines = [description, "", "Args:"]
    for name, schema in properties.items():
        plain = set(schema) <= {"type", "description", "enum", "default"}
        text = schema.get("description", "") if plain else encode(schema).decode()
        lines.append(f"    {name}: {text}".rstrip())
    return "\n".join(lines)
