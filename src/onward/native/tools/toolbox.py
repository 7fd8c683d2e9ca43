"""The tools at work: arguments in, an answer out, and with it what the session was not yet told.

Whoever asks for a task must name the session it belongs to; another's is not found, as one that
never was. Never decides what there is to call (tools.py) nor how it is spoken (tools_api.py,
mcp.py).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NotFound
from onward.core.follow import history
from onward.core.phase import Phase, phase
from onward.core.task import FINAL, FINAL_EVENTS, Instant, State, Task, fault_of
from onward.doors.rest.sessions import Owned, Wanted, is_session
from onward.doors.vocabulary import AGENTS
from onward.native.explain import expected_end, explained
from onward.native.notifications.notices import TYPES, Kept, Notices, late, notice_of
from onward.native.reads import get_task
from onward.native.submission import Submissions
from onward.native.tools.tools import LIST, MOST_LISTED, RESULT, Kind, Tool, tools_of
from onward.native.views import ending_text, progress_of, raw
from onward.services.catalog import Catalog, Declared
from onward.wire.tasks import Submit
from onward.wire.times import iso
from onward.workers.roster import Roster

LAST_EVENTS = 8  # the end is among them
LAST_OUTPUT = 200  # events among which what a task has put out so far is looked for
MOST_OUTPUT = 20  # pieces of it in one answer: the newest
MOST_TOLD = 20  # notices in one answer; the rest come with the next one


class Answer(msgspec.Struct, frozen=True):
    """What a tool says, and the notices it tells of: they are read once it has arrived."""

    said: Mapping[str, Any]
    session: str | None = None
    told: Sequence[Kept] = ()
    ending: Task | None = None  # the answer is this task's end: no notice need say it again

    @property
    def body(self) -> Mapping[str, Any]:
        return {**self.said, "notifications": [kept.notice for kept in self.told]}


class Toolbox:
    def __init__(
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        catalog: Catalog,
        submissions: Submissions,
        notices: Notices,
    ) -> None:
        self.dispatcher = dispatcher
        self._roster = roster
        self._catalog = catalog
        self._submissions = submissions
        self._notices = notices
        self._owned = Owned(dispatcher)
        self._made: dict[tuple[bool, bool], tuple[Sequence[Declared], Sequence[Tool]]] = {}

    async def tools(self, *, bound: bool, direct: bool = False) -> Sequence[Tool]:
        services = await self._catalog.all()
        made_of, tools = self._made.get((bound, direct), (None, ()))
        if made_of != services:  # else as before: schemas are not rewritten with every call
            tools = tools_of(services, bound=bound, direct=direct)
            self._made[bound, direct] = (services, tools)
        return tools

    async def find(self, name: str, *, direct: bool = False) -> Tool:
        for tool in await self.tools(bound=False, direct=direct):
            if tool.name == name:
                return tool
        raise NotFound(f"no tool is called {name!r}", hint="GET /api/v2/tools lists what there is")

    async def call(
        self, tool: Tool, arguments: Mapping[str, Any], *, bound: str | None, key: str | None = None
    ) -> Answer:
        """`bound` names the session whose tools these are, if they are somebody's."""
        _check_names(tool, arguments)
        session = session_among(arguments, bound)
        return await self.answered(await self._said(tool, arguments, session, key), session)

    async def _said(
        self, tool: Tool, arguments: Mapping[str, Any], session: str | None, key: str | None
    ) -> Mapping[str, Any]:
        match tool.kind:
            case Kind.HAND_OFF:
                return await self._hand_off(tool, arguments, _needed(session), key)
            case Kind.RESULT:
                return await self.told_of(await self.task(_id(arguments), session))
            case Kind.LIST:
                return await self._listed(arguments, _needed(session))
            case Kind.CANCEL:
                return await self._canceled(await self.task(_id(arguments), session))
            case Kind.CALL:
                # Only the MCP door tells of these tools, and it waits for them itself.
                raise NotFound(f"no tool is called {tool.name!r}")

    async def answered(
        self, said: Mapping[str, Any], session: str | None, ending: Task | None = None
    ) -> Answer:
        if session is None:
            return Answer(said)
        about = None if ending is None else ending.id
        unread = await self._notices.unread(session)
        told = [kept for kept in unread if kept.notice.task_id != about]
        return Answer(said, session, told[:MOST_TOLD], ending)

    async def arrived(self, answer: Answer) -> None:
        """The caller has it: what it told of need not be told again."""
        session = answer.session
        if session is None:
            return
        self._notices.deliveries.told("interaction", len(answer.told))
        known = list(answer.told)
        if answer.ending is not None:
            known += await self._notice_of_end(session, answer.ending)
        acks = [self._notices.ack(session, kept.id, told_by="interaction") for kept in known]
        # One that is gone by now, or that the ledger cannot take, is told again or not at all.
        await asyncio.gather(*acks, return_exceptions=True)

    async def _notice_of_end(self, session: str, task: Task) -> Sequence[Kept]:
        """Written if it is not yet: whoever reads the log would only do so in a moment."""
        after = max(0, task.events - LAST_EVENTS)
        events = history(self.dispatcher.backend.tasks, task.id, after=after)
        now = self.dispatcher.clock.now()
        found = [
            Kept(notice_of(task, event), event.at, now)
            async for event in events
            if event.type in TYPES and event.type in FINAL_EVENTS
        ]
        for kept in found:
            await self._notices.keep(session, kept)
        return found

    async def submit(
        self, type_: str, payload: Any, *, session: str | None, key: str | None = None
    ) -> Task:
        body = Submit(type=type_, payload=payload, session_id=session, idempotency_key=key)
        return await self._submissions.submit(body)

    async def task(self, id: str, session: str | None) -> Task:
        """The session's own. Anybody else's looks exactly like one that never was."""
        store = self.dispatcher.backend.tasks
        missing = NotFound("no such task", hint=f"{LIST} lists the tasks of a session")
        return await get_task(store, id, lambda found: found.session == session, missing=missing)

    async def told_of(self, task: Task) -> Mapping[str, Any]:
        """What get_task_result_tool says of a task."""
        now_in = phase(task)
        now = self.dispatcher.clock.now()
        progress = progress_of(task)
        queued = task.state is State.QUEUED
        position = await self.dispatcher.backend.tasks.position(task.id) if queued else None
        return {
            "task_id": task.id,
            "task_type": task.type,
            "status": AGENTS[now_in],
            "message": await self._message(task, now_in),
            "result": raw(task.result),
            "error": _error(task),
            "progress": progress.progress,
            "progress_message": progress.message,
            "partial_output": await self._output(task),
            "eta_seconds": _eta_s(task, now),
            "queue_position": position,
            "created_at": iso(task.created_at),
            "completed_at": None if task.finished_at is None else iso(task.finished_at),
        }

    async def _output(self, task: Task) -> Sequence[msgspec.Raw]:
        """What this attempt has put out so far; once there is a result, that says all."""
        if task.state is not State.RUNNING:
            return ()
        after = max(0, task.events - LAST_OUTPUT)
        pieces: deque[msgspec.Raw] = deque(maxlen=MOST_OUTPUT)
        async for event in history(self.dispatcher.backend.tasks, task.id, after=after):
            if event.type == "task.claimed":
                pieces.clear()  # of an attempt that is over
            elif event.type == "task.chunk":
                pieces.append(msgspec.Raw((event.data or "null").encode()))
        return list(pieces)

    async def _message(self, task: Task, now_in: Phase) -> str:
        if now_in is Phase.OVERDUE:
            return late(task)
        if task.state in FINAL:
            return ending_text(task)
        return (await explained(task, self.dispatcher, self._roster)).sentence

    async def _hand_off(
        self, tool: Tool, arguments: Mapping[str, Any], session: str, key: str | None
    ) -> Mapping[str, Any]:
        type_ = arguments.get("task_type", tool.task_types[0] if len(tool.task_types) == 1 else "")
        if type_ not in tool.task_types:
            words = ", ".join(tool.task_types)
            raise Invalid(f"task_type is one of {words}", pointer="/task_type")
        try:
            task = await self.submit(
                type_, arguments.get("parameters", {}), session=session, key=key
            )
        except Invalid as error:
            raise called(error, "parameters") from error
        return {
            "task_id": task.id,
            "acknowledgment_message": acknowledgment(task),
            "status": AGENTS[phase(task)],
        }

    async def _listed(self, arguments: Mapping[str, Any], session: str) -> Mapping[str, Any]:
        word, limit = arguments.get("status_filter", "all"), arguments.get("limit", 20)
        if not isinstance(word, str):
            raise Invalid("status_filter is a word", pointer="/status_filter")
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_LISTED:
            raise Invalid(f"limit is a number from 1 to {MOST_LISTED}", pointer="/limit")
        try:
            page = await self._owned.page(session, Wanted.model_construct(status=word, limit=limit))
        except Invalid as error:
            said = str(error).replace("status", "status_filter", 1)
            raise Invalid(said, pointer="/status_filter") from error
        return {"tasks": [_line(task) for task in page.items], "more": page.next is not None}

    async def _canceled(self, task: Task) -> Mapping[str, Any]:
        found = await self.dispatcher.cancel(task.id)
        over = found.state in FINAL
        message = f"Your {task.type} was canceled." if over else "It was asked to stop."
        return {"task_id": task.id, "status": AGENTS[phase(found)], "message": message}


