"""A typed Python function as a service: its schema, its validation, and how it is called.

Shared by the built-in worker in the server and the SDK's worker outside.
Knows nothing of how a task reached it or where its result goes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor as Threads
from contextvars import copy_context
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Protocol, get_type_hints, runtime_checkable

import msgspec
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic_core import PydanticSerializationError

from onward.core.task import Fault, Json, storable_fault
from onward.services import privacy


class Refused(Exception):
    """Raise it in a handler: this will not go better another time."""


class TryAgain(Exception):
    """Raise it in a handler: this may go better later, after a delay, by default the schedule's.

    `after` is the exact delay, a timedelta or milliseconds; `after_ms` is the same. It counts as a
    retry like any other.
    """

    def __init__(
        self, message: str, *, after: timedelta | int | None = None, after_ms: int | None = None
    ) -> None:
        super().__init__(message)
        if isinstance(after, timedelta):
            after = round(after.total_seconds() * 1000)
        self.after_ms = after_ms if after is None else after


SAYING_NO = (Refused, TryAgain, ValidationError)  # a handler means it: no traceback
SCALARS = frozenset({bool, int, float, str})


class CallFailed(Exception):
    """Raise it in a handler that knows exactly what went wrong: with status, class or a wait."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class ResultInvalid(Refused):
    """What the function returned is not what its annotation promises."""


class EffectUnknown(Refused):
    """An earlier attempt began this effect and recorded no end: a person must look."""


@runtime_checkable
class Context(Protocol):
    """What a running handler can do besides returning."""

    task_id: str
    attempt: int
    key: str  # stable over attempts: pass it to services that deduplicate by it

    @property
    def cancelled(self) -> bool: ...

    def progress(self, value: float, message: str | None = None) -> Awaitable[None]: ...

    def emit(self, data: Any) -> Awaitable[None]:
        """Partial output, seen at once by those who follow the task."""
        ...

    def once(
        self, name: str, effect: Callable[[], Any], *, repeat_unknown: bool = False
    ) -> Awaitable[Any]:
        """Do something to the outside world once per task, over retry, reclaim and replay."""
        ...


class PlainContext:
    """The same for a plain function in a thread: its calls return when they are done."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop
        self.task_id = context.task_id
        self.attempt = context.attempt
        self.key = context.key

    @property
    def cancelled(self) -> bool:
        return self._context.cancelled

    def progress(self, value: float, message: str | None = None) -> None:
        self._wait(self._context.progress(value, message))

    def emit(self, data: Any) -> None:
        self._wait(self._context.emit(data))

    def once(self, name: str, effect: Callable[[], Any], *, repeat_unknown: bool = False) -> Any:
        """Begun and finished by the event loop; the effect itself runs in this thread."""
        turns: SimpleQueue[asyncio.Future[Any] | None] = SimpleQueue()

        async def elsewhere() -> Any:
            ran = self._loop.create_future()
            turns.put(ran)
            value, error = await ran
            if error is not None:
                raise error
            return value

        noted = asyncio.run_coroutine_threadsafe(
            _awaited(self._context.once(name, elsewhere, repeat_unknown=repeat_unknown)), self._loop
        )
        noted.add_done_callback(lambda _: turns.put(None))
        ran = turns.get()
        if ran is not None:
            outcome: tuple[Any, Exception | None]
            try:
                outcome = effect(), None
            except Exception as error:
                outcome = None, error
            except BaseException:  # SystemExit would end the loop: here it only ends the handler
                self._loop.call_soon_threadsafe(ran.cancel)
                raise
            self._loop.call_soon_threadsafe(_set_result, ran, outcome)
        return noted.result()

    def _wait(self, work: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop).result()


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def _set_result(ran: asyncio.Future[Any], outcome: Any) -> None:
    if not ran.done():  # canceled meanwhile
        ran.set_result(outcome)


class Service:
    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        timeout_ms: int | None = None,
        max_retries: int | None = None,
        requires_approval: bool = False,
        sensitive: Sequence[str] = (),
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self.doc = inspect.getdoc(function) or ""
        self.timeout_ms = timeout_ms
        self.max_retries = max_retries
        self.requires_approval = requires_approval
        self.sensitive = (sensitive,) if isinstance(sensitive, str) else tuple(sensitive)
        for path in self.sensitive:
            privacy.parse(path)
        self.is_async = inspect.iscoroutinefunction(function)
        hints = get_type_hints(function, include_extras=True)
        self._result = TypeAdapter(hints.get("return", Any))
        self._context_name, self._whole_name, fields = _parameters(function, hints)
        self._fields = tuple(fields)
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
        """JSON Schema of the payload."""
        if self._model is not None:
            return self._model.model_json_schema()
        return self._whole.json_schema()

    def declaration(self) -> dict[str, Any]:
        """As a worker sends it to the server."""
        fields: dict[str, Any] = {
            "name": self.name,
            "task_types": [self.name],
            "schema": {self.name: self.schema},
            "requires_approval": self.requires_approval or None,
            "sensitive": list(self.sensitive) or None,
            "timeout_ms": self.timeout_ms,
            "max_retries": self.max_retries,
        }
        return {name: value for name, value in fields.items() if value is not None}

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
            kept = self._result.validator.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = "".join(f"[{part!r}]" for part in first["loc"])
            raise ResultInvalid(
                f"{self.name} returned what is not as annotated: result{where}: {first['msg']}"
            ) from None
        # A model that was changed after it was made is not validated again: its writer notices.
        doubt: Any = False if kept is None or type(kept) in SCALARS else "error"
        return self._result.serializer.to_json(kept, by_alias=True, warnings=doubt).decode()

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
        if hint in (Context, PlainContext) or name == "ctx":
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


def fault_from(error: BaseException) -> Fault:
    """A handler's exception as the fault by which retries are decided."""
    return storable_fault(_fault_from(error))


def _fault_from(error: BaseException) -> Fault:
    match error:
        case ValidationError():
            first = error.errors(include_url=False, include_input=False)[0]
            where = "/".join(str(part) for part in first["loc"])
            details = error.json(include_url=False, include_input=False)
            return Fault(
                kind="SchemaInvalid",
                message=f"{where}: {first['msg']}" if where else first["msg"],
                details=msgspec.Raw(details.encode()),
            )
        case CallFailed():
            return error.fault
        case Refused():
            return Fault(kind=type(error).__name__, message=str(error), retryable=False)
        case TryAgain():
            return Fault(
                kind="TryAgain", message=str(error), retryable=True, retry_after_ms=error.after_ms
            )
        case PydanticSerializationError():
            return Fault(kind="ResultInvalid", message=str(error), retryable=False)
        case TimeoutError() | ConnectionError():
            return Fault(kind="NetworkTimeout", message=str(error) or type(error).__name__)
        case _:
            return _fault_by_status(error)


def _fault_by_status(error: BaseException) -> Fault:
    status = getattr(error, "status_code", None) or getattr(error, "status", None)
    return Fault(
        kind=type(error).__name__,
        message=str(error) or type(error).__name__,
        status=status if isinstance(status, int) else None,
    )
