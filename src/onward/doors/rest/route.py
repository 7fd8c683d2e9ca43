"""A use case becomes a route of /api/v2: its signature says what is read, its return type what is
written, and both stand in the OpenAPI document. Never decides anything itself.

Parameters that the path names are read from there; a `Query` from behind the question mark; a
`Body`, or a mapping, from the body, as strict JSON; any other that has a default from the header of
its name. Those that can only be given by name are for other doors. Everything is checked by the
classes in `wire`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from fastapi.routing import APIRoute
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from onward.core import strict_json
from onward.core.errors import Invalid
from onward.doors.callers import caller_of
from onward.doors.errors import refuse
from onward.doors.listing import array
from onward.doors.route import answer, zip_if_long
from onward.doors.streaming import EVENT_STREAM, EventStream, lines_of
from onward.native.caller import Caller, scope_of
from onward.wire import problems
from onward.wire.base import Body, Query

PREFIX = "/api/v2"
REF = "#/components/schemas/{name}"
JSON, PROBLEM = "application/json", "application/problem+json"
# Statuses that any request may be answered with: bad JSON, too large, refused, busy or stopping.
ANY_ERROR = (403, 503)
BODY_ERRORS = (400, 413, 422)

UseCase = Callable[..., Awaitable[Any]]


class Reply(NamedTuple):
    body: Any  # an async iterator: the items of one page, a part at a time
    status: int = 200
    headers: Mapping[str, str] | None = None
    sent: Callable[[Caller], Awaitable[None]] | None = None  # called once the reply is written out


def route(  # noqa: PLR0913 a row of a table
    method: str,
    path: str,
    use_case: UseCase,
    *,
    status: int = 200,
    errors: Sequence[int] = (),
    reply: Callable[[Any], Reply] | None = None,
    statuses: Sequence[int] = (),
    result: Any = None,
    stream: UseCase | None = None,
    tag: str | None = None,
) -> APIRoute:
    """`reply` turns what the use case returns into a reply, where that depends on the result; the
    `statuses` it may have, and the type of its body if it is another, are then named as well.
    `stream` is the use case for a reader who accepts server-sent events; it returns a `Feed`.
    """
    scope_of(use_case)  # one that names none stops the start
    takes = _Signature(path, use_case)
    streams = None
    if stream is not None:
        scope_of(stream)
        streams = _Signature(path, stream)
    statuses = statuses or (status,)

    async def endpoint(request: Request) -> Response:
        caller = caller_of(request.scope)
        if stream and streams and EVENT_STREAM in request.headers.get("accept", ""):
            feed = await stream(caller, **await streams.read(request))
            return EventStream(lines_of(feed), feed.place)
        try:
            arguments = await takes.read(request)
        except _Unreadable as error:
            return refuse(request.url.path, request_id_of(request), error.fault, status=400)
        found = await use_case(caller, **arguments)
        body, code, headers, sent = reply(found) if reply else Reply(found, status)
        if body is None:
            return Response(status_code=204 if code == 200 else code, headers=headers)
        if isinstance(body, AsyncIterator):
            response = await array(body, b'{"items":', b',"next":null}')
        else:
            response = answer(body, code, headers)
        await zip_if_long(request, response)
        if sent is not None and not await request.is_disconnected():
            response.background = BackgroundTask(sent, caller)
        return response

    returned = result or takes.returns
    return APIRoute(
        f"{PREFIX}{path}",
        endpoint,
        methods=[method],
        status_code=statuses[0],
        response_model=None,
        name=use_case.__qualname__,
        operation_id=f"{method.lower()}{re.sub(r'[^a-z]+', '_', path.lower())}".rstrip("_"),
        summary=(inspect.getdoc(use_case) or use_case.__name__).split("\n")[0],
        tags=[tag or path.split("/")[1]],
        openapi_extra=takes.described(returned, statuses, errors, streams),
    )


def request_id_of(request: Request) -> str:
    return getattr(request.state, "request_id", "")


class _Unreadable(Exception):
    """The body is no JSON that may come in: 400, where one that makes no sense is 422."""

    def __init__(self, fault: Invalid) -> None:
        self.fault = fault


class _Signature:
    def __init__(self, path: str, use_case: UseCase) -> None:
        hints = get_type_hints(use_case, include_extras=True)
        self.returns = hints.pop("return")
        parameters = list(inspect.signature(use_case).parameters.values())[1:]  # after the caller
        self.in_path = re.findall(r"{(\w+)", path)
        self._path = {name: hints[name] for name in self.in_path}
        self._query: tuple[str, type[Query]] | None = None
        self._body: tuple[str, Any] | None = None
        self.headers: dict[str, Any] = {}
        self._required = False
        for parameter in parameters:
            if parameter.name in self._path or parameter.kind is parameter.KEYWORD_ONLY:
                continue
            kind = _without_none(hints[parameter.name])
            if _is(kind, Query):
                self._query = (parameter.name, kind)
            elif get_origin(kind) is Mapping or _is(kind, Body):
                self._body = (parameter.name, kind)
                self._required = parameter.default is parameter.empty
            elif parameter.default is None:
                self.headers[parameter.name] = kind
            else:
                raise TypeError(f"{use_case.__qualname__}: nothing says where {parameter.name} is")

    async def read(self, request: Request) -> dict[str, Any]:
        arguments = {
            name: converted(request.path_params[name], kind, at=name, strict=False)
            for name, kind in self._path.items()
        }
        if self._query is not None:
            name, kind = self._query
            arguments[name] = converted(_given(request, kind), kind, strict=False)
        for name, kind in self.headers.items():
            if (given := request.headers.get(header_of(name))) is not None:
                arguments[name] = converted(given, kind, at=header_of(name), strict=False)
        if self._body is not None:
            sent = await request.body()
            if sent or self._required:
                name, kind = self._body
                try:
                    value = strict_json.parse(sent)
                except Invalid as error:
                    raise _Unreadable(error) from error
                if value is not None or self._required:
                    arguments[name] = converted(value, kind)
        return arguments

    def described(
        self,
        returned: Any,
        statuses: Sequence[int],
        errors: Sequence[int],
        streams: _Signature | None,
    ) -> dict[str, Any]:
        """This operation, for the OpenAPI document; `components` adds the shapes it refers to."""
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": schema_of(kind)}
            for name, kind in self._path.items()
        ]
        may = {*ANY_ERROR, *errors, *((404,) if self.in_path else ())}
        if self._query is not None:
            parameters += _query_parameters(self._query[1])
        headers = self.headers | (streams.headers if streams else {})
        parameters += [
            {
                "name": header_of(name),
                "in": "header",
                "required": False,
                "schema": _not_null(schema_of(kind)),
            }
            for name, kind in headers.items()
        ]
        if self._query or headers or any(kind is not str for kind in self._path.values()):
            may.add(422)
        operation: dict[str, Any] = {"parameters": parameters, "responses": {}}
        if self._body is not None:
            content = {JSON: {"schema": schema_of(self._body[1])}}
            operation["requestBody"] = {"required": self._required, "content": content}
            may |= set(BODY_ERRORS)
        for status in statuses:
            done: dict[str, Any] = {"description": "done"}
            if returned is not NoneType and returned is not None:
                done["content"] = {JSON: {"schema": schema_of(returned)}}
            if streams is not None:
                done["content"][EVENT_STREAM] = {"schema": {"type": "string"}}
            operation["responses"][str(status)] = done
        problem = {PROBLEM: {"schema": schema_of(problems.Problem)}}
        for status in sorted(may):
            operation["responses"][str(status)] = {"description": "refused", "content": problem}
        return operation


_used: dict[Any, None] = {}  # the types that stand in the document, in order


def schema_of(kind: Any) -> dict[str, Any]:
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    if options and NoneType not in options:  # msgspec describes no two structs side by side
        return {"anyOf": [schema_of(option) for option in options]}
    _used[kind] = None
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    return dict(schema)


def components() -> dict[str, Any]:
    """The shapes that the routes refer to, each once."""
    _, shapes = msgspec.json.schema_components(list(_used), ref_template=REF)
    return dict(shapes)


def header_of(name: str) -> str:
    return name.replace("_", "-")


def _query_parameters(kind: type[Query]) -> list[dict[str, Any]]:
    found = []
    for field in msgspec.structs.fields(kind):
        schema = schema_of(field.type)
        described = {"name": field.encode_name, "in": "query", "schema": _not_null(schema)}
        found.append({**described, "required": field.required})
    return found


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is absent, never null."""
    options = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    return options[0] if len(options) == 1 else schema


def _given(request: Request, kind: type[Query]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        values = request.query_params.getlist(field.encode_name)
        if values:
            several = get_origin(_without_none(field.type)) in (tuple, list, frozenset)
            given[field.encode_name] = values if several else values[-1]
    return given


def _is(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (one for one in get_args(kind) if one is not NoneType)
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def converted(value: Any, kind: Any, *, at: str = "", strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        fault = problems.fault_of(str(error))
        where = at or (fault.pointer if strict else fault.pointer.removeprefix("/"))
        text = f"{where}: {fault.message}" if where else fault.message
        raise Invalid(text, pointer=where) from None
