"""The services of a Celery process: the shipped ones, and those named by module:attr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor as Threads
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from onward.client.context import Context
from onward.client.service import Json, Service
from onward.core.errors import Invalid
from onward.settings import Settings
from onward.workers.local import shipped

NAME = "ONWARD_CELERY_SERVICES"


class TaskService(Service):
    """A Celery task: its function, by its name. `self.request` of a bound one has id and retries.

    It is still called directly, as Celery says: `self.retry()` raises, and sends no message.
    """

    def __init__(self, task: Any, body: Callable[..., Any]) -> None:
        self._task = task
        self._request: ContextVar[Mapping[str, Any]] = ContextVar("request")
        super().__init__(self._requested(body), name=task.name)

    async def call(
        self, payload: Json, context: Context, *, threads: Threads | None = None
    ) -> Json:
        self._request.set({"id": context.task_id, "retries": context.attempt - 1})
        return await super().call(payload, context, threads=threads)

    def _requested(self, body: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def requested() -> Iterator[None]:
            # In the thread of the function: the stack of requests is a thread's own.
            self._task.push_request(called_directly=True, **self._request.get({}))
            try:
                yield
            finally:
                self._task.pop_request()

        @wraps(body)
        def run(*args: Any, **kwargs: Any) -> Any:
            with requested():
                return body(*args, **kwargs)

        @wraps(body)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with requested():
                return await body(*args, **kwargs)

        return run_async if iscoroutinefunction(body) else run


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
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as `python -m celery` has it, and `celery` only while it starts
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
            return [TaskService(thing, body)]
        if callable(thing):
            return [Service(thing)]
    except TypeError as error:
        raise Invalid(f"{NAME} has {where!r}: {error}") from error
    raise Invalid(
        f"{NAME} has {where!r}, which is a {type(thing).__name__}",
        hint="name a function, a Celery task, an onward Service or Worker",
    )