def session_among(arguments: Mapping[str, Any], bound: str | None) -> str | None:
    """Whose tasks these are: the session the tools are bound to, else the one that is named."""
    said = arguments.get("session_id")
    if said is None:
        return bound
    if not isinstance(said, str) or not is_session(said):
        raise Invalid(
            "session_id is a text of 1 to 128 characters, none of them a control character",
            pointer="/session_id",
        )
    if bound is not None and said != bound:
        raise Invalid("these tools are bound to another session", pointer="/session_id")
    return said


def acknowledgment(task: Task) -> str:
    if phase(task) is Phase.WAITING_APPROVAL:
        goes_on = "It starts once a person has approved it"
    elif task.state is State.SCHEDULED:
        goes_on = "It starts at its time"
    else:
        goes_on = "It goes on in the background"
    return (
        f"Your {task.type} is under way. {goes_on}, and you will be told when it is done. "
        f"Its task id is {task.id}."
    )


def _line(task: Task) -> Mapping[str, Any]:
    now_in = phase(task)
    status = AGENTS[now_in]
    if task.state in FINAL:
        summary = ending_text(task)
    elif now_in is Phase.WAITING_APPROVAL:
        summary = f"Your {task.type} waits for a person's approval."
    elif now_in is Phase.OVERDUE:
        summary = f"Your {task.type} takes longer than expected, and goes on."
    else:
        summary = f"Your {task.type} is {status}."
    return {
        "task_id": task.id,
        "task_type": task.type,
        "status": status,
        "summary": summary,
        "created_at": iso(task.created_at),
        "completed_at": None if task.finished_at is None else iso(task.finished_at),
    }


