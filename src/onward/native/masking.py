"""Sensitive parts, hidden behind a mask from readers who may not see them, or asked for that
(`masked=true`, as the page does).

Decides which paths hold for a task: those of its type's service and of its queue's. What a flow
passes on may lie anywhere in its runs, so there the paths of all services hold, and hold anywhere.
From whom they are hidden: the caller does (`Caller.masks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from onward.core.contract import Page
from onward.core.task import Event, Json, Task
from onward.flow.runs import NODE, PROFILE
from onward.native.batch_view import decode_terms, is_batch
from onward.native.caller import Caller
from onward.services import privacy
from onward.services.catalog import Catalog
from onward.wire.paths import ANY, Path
from onward.wire.runs import RunView

FLOW = "flow:"  # how the types of runs, and of what they ask people, begin
EVERY_KEY: Path = (ANY,)


class Masking:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def task(self, task: Task, caller: Caller, asked: bool = False) -> Task:
        if not caller.masks(task, asked):
            return task
        paths = await self._paths(task)
        if not paths:
            return task
        return privacy.mask_task(task, paths, anywhere=task.profile in (PROFILE, NODE))

    async def page(self, page: Page[Task], caller: Caller, asked: bool = False) -> Page[Task]:
        return Page([await self.task(task, caller, asked) for task in page.items], page.next)

    async def events(
        self, task: Task, events: Sequence[Event], caller: Caller, asked: bool = False
    ) -> Sequence[Event]:
        paths = await self._paths(task) if caller.masks(task, asked) else ()
        return [privacy.mask_event(event, paths) for event in events] if paths else events

    async def refuse(self, task: Task, payload: Any) -> None:
        """Invalid: the payload holds a mask that stood in for a sensitive part of this task."""
        inside = task.profile in (PROFILE, NODE)
        privacy.refuse_masks(payload, await self._paths(task), "payload", anywhere=inside)

    async def refuse_in_run(self, value: Any, at: str) -> None:
        privacy.refuse_masks(value, await self._in_flows(), at, anywhere=True)

    async def payload(
        self, type_: str | None, queue: str | None, payload: Any, masked: bool = True
    ) -> Any:
        """Of something that will be a task of this type, on this queue or on the type's own."""
        if not masked or type_ is None:
            return payload
        paths = await self._catalog.sensitive(type_, queue)
        return privacy.mask(payload, paths) if paths else payload

    async def params(self, params: Any, masked: bool = True) -> Any:
        """Of a run that will be."""
        paths = await self._in_flows() if masked else ()
        return _parts(params, paths) if paths else params

    async def run(self, run: RunView, masked: bool = True) -> RunView:
        """A run as it is shown: what it was given, what it holds, and what came out of it."""
        paths = await self._in_flows() if masked else ()
        if not paths:
            return run
        held = {name: getattr(run, name) for name in ("payload", "result", "params", "shared")}
        plain = msgspec.json.decode(msgspec.json.encode(held))
        shown = {name: _parts(part, paths) for name, part in plain.items()}
        return msgspec.structs.replace(run, **shown)

    async def texts(self, masked: bool, *texts: Json) -> Sequence[Json]:
        """Inputs and outputs of a run's nodes; an empty one is none."""
        paths = await self._in_flows() if masked else ()
        if not paths:
            return texts
        return [text and privacy.mask_text(text, paths, anywhere=True) for text in texts]

    async def _in_batch(self, task: Task) -> Sequence[Path]:
        """What it hands in at its end is a submission, with its own sensitive parts."""
        try:
            body = decode_terms(task.payload).on_complete
        except msgspec.DecodeError:  # it does not open here: a list shows why instead
            return [()]
        if body is None:
            return ()
        paths = await self._catalog.sensitive(body.type, body.queue)
        return [("on_complete", "payload", *path) for path in paths]

    async def _paths(self, task: Task) -> Sequence[Path]:
        if is_batch(task):
            return await self._in_batch(task)
        if task.type.startswith(FLOW):
            return await self._in_flows()
        return await self._catalog.sensitive(task.type, task.queue)

    async def _in_flows(self) -> Sequence[Path]:
        return [path or EVERY_KEY for path in await self._catalog.all_sensitive()]


def _parts(value: Any, paths: Sequence[Path]) -> Any:
    return privacy.mask(value, paths, anywhere=True)
