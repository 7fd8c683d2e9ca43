"""A use case becomes a route: its signature says what is read, its return type what is written, and
both stand in the OpenAPI document. Never decides anything itself.

Parameters that the path names are read from there; a `Query` from behind the question mark; any
other struct, or a mapping, from the body, as strict JSON; `bytes` are the body as it came; any
other that has a default from the header of its name. Those that can only be given by name are for
other doors. Everything is checked by the classes in `wire`, or those of a seed's door.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onward.core import strict_json
from onward.core.errors import Invalid
from onward.doors.access import under_scheme
from onward.doors.callers import caller_of
from onward.doors.errors import refuse, request_id_of, style_of
from onward.doors.json_reply import answer, zip_if_long
from onward.doors.listing import array
from onward.doors.refusal import JSON
from onward.doors.streaming import EVENT_STREAM, EventStream, lines_of
from onward.native.caller import Caller, Scope, scopes_of
from onward.native.places import Feed
from onward.wire import problems
from onward.wire.base import Query

PREFIX = "/api/v2"
REF = "#/components/schemas/{name}"
# What any path may be refused with stands in guard.STATUSES, and is added by document.py.
BODY_ERRORS = (400, 422)

UseCase = Callable[..., Awaitable[Any]]


class Reply(NamedTuple):
    body: Any  # an async iterator: the items of one page, a part at a time
    status: int = 200
    headers: Mapping[str, str] | None = None
    sent: Callable[[Caller], Awaitable[None]] | None = None  # called once the reply is written out
    cookie: str | None = None


class UseCaseRoute(Route):
    """What the OpenAPI document, and the check of scopes, need to know of a route."""

    operation_id: str
    summary: str
    tag: str
    scopes: tuple[Scope, ...]
    described: Callable[[], dict[str, Any]]  # when the document is first read: it takes a while


def route(  # noqa: PLR0913 a row of a table
    method: str,
    path: str,
    use_case: UseCase,
    *,
    status: int = 200,
    errors: Sequence[int | str] = (),
    reply: Callable[[Any], Reply] | None = None,
    statuses: Sequence[int] = (),
    result: Any = None,
    stream: UseCase | None = None,
    accepts: Any = Any,
    media: str = JSON,
    events: Mapping[str, Any] | None = None,
    prefix: str = PREFIX,
    tag: str | None = None,
    hidden: bool = False,
) -> UseCaseRoute:
    """`reply` turns what the use case returns into a reply, where that depends on the result; the
    `statuses` it may have, and the type of its body if it is another (or a tuple of several), are
    then named as well. `accepts` is the type of a body that the use case reads by itself; `events`
    are those of a stream, by name; a `media` that is not JSON is sent as it is returned. `stream`
    is the use case for a reader that accepts server-sent events: it returns a `Feed`.
    """
    scopes = scopes_of(use_case)  # one that is not marked stops the start
    takes = _Signature(path, use_case, accepts)
    streams = None
    if stream is not None:
        scopes_of(stream)
        streams = _Signature(path, stream, accepts)
    if streams is not None:
        events = events or {}
    statuses = statuses or (204 if takes.returns is NoneType and status == 200 else status,)

    async def endpoint(request: Request) -> Response:
        caller = caller_of(request.scope)
        if scopes:  # before anything is read: who may not call learns nothing of what it takes
            caller.require(*scopes)
        try:
            if stream and streams and EVENT_STREAM in request.headers.get("accept", ""):
                found = await stream(caller, **await streams.read(request))
            else:
                found = await use_case(caller, **await takes.read(request))
        except _Unreadable as error:
            path, request_id = request.url.path, request_id_of(request)
            return refuse(path, request_id, error.fault, status=error.status)
        if isinstance(found, Feed):
            return EventStream(lines_of(found), found.place)
        return await _response(request, reply(found) if reply else Reply(found, statuses[0]), media)

    full = f"{prefix}{path}"
    name = re.sub(r"[^a-z0-9]+", "_", (path if prefix == PREFIX else f"{tag}{full}").lower())

    def described() -> dict[str, Any]:
        return takes.described(
            {status: _content(result or takes.returns, media, events) for status in statuses},
            {status: error_content(full) for status in {*errors, *takes.faults(streams)}},
            streams,
        )

    made = UseCaseRoute(full, endpoint, name=use_case.__qualname__, include_in_schema=not hidden)
    made.methods = {method}  # not HEAD, which the guard turns into a GET
    made.operation_id = f"{method.lower()}_{name.strip('_')}"
    made.summary = (inspect.getdoc(use_case) or use_case.__name__).split("\n")[0]
    made.tag = tag or path.split("/")[1]
    made.scopes = scopes
    made.described = described
    return made


async def _response(request: Request, reply: Reply, media: str) -> Response:
    body, status, headers, sent, cookie = reply
    if cookie is not None:
        secure = "; Secure" if request.url.scheme == "https" else ""
        named = under_scheme(cookie, request.url.scheme)
        headers = {**(headers or {}), "set-cookie": f"{named}{secure}"}
    if isinstance(body, Response):
        return body
    if body is None:
        return Response(status_code=status, headers=headers)
    if media != JSON:
        return Response(body, status, headers, media_type=media)
    if isinstance(body, AsyncIterator):
        response = await array(body, b'{"items":', b',"next":null}')
    else:
        response = answer(body, status, headers)
    await zip_if_long(request, response)
    if sent is not None and not await request.is_disconnected():
        response.background = BackgroundTask(sent, caller_of(request.scope))
    return response


class _Unreadable(Exception):
    """No JSON that may come in: 400. Parameters that make no sense: 422, whatever the door."""

    def __init__(self, fault: Invalid, status: int) -> None:
        self.fault, self.status = fault, status


@cache  # a use case may have several paths, and a process several applications
def _declared(function: Callable[..., Any]) -> tuple[Mapping[str, Any], list[inspect.Parameter]]:
    hints = get_type_hints(function, include_extras=True)
    return hints, list(inspect.signature(function).parameters.values())


class _Signature:
    def __init__(self, path: str, use_case: UseCase, accepts: Any) -> None:
        function = getattr(use_case, "__func__", use_case)
        hints, parameters = _declared(function)
        self.returns = hints["return"]
        self.in_path = re.findall(r"{(\w+)", path)
        self._path = {name: hints[name] for name in self.in_path}
        self._query: tuple[str, type[Query]] | None = None
        self._body: tuple[str, Any] | None = None
        self._accepts = accepts
        self.headers: dict[str, Any] = {}
        self._required = False
        for parameter in parameters[1 if function is use_case else 2 :]:  # after self, the caller
            if parameter.name in self._path or parameter.kind is parameter.KEYWORD_ONLY:
                continue
            kind = _without_none(hints[parameter.name])
            if _is(kind, Query):
                self._query = (parameter.name, kind)
            elif get_origin(kind) is Mapping or _is(kind, msgspec.Struct, bytes):
                self._body = (parameter.name, kind)
                self._required = parameter.default is parameter.empty
                if kind is not bytes:
                    self._accepts = kind
            elif parameter.default is None:
                self.headers[parameter.name] = hints[parameter.name]
            else:
                raise TypeError(f"{use_case.__qualname__}: nothing says where {parameter.name} is")

    async def read(self, request: Request) -> dict[str, Any]:
        try:
            arguments = {
                name: converted(request.path_params[name], kind, at=name, strict=False)
                for name, kind in self._path.items()
            }
            if self._query is not None:
                name, kind = self._query
                arguments[name] = converted(_given(request, kind), kind, strict=False)
            for name, kind in self.headers.items():
                given = request.headers.get(header_of(name))
                arguments[name] = converted(given, kind, at=header_of(name))
        except Invalid as error:
            raise _Unreadable(error, 422) from error
        if self._body is not None:
            name, kind = self._body
            sent = await request.body()
            if kind is bytes:
                arguments[name] = sent
            elif sent or self._required:
                try:
                    value = strict_json.parse(sent)
                except Invalid as error:
                    raise _Unreadable(error, 400) from error
                if value is not None or self._required:
                    arguments[name] = converted(value, kind)
        return arguments

    def described(
        self,
        done: Mapping[int | str, Mapping[str, Any]],
        refused: Mapping[int | str, Mapping[str, Any]],
        streams: _Signature | None = None,
    ) -> dict[str, Any]:
        """This operation, for the OpenAPI document; `components` adds the shapes it refers to."""
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": schema_of(kind)}
            for name, kind in self._path.items()
        ]
        if self._query is not None:
            parameters += _query_parameters(self._query[1])
        for name, kind in {**self.headers, **(streams.headers if streams else {})}.items():
            described = {"name": header_of(name), "in": "header", "required": False}
            parameters.append({**described, "schema": _not_null(schema_of(kind))})
        operation: dict[str, Any] = {"parameters": parameters, "responses": {}}
        if self._body is not None:
            accepted = {JSON: {"schema": schema_of(self._accepts)}}
            operation["requestBody"] = {"required": self._required, "content": accepted}
        for status in sorted({*done, *refused}, key=str):
            response: dict[str, Any] = {"description": "done" if status in done else "refused"}
            if content := {**done.get(status, {}), **refused.get(status, {})}:
                response["content"] = content
            operation["responses"][str(status)] = response
        return operation

    def faults(self, streams: _Signature | None = None) -> set[int]:
        """The statuses of a request that cannot be read, or names nothing."""
        found = {404} if self.in_path else set[int]()
        headers = self.headers or (streams and streams.headers)
        if self._query or headers or any(kind is not str for kind in self._path.values()):
            found.add(422)
        return found | set(BODY_ERRORS) if self._body is not None else found


def _content(returned: Any, media: str, events: Mapping[str, Any] | None) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if media != JSON:
        content[media.partition(";")[0]] = {"schema": {"type": "string"}}
    elif isinstance(returned, tuple):
        content[JSON] = {"schema": {"anyOf": [schema_of(kind) for kind in returned]}}
    elif returned not in (None, NoneType, Feed):
        content[JSON] = {"schema": schema_of(returned)}
    if events is not None:
        shapes = {name: schema_of(kind) for name, kind in events.items()}
        content[EVENT_STREAM] = {"schema": {"type": "string"}, "x-events": shapes}
    return content


def error_content(path: str) -> dict[str, Any]:
    style = style_of(path)
    return {style.media: {"schema": schema_of(style.shape)}}


_used: dict[Any, None] = {}  # the types that stand in the document, in order


def schema_of(kind: Any) -> dict[str, Any]:
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    if sum(_is(get_origin(one) or one, msgspec.Struct) for one in options) > 1:
        return {"anyOf": [schema_of(one) for one in options]}  # msgspec describes no such union
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
    if not request.scope.get("query_string"):
        return given
    for name, several in _members(kind):
        values = request.query_params.getlist(name)
        if values:
            given[name] = values if several else values[-1]
    return given


@cache  # what msgspec tells of a type it works out anew each time
def _members(kind: type[Query]) -> Sequence[tuple[str, bool]]:
    """What may be given of it, and whether several times."""
    return [
        (field.encode_name, get_origin(_without_none(field.type)) in (tuple, list, frozenset))
        for field in msgspec.structs.fields(kind)
    ]


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (one for one in get_args(kind) if one is not NoneType)
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is(kind: Any, *bases: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, bases)


def converted(value: Any, kind: Any, *, at: str = "", strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        fault = problems.fault_of(str(error), kind)
        where = at or (fault.pointer if strict else fault.pointer.removeprefix("/"))
        text = f"{where}: {fault.message}" if where else fault.message
        raise Invalid(text, pointer=where) from None
