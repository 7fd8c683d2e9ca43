"""A typed Python function as a service: its schema, its validation, and how it is called.

Knows nothing of how a task reached it or where its result goes: the workers inside the server use
it like the SDK's.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor as Threads
from contextvars import copy_context
from typing import Any, TypeAlias, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema

from onward.client import docstrings
from onward.client.context import Context, PlainContext
from onward.client.failures import ResultInvalid, Retry, fault_from
from onward.faults import Fault
from onward.wire.limits import Concurrency, RateLimit
from onward.wire.paths import parse_path

Json: TypeAlias = str  # encoded text
LONGEST_DOC = 4_000  # characters that a declaration may have of it
SCALARS = frozenset({bool, int, float, str})


class Service:
    def __init__(  # noqa: PLR0913 all but the function by keyword
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        timeout_ms: int | None = None,
        max_retries: int | None = None,
        retry: Retry | None = None,
        requires_approval: bool = False,
        sensitive: Sequence[str] = (),
        expose: bool = True,
        partition_by: str | None = None,
        concurrency: Concurrency | None = None,
        rate: Sequence[RateLimit] = (),
        limits: Sequence[str] = (),
        encrypt: bool = False,
        compensate: str | None = None,
    ) -> None:
        self.function = function
        self.name: str = name or function.__name__
        signature = inspect.signature(function)
        self._docs = docstrings.read(inspect.getdoc(function) or "", signature.parameters)
        self.doc: str = self._docs.text
        self.timeout_ms = timeout_ms
        own = None if retry is None else retry.max
        self.max_retries: int | None = max_retries if own is None else own
        self.retry = retry
        self.state: Any = None  # what the worker's lifespan yielded
        self.requires_approval = requires_approval
        self.expose = expose
        self.limits: dict[str, Any] = {
            "partition_by": partition_by,
            "concurrency": None if concurrency is None else msgspec.to_builtins(concurrency),
            "rate": msgspec.to_builtins(rate) or None,
            "limits": list(limits) or None,
        }
        self.encrypt = encrypt
        self.compensate = compensate
        parts = (sensitive,) if isinstance(sensitive, str) else tuple(sensitive)
        self.sensitive: tuple[str, ...] = parts
        for path in self.sensitive:
            parse_path(path)
        self.is_async: bool = inspect.iscoroutinefunction(function)
        hints = get_type_hints(function, include_extras=True)
        self._result = TypeAdapter(hints.get("return", Any))
        self._validated = self._result.validator.validate_python
        self._as_json = self._result.serializer.to_json
        self._context_name, self._whole_name, fields = _parameters(function, hints)
        self._fields = tuple(fields)
        self._arguments = signature.replace(
            parameters=[
                each for name, each in signature.parameters.items() if name != self._context_name
            ]
        )
        self._model: type[BaseModel] | None = None
        if self._whole_name is None:
            self._model = create_model(
                self.name,
                __config__=ConfigDict(extra="forbid", title=self.name, hide_input_in_errors=True),
                **fields,
            )
        self._whole = TypeAdapter(hints.get(self._whole_name or "", Any))

    @property
    def schema(self) -> Mapping[str, Any]:
        """JSON Schema of the payload, with what the docstring says of each parameter."""
        if self._model is None:
            return self._whole.json_schema()
        schema = self._model.model_json_schema()
        for name, part in schema.get("properties", {}).items():
            if name in self._docs.parameters:  # what stands in the annotation itself wins
                part.setdefault("description", self._docs.parameters[name])
        return schema

    def declaration(self) -> dict[str, Any]:
        """As a worker sends it to the server."""
        fields: dict[str, Any] = {
            "name": self.name,
            "task_types": [self.name],
            "schema": {self.name: self.schema},
            "description": self.doc[:LONGEST_DOC] or None,
            "output": self._output_schema(),
            "requires_approval": self.requires_approval or None,
            "sensitive": list(self.sensitive) or None,
            "timeout_ms": self.timeout_ms,
            "max_retries": self.max_retries,
            "expose": None if self.expose else False,
            **self.limits,
            "encrypt": self.encrypt or None,
            "compensate": self.compensate,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _output_schema(self) -> Mapping[str, Any] | None:
        """Of the result, by task type; None: its annotation says nothing that JSON Schema could."""
        try:
            schema = self._result.json_schema(mode="serialization")
        except PydanticInvalidForJsonSchema:
            return None
        return {self.name: schema} if schema else None

    def payload(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a caller sends for these arguments; TypeError if the function does not take them."""
        try:
            self._arguments.bind_partial(*args, **kwargs)  # a wrong name, before a missing one
            given = self._arguments.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        return given if self._whole_name is None else given.get(self._whole_name)

    def read(self, result: Any) -> Any:
        """A result that came as JSON, as the type that the function returns."""
        return self._result.validate_json(msgspec.json.encode(result))

    def arguments(self, payload: Json) -> dict[str, Any]:
        """The payload as the function's keyword arguments; ValidationError if it does not fit."""
        if self._whole_name is not None:
            return {self._whole_name: self._whole.validate_json(payload)}
        assert self._model is not None  # noqa: S101
        model = self._model.model_validate_json("{}" if payload == "null" else payload)
        return {name: getattr(model, name) for name in self._fields}

    async def call(
        self, payload: Json, context: Context, *, threads: Threads | None = None
    ) -> Json:
        """Run it once. Async functions run here; plain ones in a thread, so that nothing blocks."""
        arguments = self.arguments(payload)
        if self.is_async:
            if self._context_name is not None:
                arguments[self._context_name] = context
            value = await self.function(**arguments)
        else:
            loop = asyncio.get_running_loop()
            if self._context_name is not None:
                arguments[self._context_name] = PlainContext(context, loop)
            here = copy_context()  # its thread sees what is set around this call: a trace, say
            value = await loop.run_in_executor(
                threads, lambda: here.run(self.function, **arguments)
            )
        return self._written(value)

    def _written(self, value: Any) -> Json:
        """As JSON, if it is what the annotation promises. The value itself is not repeated."""
        try:
            kept = self._validated(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = "".join(f"[{part!r}]" for part in first["loc"])
            raise ResultInvalid(
                f"{self.name} returned what is not as annotated: result{where}: {first['msg']}"
            ) from None
        # A model that was changed after it was made is not validated again: its writer notices.
        doubt: Any = False if kept is None or type(kept) in SCALARS else "error"
        return self._as_json(kept, by_alias=True, warnings=doubt).decode()

    def fault(self, error: BaseException, attempt: int) -> Fault:
        """What an attempt that raised this reports."""
        return fault_from(error, self.retry, attempt)

    async def close(self) -> None:
        """It is not called any more: release what it holds."""


def _parameters(
    function: Callable[..., Any], hints: Mapping[str, Any]
) -> tuple[str | None, str | None, dict[str, Any]]:
    """The context's name, the name that takes the whole payload, and the fields of the payload."""
    context: str | None = None
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{function.__name__}: a service cannot take *{name}")
        hint = hints.get(name, Any)
        if name == "ctx" or hint in (Context, PlainContext) or get_origin(hint) is Context:
            context = name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hint, default)
    # A lone parameter called payload, or typed as a model, takes the payload as it came.
    if len(fields) == 1:
        (only, (hint, _)) = next(iter(fields.items()))
        if only == "payload" or (isinstance(hint, type) and issubclass(hint, BaseModel)):
            return context, only, {}
    return context, None, fields
