"""The server's tools for agents as Python functions, for a framework that takes such functions.

Each has the name, the text and the signature of the server's definition, and the definition itself
as `schema`. They call the server that defines them; nothing runs here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from onward.client.api import encode
from onward.client.retrying import new_key
from onward.client.sync import SyncClient

if TYPE_CHECKING:
    from onward.client.api import ServerApi

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

    def __call__(self, *given: Any, **arguments: Any) -> Any: ...


def plain_tools(
    url: str | None = None,
    session_id: str | None = None,
    *,
    key: str | None = None,
    services: Sequence[str] | None = None,
) -> list[ToolFunction]:
    """Functions that return when the server has replied."""
    client = SyncClient(url, key=key)
    found = client.call(lambda each: each.tools(session_id, services=services))
    return [_blocking(client, tool) for tool in found]


async def async_tools(
    api: ServerApi, session_id: str | None = None, services: Sequence[str] | None = None
) -> list[ToolFunction]:
    """The same for a program with an event loop: functions to be awaited."""
    only = None if services is None else ",".join(services)
    definitions = await api.call(
        list[dict[str, Any]], "GET", "tools", format="openai", session_id=session_id, services=only
    )
    whose = {"session_id": session_id, "services": only}
    return [_function(definition, _awaiting(api, definition, whose)) for definition in definitions]


def _blocking(client: SyncClient, tool: ToolFunction) -> ToolFunction:
    definition = tool.schema

    def call(*given: Any, **arguments: Any) -> Any:
        return client.call(lambda _: tool(*given, **arguments))

    return _function(definition, call)


def _awaiting(
    api: ServerApi, definition: Mapping[str, Any], whose: Mapping[str, str | None]
) -> Callable[..., Any]:
    name = definition["function"]["name"]

    async def call(*given: Any, **arguments: Any) -> Any:
        body = _bound(call, given, arguments)
        return await api.call(
            dict[str, Any], "POST", "tools", name, body=body, key=new_key(), **whose
        )

    return call


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
