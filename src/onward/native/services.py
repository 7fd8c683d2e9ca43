"""Which services are declared: by operators over the API, by workers as they connect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from onward.core.errors import Invalid, NextStep, NotFound, NotYet, Step
from onward.native.caller import LISTS, Action, Caller, Scope, needs
from onward.services import catalog as catalogs
from onward.services import limits, privacy, schemas
from onward.services.catalog import Catalog, Declared
from onward.wire.base import Name, Page
from onward.wire.problems import fault_of
from onward.wire.services import DeclaredBy, ServiceDeclaration, ServiceView

_decode = msgspec.json.Decoder(ServiceDeclaration).decode


class Services:
    def __init__(
        self, catalog: Catalog, before_undoing: Callable[[], Awaitable[None]], *, encrypts: bool
    ) -> None:
        """`before_undoing` is awaited before a service has a compensation for the first time."""
        self._catalog = catalog
        self._encrypts = encrypts
        self._before_undoing = before_undoing

    @needs(*LISTS)
    async def list(self, caller: Caller) -> Page[ServiceView]:
        return Page(items=tuple(_view(one) for one in await self._catalog.all()))

    @needs(*LISTS)
    async def read(self, caller: Caller, name: str) -> ServiceView:
        for known in await self._catalog.all():
            if known.name == name:
                return _view(known)
        raise NotFound(f"no service is called {name!r}")

    @needs(Scope.OPERATE, Scope.WORK)
    async def declare(
        self, caller: Caller, body: ServiceDeclaration, query: DeclaredBy
    ) -> ServiceView:
        """An operator's replaces all that was declared of the service; a worker's can only add."""
        service = _checked(body)
        await self._check_limits(service)
        if query.by == catalogs.OPERATOR:
            caller.require(Scope.OPERATE)
            await self._expect([service])
            declared = await self._catalog.replace(service)
            await caller.audit(Action.SERVICE_DECLARE, service.name)
            return _view(declared)
        _check_served(caller, service)
        await self._expect([service])
        return _view(await self._catalog.declare(service))

    @needs(Scope.WORK)
    async def declare_all(self, caller: Caller, bodies: Sequence[bytes | msgspec.Raw]) -> None:
        """A worker's, sent as JSON as it connects. All are read before any is declared. Those of
        services that it may not serve are left out: it is refused as their worker, by name.
        """
        try:
            services = [_checked(_decode(body)) for body in bodies]
        except msgspec.DecodeError as error:
            fault = fault_of(str(error), ServiceDeclaration)
            raise Invalid(f"declare{fault.pointer}: {fault.message}") from error
        allowed = [service for service in services if caller.may_serve(service.name)]
        for service in allowed:
            _check_served(caller, service)
            await self._check_limits(service)
        await self._expect(allowed)
        for service in allowed:
            await self._catalog.declare(service)

    async def _check_limits(self, service: Declared) -> None:
        if not service.limits:
            return
        shared = await self._catalog.refreshed()
        unknown = [name for name in service.limits if name not in shared]
        if unknown:
            raise NotYet(
                f"no limit is called {unknown[0]!r}",
                pointer=f"/limits/{service.limits.index(unknown[0])}",
                step=NextStep(Step.PUT_LIMIT, unknown[0]),
            )

    async def _expect(self, services: Sequence[Declared]) -> None:
        """Raises NotYet for what this server cannot do: it would be left undone, unnoticed."""
        if not self._encrypts and any(service.encrypt for service in services):
            raise NotYet(
                "this server has no keys to encrypt with",
                pointer="/encrypt",
                hint="set ONWARD_ENCRYPTION_KEYS; `onward keys encryption new` makes one",
            )
        if any(service.compensate is not None for service in services):
            await self._before_undoing()

    @needs(Scope.OPERATE)
    async def remove(self, caller: Caller, name: Name) -> None:
        await self._catalog.remove(name)
        await caller.audit(Action.SERVICE_DECLARE, name, removed=True)


def _check_served(caller: Caller, service: Declared) -> None:
    """Forbidden: a worker would take task types from services that are not its own, or have the
    server hand work to one."""
    undo = () if service.compensate is None else (service.compensate,)
    names = (service.name, *service.task_types, *undo)
    refused = [name for name in names if not caller.may_serve(name)]
    if refused:
        raise caller.refusal(f"this key may not serve {', '.join(dict.fromkeys(refused))}")


def _checked(body: ServiceDeclaration) -> Declared:
    for field, by_type in (("schema", body.schema), ("output", body.output)):
        for type_, schema in by_type.items():
            pointer = f"/{field}/{type_}"
            if type_ not in body.task_types:  # a typing error, and nothing would be checked
                listed = ", ".join(body.task_types)
                raise Invalid(f"{pointer}: task_types has only {listed}", pointer=pointer)
            schemas.checked(schema, pointer, pointer=pointer)
    for at, path in enumerate(body.sensitive):
        privacy.parse(path, pointer=f"/sensitive/{at}")
    limits.check_costs(body.rate)
    if body.partition_by is not None:
        limits.check_path(body.partition_by, "/partition_by")
    return Declared(**msgspec.structs.asdict(body))


def _view(service: Declared) -> ServiceView:
    return msgspec.convert(service, ServiceView, from_attributes=True)
