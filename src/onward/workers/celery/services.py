"""The services of a Celery process: the shipped ones, and those named by module:attr."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from onward.core.errors import Invalid
from onward.services.function import Service
from onward.settings import Settings
from onward.workers.local import shipped

NAME = "ONWARD_CELERY_SERVICES"


def services_of(settings: Settings) -> Mapping[str, Service]:
    found = dict(shipped.services(settings))
    for where in settings.celery_services:
        for service in _named(where.strip()):
            found[service.name] = service
    return found


def _named(where: str) -> list[Service]:
    module, _, name = where.partition(":")
    if not module or not name:
        raise Invalid(f"{NAME} has {where!r}", hint="name module:attr, as in jobs.mail:send")
    try:
        thing: Any = import_module(module)
        for part in name.split("."):
            thing = getattr(thing, part)
    except (ImportError, AttributeError) as error:
        raise Invalid(
            f"{NAME} has {where!r}, which cannot be loaded: {error}",
            hint="it is looked for in the worker's working directory and in installed packages",
        ) from error
    return _services_in(thing, where)


def _services_in(thing: Any, where: str) -> list[Service]:
    if isinstance(thing, Service):
        return [thing]
    if isinstance(several := getattr(thing, "services", None), Mapping):
        return list(several.values())  # a Worker of the SDK
    try:
        if callable(body := getattr(thing, "run", None)) and isinstance(
            getattr(thing, "name", None), str
        ):
            return [Service(body, name=thing.name)]  # a Celery task: its function, by its name
        if callable(thing):
            return [Service(thing)]
    except TypeError as error:
        raise Invalid(f"{NAME} has {where!r}: {error}") from error
    raise Invalid(
        f"{NAME} has {where!r}, which is a {type(thing).__name__}",
        hint="name a function, a Celery task, an onward Service or Worker",
    )
