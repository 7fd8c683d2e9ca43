"""What a handler may raise, how a service retries, and the fault that the server decides by."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import msgspec
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from onward.client.durations import either, ms
from onward.faults import Fault, bounded_delay, storable_fault

Errors = tuple[type[BaseException], ...]


class Refused(Exception):
    """Raise it in a handler: this will not go better another time."""


class TryAgain(Exception):
    """Raise it in a handler: this may go better later, after a delay, by default the schedule's.

    `after` is the exact delay; `after_ms` is the same in milliseconds. It counts as a retry like
    any other.
    """

    def __init__(
        self, message: str, *, after: timedelta | None = None, after_ms: int | None = None
    ) -> None:
        super().__init__(message)
        self.after_ms: int | None = either(after, after_ms)


class CallFailed(Exception):
    """Raise it in a handler that knows exactly what went wrong.

    The server decides by it whether to try again: `retryable` wins, then the HTTP `status`, then
    `kind`, the name of the error. `details` is JSON that is kept with the task.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "CallFailed",
        status: int | None = None,
        retryable: bool | None = None,
        after: timedelta | None = None,
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.fault: Fault = Fault(
            kind=kind,
            message=message,
            status=status,
            retryable=retryable,
            retry_after_ms=either(after, None),
            details=details,
        )

    @classmethod
    def by(cls, fault: Fault) -> CallFailed:
        """The exception whose fault is this one, as it is."""
        error = cls(fault.message)
        error.fault = fault
        return error


class ResultInvalid(Refused):
    """What the function returned is not what its annotation promises."""


class EffectUnknown(Refused):
    """An earlier attempt began this effect and recorded no end: a person must look."""


MEANT = (Refused, TryAgain, ValidationError)  # a handler means these: no traceback


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often, how soon and after which errors a service is tried again.

    `max` counts retries. An error of `never` ends the task; if `on` names any, so does one that is
    not among them. What is raised as Refused, TryAgain or CallFailed decides for itself.
    """

    max: int | None = None  # None: the server's
    backoff: Literal["exponential", "linear", "constant"] = "exponential"
    first: timedelta = timedelta(seconds=1)
    factor: float = 2
    limit: timedelta = timedelta(minutes=1)
    on: Errors = ()
    never: Errors = ()

    def __post_init__(self) -> None:
        if self.max is not None and self.max < 0:
            raise ValueError("max counts retries: 0 or more")
        if self.backoff not in ("exponential", "linear", "constant"):
            raise ValueError(f"backoff is exponential, linear or constant, not {self.backoff!r}")
        ms(self.first), ms(self.limit)

    def delay_ms(self, failures: int) -> int:
        """How long to wait after so many failures."""
        first, limit = ms(self.first), ms(self.limit)
        if self.backoff == "constant":
            return bounded_delay(min(first, limit))
        if self.backoff == "linear":
            return bounded_delay(min(first * failures, limit))
        try:
            grown = first * self.factor ** (failures - 1)
        except OverflowError:
            return bounded_delay(limit)
        return bounded_delay(min(grown, limit))

    def covers(self, error: BaseException) -> bool:
        """Whether another try is worth it after this error."""
        return not isinstance(error, self.never) and (not self.on or isinstance(error, self.on))


def fault_from(error: BaseException, retry: Retry | None = None, failures: int = 1) -> Fault:
    """A handler's exception as the fault by which retries are decided."""
    fault = _fault_from(error)
    if retry is not None and not isinstance(
        error, (*MEANT, CallFailed, PydanticSerializationError)
    ):
        again = retry.covers(error)
        delay_ms = retry.delay_ms(failures) if again else None
        fault = msgspec.structs.replace(fault, retryable=again, retry_after_ms=delay_ms)
    return storable_fault(fault)


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
