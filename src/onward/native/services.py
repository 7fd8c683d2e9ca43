"""Which services are declared: by operators over the API, by workers as they connect."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onward.core.errors import Invalid, NotFound
from onward.native.caller import Caller, Scope, needs
from onward.services import privacy
from onward.services.catalog import OPERATOR, Catalog, Declared
from onward.services.declarations import checker
from onward.wire.base import Page
from onward.wire.problems import fault_of
from onward.wire.services import DeclaredBy, ServiceDeclaration, ServiceView

_decode = msgspec.json.Decoder(ServiceDeclaration).decode


class Services:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @needs(Scope.READ)
    async def list(self, caller: Caller) -> Page[ServiceView]:
        return Page(items=tuple(_view(one) for one in await self._catalog.all()))

    @needs(Scope.READ)
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
        if query.by == OPERATOR:
            caller.require(Scope.OPERATE)
            return _view(await self._catalog.replace(service))
        return _view(await self._catalog.declare(service))

    @needs(Scope.WORK)
    async def declare_all(self, caller: Caller, bodies: Sequence[bytes | msgspec.Raw]) -> None:
        """A worker's, sent as JSON as it connects. All are read before any is declared."""
        try:
            services = [_checked(_decode(body)) for body in bodies]
        except msgspec.DecodeError as error:
            fault = fault_of(str(error))
            raise Invalid(f"declare{fault.pointer}: {fault.message}") from error
        for service in services:
            await self._catalog.declare(service)

    @needs(Scope.OPERATE)
    async def remove(self, caller: Caller, name: str) -> None:
        await self._catalog.remove(name)


def _checked(body: ServiceDeclaration) -> Declared:
    for type_, schema in body.schema.items():
        checker(schema, f"/schema/{type_}", pointer=f"/schema/{type_}")
    for at, path in enumerate(body.sensitive):
        privacy.parse(path, pointer=f"/sensitive/{at}")
    return Declared(**msgspec.structs.asdict(body))


def _view(service: Declared) -> ServiceView:
    return msgspec.convert(service, ServiceView, from_attributes=True)
