"""The tools at work: arguments in, a reply out, and with it the session's unread notifications.

A caller who asks for a task must name the session it belongs to; another session's is not found,
like one that never was. One implementation, for HTTP, MCP and the client's functions. Never decides
which tools there are: tools.py does.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from onward.core.dispatch import Dispatcher
from onward.core.errors import Invalid, NextStep, NotFound, Step
from onward.core.follow import history
from onward.core.phase import Phase, phase
from onward.core.task import FINAL, FINAL_EVENTS, Instant, State, Task, fault_of
from onward.native.caller import ACTS, Action, Caller, Scope, needs
from onward.native.explain import Explainer, expected_end
from onward.native.notifications.notification import (
    TYPES,
    late_text,
    notification_of,
)
from onward.native.notifications.store import NotificationStore, StoredNotification
from onward.native.runs import Runs
from onward.native.session_owners import SessionOwners
from onward.native.session_tasks import ForeignLooks, SessionTasks
from onward.native.submission import Submissions
from onward.native.tools.offers import ToolOffers
from onward.native.tools.tools import (
    LIST,
    MOST_LISTED,
    RESULT,
    SessionArgument,
    Tool,
    ToolKind,
    tools_of,
)
from onward.native.views import approval_text, ending_text, named, progress_of
from onward.wire.base import Key, Page
from onward.wire.runs import StartRun
from onward.wire.sessions import SessionTasksQuery, is_session
from onward.wire.tasks import Submit
from onward.wire.times import iso
from onward.wire.tools import (
    CancelRequested,
    HandedOff,
    OpenAiTool,
    ServiceNames,
    TaskReport,
    TaskSummaries,
    TaskSummary,
    ToolCallQuery,
    ToolError,
    ToolResult,
    ToolsQuery,
    ToolView,
)
from onward.workers.roster import Roster

LAST_EVENTS = 8  # of a finished task; its end is among them
LAST_OUTPUT = 200  # events among which the output so far is looked for
MOST_OUTPUT = 20  # pieces of output in one reply: the newest
MOST_NOTIFICATIONS = 20  # in one reply; the rest come with the next one


class ToolReply(msgspec.Struct, frozen=True):
    """What a tool returns, with notifications that count as read once it has arrived."""

    result: ToolResult
    session: str | None = None
    notifications: Sequence[StoredNotification] = ()
    finished: Task | None = None  # the reply reports its end: no notification need repeat it

    @property
    def body(self) -> ToolResult:
        sent = tuple(stored.notification for stored in self.notifications)
        return msgspec.structs.replace(self.result, notifications=sent)


class Toolbox:
    def __init__(  # noqa: PLR0913 what it is composed of
        self,
        dispatcher: Dispatcher,
        roster: Roster,
        offers: ToolOffers,
        submissions: Submissions,
        runs: Runs,
        sessions: SessionOwners,
        notifications: NotificationStore,
        words: Mapping[Phase, str],
        explainer: Explainer,
        foreign: ForeignLooks,
    ) -> None:
        """`words` are what the tools call the phases of a task."""
        self.dispatcher = dispatcher
        self._roster = roster
        self._offers = offers
        self._submissions = submissions
        self._runs = runs
        self._sessions = sessions
        self._notifications = notifications
        self._words = words
        self._explainer = explainer
        self._tasks = SessionTasks(dispatcher.backend.tasks, words, foreign)
        self._made: dict[tuple[SessionArgument, bool], tuple[object, Sequence[Tool]]] = {}

    @needs(Scope.SUBMIT)
    async def list(
        self, caller: Caller, query: ToolsQuery
    ) -> Page[ToolView] | tuple[OpenAiTool, ...]:
        """The tools there are, also as OpenAI defines tools."""
        session = SessionArgument.REQUIRED if query.session_id is None else SessionArgument.BOUND
        only = named_services(query.services)
        found = await self.tools(caller, session=session, only=only)
        if query.format == "openai":
            return tuple(tool.openai for tool in found)
        return Page(items=tuple(tool.view for tool in found))

    @needs(Scope.SUBMIT)
    async def call(
        self,
        caller: Caller,
        name: str,
        arguments: Mapping[str, Any],
        query: ToolCallQuery,
        idempotency_key: Key | None = None,
    ) -> ToolReply:
        """Call a tool; the body holds its arguments."""
        session = SessionArgument.REQUIRED if query.session_id is None else SessionArgument.BOUND
        tool = await self.find(caller, name, session=session, only=named_services(query.services))
        return await self.run(caller, tool, arguments, query.session_id, idempotency_key)

    @needs(Scope.SUBMIT)
    async def tools(
        self,
        caller: Caller,
        *,
        session: SessionArgument,
        direct: bool = False,
        only: Collection[str] | None = None,
    ) -> Sequence[Tool]:
        """`only`: the services whose tools these are, and `flow:` and a flow's name; None: all."""
        offered = await self._offers.services(), await self._offers.flows()
        made_of, tools = self._made.get((session, direct), (None, ()))
        if made_of != offered:  # else as before: schemas are not rewritten with every call
            tools = tools_of(*offered, session=session, direct=direct)
            self._made[session, direct] = (offered, tools)
        if only is None:
            return tools
        return [tool for tool in tools if tool.source is None or tool.source in only]

    @needs(Scope.SUBMIT)
    async def find(
        self,
        caller: Caller,
        name: str,
        *,
        session: SessionArgument,
        direct: bool = False,
        only: Collection[str] | None = None,
    ) -> Tool:
        for tool in await self.tools(caller, session=session, direct=direct, only=only):
            if tool.name == name:
                return tool
        for tool in tools_of(await self._offers.idle(), direct=direct):
            if tool.name == name and tool.service is not None:
                why = f"no worker has served {tool.service!r} for a day, so {name!r} is not offered"
                raise NotFound(
                    why, step=NextStep(Step.START_WORKER, f"that serves {tool.service!r}")
                )
        raise NotFound(f"no tool is called {name!r}", step=NextStep(Step.LIST_TOOLS))

    @needs(Scope.SUBMIT)
    async def enter(self, caller: Caller, session: str | None, *, looks: bool = False) -> None:
        """NotFound: the session that these tools are bound to is another key's. `looks`: nothing
        is called in it.
        """
        if not looks:
            await self._sessions.use(caller, session)
        elif session is not None:
            await self._sessions.look(caller, session)

    @needs(Scope.SUBMIT)
    async def run(
        self,
        caller: Caller,
        tool: Tool,
        arguments: Mapping[str, Any],
        bound: str | None,
        key: str | None = None,
    ) -> ToolReply:
        """`bound` is the session that these tools are bound to, if they are."""
        _check_names(tool, arguments)
        session = session_among(arguments, bound)
        await self._sessions.use(caller, session)
        result: ToolResult
        match tool.kind:
            case ToolKind.HAND_OFF:
                result = await self._hand_off(caller, tool, arguments, _required(session), key)
            case ToolKind.RESULT:
                result = await self._report(await self._task_named(caller, arguments, session))
            case ToolKind.LIST:
                result = await self._summaries(caller, arguments, _required(session))
            case ToolKind.CANCEL:
                task = await self._task_named(caller, arguments, session)
                result = await self._cancel(caller, task)
            case ToolKind.CALL:
                # Only MCP lists these tools, and waits for their tasks itself.
                raise NotFound(f"no tool is called {tool.name!r}")
        return await self._reply(result, session)

    @needs(Scope.SUBMIT)
    async def submit(
        self,
        caller: Caller,
        tool: Tool,
        type_: str,
        payload: Any,
        *,
        session: str | None,
        key: str | None = None,
    ) -> Task:
        """A task of this type, or a run of the tool's flow, whose params are the payload."""
        if tool.flow is None:
            body = Submit(type=type_, payload=payload, session_id=session, idempotency_key=key)
            return await self._submissions.submit(caller, body)
        flow = await self._offers.flow(tool.flow)
        if flow is None:
            raise NotFound(f"the flow {tool.flow!r} is no tool any more")
        self._offers.check(flow, payload)
        start = StartRun(
            flow=flow.name,
            version=flow.version,  # the one whose schema was asked
            params=payload,
            session_id=session,
            request_id=key,
        )
        id = await self._runs.begin(caller, start)
        return await self.task(caller, id, session)

    @needs(Scope.SUBMIT)
    async def task(self, caller: Caller, id: str, session: str | None) -> Task:
        """The session's own. Another session's looks exactly like one that never was."""
        return await self._tasks.get(
            caller.narrowed(), session, id, NextStep(Step.CALL_LIST_TOOL, LIST)
        )

    @needs(Scope.SUBMIT)
    async def report(self, caller: Caller, task: Task) -> tuple[TaskReport, ToolReply]:
        """What a direct call returns, now that the task or the time to wait for it is over."""
        finished = task if task.state in FINAL else None
        report = await self._report(task)
        return report, await self._reply(report, task.session, finished)

    @needs(Scope.SUBMIT)
    async def acknowledge(self, caller: Caller, reply: ToolReply) -> None:
        """The caller has the reply: its notifications are read, and not sent again."""
        session = reply.session
        if session is None:
            return
        self._notifications.deliveries.delivered("interaction", len(reply.notifications))
        known = [*reply.notifications]
        if reply.finished is not None:
            known += await self._notifications_of_end(session, reply.finished)
        acks = [
            self._notifications.acknowledge(session, stored.id, delivered_by="interaction")
            for stored in known
        ]
        # One that is gone by now, or that the ledger cannot take, is sent again or not at all.
        await asyncio.gather(*acks, return_exceptions=True)

    async def _reply(
        self, result: ToolResult, session: str | None, finished: Task | None = None
    ) -> ToolReply:
        if session is None:
            return ToolReply(result)
        about = None if finished is None else finished.id
        unread = await self._notifications.unread(session)
        news = [stored for stored in unread if stored.notification.task_id != about]
        return ToolReply(result, session, news[:MOST_NOTIFICATIONS], finished)

    async def _notifications_of_end(self, session: str, task: Task) -> Sequence[StoredNotification]:
        """Written if they are not there yet: the projector would only do so in a moment."""
        after = max(0, task.events - LAST_EVENTS)
        events = history(self.dispatcher.backend.tasks, task.id, after=after)
        now = self.dispatcher.clock.now()
        found = [
            StoredNotification(notification_of(task, event), event.at, now)
            async for event in events
            if event.type in TYPES and event.type in FINAL_EVENTS
        ]
        for stored in found:
            await self._notifications.add(session, stored)
        return found

    async def _task_named(
        self, caller: Caller, arguments: Mapping[str, Any], session: str | None
    ) -> Task:
        id = arguments.get("task_id")
        if not isinstance(id, str) or not id:
            raise Invalid(f"task_id is missing: {RESULT} is about one task", pointer="/task_id")
        return await self._tasks.get(
            caller.narrowed(), session, id, NextStep(Step.CALL_LIST_TOOL, LIST)
        )

    async def _report(self, task: Task) -> TaskReport:
        now_in = phase(task)
        now = self.dispatcher.clock.now()
        progress = progress_of(task)
        queued = task.state is State.QUEUED
        position = await self.dispatcher.backend.tasks.position(task.id) if queued else None
        return TaskReport(
            task_id=task.id,
            task_type=task.type,
            status=self._words[now_in],
            message=await self._message(task, now_in),
            result=None if task.result is None else msgspec.Raw(task.result.encode()),
            error=_error(task),
            progress=progress.progress,
            progress_message=progress.message,
            partial_output=await self._output(task),
            eta_seconds=_eta_s(task, now, self._explainer.usual_ms(task.queue)),
            queue_position=position,
            created_at=iso(task.created_at),
            completed_at=None if task.finished_at is None else iso(task.finished_at),
        )

    async def _output(self, task: Task) -> tuple[msgspec.Raw, ...]:
        """The output of this attempt so far; once there is a result, it has everything."""
        if task.state is not State.RUNNING:
            return ()
        after = max(0, task.events - LAST_OUTPUT)
        pieces: deque[msgspec.Raw] = deque(maxlen=MOST_OUTPUT)
        async for event in history(self.dispatcher.backend.tasks, task.id, after=after):
            if event.type == "task.claimed":
                pieces.clear()  # of an attempt that is over
            elif event.type == "task.chunk":
                pieces.append(msgspec.Raw((event.data or "null").encode()))
        return tuple(pieces)

    async def _message(self, task: Task, now_in: Phase) -> str:
        if now_in is Phase.OVERDUE:
            return late_text(task)
        if task.state in FINAL:
            return ending_text(task)
        return (await self._explainer.explain(task)).sentence

    async def _hand_off(
        self,
        caller: Caller,
        tool: Tool,
        arguments: Mapping[str, Any],
        session: str,
        key: str | None,
    ) -> HandedOff:
        type_ = arguments.get("task_type", tool.task_types[0] if len(tool.task_types) == 1 else "")
        if type_ not in tool.task_types:
            words = ", ".join(tool.task_types)
            raise Invalid(f"task_type is one of {words}", pointer="/task_type")
        payload = arguments.get("parameters", {})
        try:
            task = await self.submit(caller, tool, type_, payload, session=session, key=key)
        except Invalid as error:
            raise renamed(error, "parameters") from error
        return HandedOff(
            task_id=task.id,
            acknowledgment_message=_acknowledgment(task),
            status=self._words[phase(task)],
        )

    async def _summaries(
        self, caller: Caller, arguments: Mapping[str, Any], session: str
    ) -> TaskSummaries:
        word, limit = arguments.get("status_filter", "all"), arguments.get("limit", 20)
        if not isinstance(word, str):
            raise Invalid("status_filter is a word", pointer="/status_filter")
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_LISTED:
            raise Invalid(f"limit is a number from 1 to {MOST_LISTED}", pointer="/limit")
        try:
            query = SessionTasksQuery(status=word, limit=limit)
            page = await self._tasks.page(caller.narrowed(), session, query)
        except Invalid as error:
            text = str(error).replace("status", "status_filter", 1)
            raise Invalid(text, pointer="/status_filter") from error
        summaries = tuple(self._summary(task) for task in page.items)
        return TaskSummaries(tasks=summaries, more=page.next is not None)

    def _summary(self, task: Task) -> TaskSummary:
        now_in = phase(task)
        status = self._words[now_in]
        if task.state in FINAL:
            summary = ending_text(task)
        elif now_in is Phase.WAITING_APPROVAL:
            summary = approval_text(task.type, "")
        elif now_in is Phase.OVERDUE:
            summary = f"Your {named(task.type)} takes longer than expected, and goes on."
        else:
            summary = f"Your {named(task.type)} is {status}."
        return TaskSummary(
            task_id=task.id,
            task_type=task.type,
            status=status,
            summary=summary,
            created_at=iso(task.created_at),
            completed_at=None if task.finished_at is None else iso(task.finished_at),
        )

    @needs(*ACTS)
    async def cancel(self, caller: Caller, task: Task) -> Task:
        caller.acts_on(task)
        found = await self.dispatcher.cancel(task.id)
        await caller.audit(Action.TASK_CANCEL, task.id)
        return found

    async def _cancel(self, caller: Caller, task: Task) -> CancelRequested:
        found = await self.cancel(caller, task)
        over = found.state in FINAL
        message = f"Your {named(task.type)} was canceled." if over else "It was asked to stop."
        return CancelRequested(task_id=task.id, status=self._words[phase(found)], message=message)