def _error(task: Task) -> Mapping[str, Any] | None:
    if task.state is State.SUCCEEDED:
        return None
    fault = fault_of(task.error)
    if fault is not None:
        return {"code": fault.kind, "message": fault.message, "details": fault.details or {}}
    if task.state is State.CANCELED:
        return {"code": "CANCELED", "message": "the task was canceled", "details": {}}
    return None


def _eta_s(task: Task, now: Instant) -> int | None:
    """When it is tried next, or is over at the pace so far."""
    if task.state is State.SCHEDULED:
        eta = task.run_at
    else:
        eta = expected_end(task, now) if task.state is State.RUNNING else None
    return None if eta is None else max(0, math.ceil((eta - now) / 1000))


def _check_names(tool: Tool, arguments: Mapping[str, Any]) -> None:
    known = {*tool.parameters.get("properties", {}), "session_id"}
    for name in arguments:
        if name not in known:
            words = ", ".join(sorted(known))
            raise Invalid(f"{tool.name} takes no {name!r}; it takes {words}", pointer=f"/{name}")


def _needed(session: str | None) -> str:
    if session is None:
        raise Invalid("session_id is missing: whose task is it?", pointer="/session_id")
    return session


def _id(arguments: Mapping[str, Any]) -> str:
    id = arguments.get("task_id")
    if not isinstance(id, str) or not id:
        raise Invalid(f"task_id is missing: {RESULT} is about one task", pointer="/task_id")
    return id


def called(error: Invalid, word: str) -> Invalid:
    """The same where a payload goes by another name, so that it says where to look."""
    if not error.pointer.startswith("/payload"):
        return error
    said = str(error).replace("payload", word, 1)
    pointer = error.pointer.replace("payload", word, 1)
    return Invalid(said, pointer=pointer, hint=error.hint, step=error.step)
