"""What Postgres and its driver raise, in the ledger's words."""

from __future__ import annotations

import asyncpg
import structlog

from onward.core.errors import LedgerUnavailable, NotLetIn
from onward.ledgers.sql.store import SecondFinal
from onward.urls import shown

log = structlog.get_logger("onward.postgres")

REFUSED = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)
AWAY = (
    OSError,  # TimeoutError is one
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,  # the connection is closed
    asyncpg.OperatorInterventionError,  # it is being stopped, or started
    asyncpg.InsufficientResourcesError,  # a full disk, too many connections
    asyncpg.ReadOnlySQLTransactionError,  # a standby
    asyncpg.InternalServerError,
    asyncpg.InternalClientError,  # cut in mid-operation: the driver is out of step
)


def translated(error: BaseException) -> BaseException:
    match error:
        case asyncpg.UniqueViolationError(constraint_name="event_final"):
            return SecondFinal()
        case asyncpg.DataError():  # what one item holds cannot be kept
            return ValueError(str(error))
        case ValueError():  # the driver's own word for the same, though it is an InterfaceError
            return error
        case _:
            return away(error) if isinstance(error, AWAY) else error


def away(error: BaseException) -> LedgerUnavailable:
    log.warning("Postgres does not answer as it should", error=shown(repr(error)))
    reason = shown(str(error)) or repr(error)
    if isinstance(error, REFUSED):
        return NotLetIn(f"Postgres refuses us: {reason}")
    return LedgerUnavailable(f"Postgres does not answer: {reason}")