def named_services(names: ServiceNames | None) -> Collection[str] | None:
    """None: all of them."""
    return None if names is None else {name.strip() for name in names.split(",")}


def session_among(arguments: Mapping[str, Any], bound: str | None) -> str | None:
    """The session that the tools are bound to, else the one that the arguments name."""
    named = arguments.get("session_id")
    if named is None:
        return bound
    if not isinstance(named, str) or not is_session(named):
        raise Invalid(
            "session_id is a text of 1 to 128 characters, none of them a control character",
            pointer="/session_id",
        )
    if bound is not None and named != bound:
        raise Invalid("these tools are bound to another session", pointer="/session_id")
    return named


def _acknowledgment(task: Task) -> str:
    if phase(task) is Phase.WAITING_APPROVAL:
        goes_on = "It starts once a person has approved it"
    elif task.state is State.SCHEDULED:
        goes_on = "It starts at its time"
    else:
        goes_on = "It goes on in the background"
    return (
        f"Your {named(task.type)} is under way. {goes_on}, and you will be told when it is done. "
        f"Its task id is {task.id}."
    )


def _error(task: Task) -> ToolError | None:
    if task.state is State.SUCCEEDED:
        return None
    fault = fault_of(task.error)
    if fault is not None:
        return ToolError(code=fault.kind, message=fault.message, details=fault.details or {})
    if task.state is State.CANCELED:
        return ToolError(code="CANCELED", message="the task was canceled", details={})
    return None


def _eta_s(task: Task, now: Instant, usual_ms: int | None) -> int | None:
    """When it is tried next, or when it ends at the pace so far, or after the usual time."""
    if task.state is State.SCHEDULED:
        eta = task.run_at
    else:
        eta = expected_end(task, now, usual_ms) if task.state is State.RUNNING else None
    return None if eta is None else max(0, math.ceil((eta - now) / 1000))


def _check_names(tool: Tool, arguments: Mapping[str, Any]) -> None:
    known = {*tool.parameters.get("properties", {}), "session_id"}
    for name in arguments:
        if name not in known:
            words = ", ".join(sorted(known))
            raise Invalid(f"{tool.name} takes no {name!r}; it takes {words}", pointer=f"/{name}")


def _required(session: str | None) -> str:
    if session is None:
        raise Invalid("session_id is missing: whose task is it?", pointer="/session_id")
    return session


def renamed(error: Invalid, word: str) -> Invalid:
    """The same error for a caller to whom the payload has another name."""
    if not error.pointer.startswith("/payload"):
        return error
    text = str(error).replace("payload", word, 1)
    pointer = error.pointer.replace("payload", word, 1)
    return Invalid(text, pointer=pointer, hint=error.hint, step=error.step)
