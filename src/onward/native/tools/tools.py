"""The definitions of the tools for agents, made from the declared services and flows (S2-1).

For each service and flow one tool that hands work off, three tools that follow it up; and, for a
client that waits for the result instead, one for each task type and flow. Decides names and
schemas, which depend on the declarations alone and not on their order. Runs nothing: toolbox.py
does.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from onward.services.catalog import Declared
from onward.wire.tools import (
    CancelRequested,
    HandedOff,
    OpenAiFunction,
    OpenAiTool,
    Schema,
    TaskReport,
    TaskSummaries,
    ToolView,
)

RESULT, LIST, CANCEL = "get_task_result_tool", "list_user_tasks_tool", "cancel_task_tool"
FOLLOW_UP_TOOLS = frozenset({RESULT, LIST, CANCEL})
FLOW = "flow:"  # before the name of a flow, where names of services stand as well
LONGEST_NAME = 64
LONGEST_PURPOSE = 600  # characters, unless the first paragraph is longer
MARK = 8  # characters of a digest that make two equal names differ
FILTERS = ("all", "pending", "processing", "completed", "failed", "timeout")
MOST_LISTED = 100


class ToolKind(StrEnum):
    HAND_OFF = "hand_off"  # returns at once, with the id of a task
    RESULT = "result"
    LIST = "list"
    CANCEL = "cancel"
    CALL = "call"  # waits for the result, up to a limit


class SessionArgument(StrEnum):
    """Whether a tool has an argument that names the session."""

    BOUND = "bound"  # none: the tools belong to a session
    OPTIONAL = "optional"  # one that is named stands in for the session of the connection
    REQUIRED = "required"  # where a session is needed


class OfferedFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow whose newest version asks to be offered."""

    name: str
    version: int
    description: str
    parameters: Schema  # of the run's params


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: ToolKind
    description: str
    parameters: Schema
    output: Schema  # of what is returned, beside an error
    service: str | None = None
    flow: str | None = None
    task_types: tuple[str, ...] = ()
    raw_payload: bool = False  # its one argument, `payload`, is the payload; else all of them are
    names_session: bool = False  # of one that is called directly: `session_id` is no payload

    @property
    def source(self) -> str | None:
        """What it is made of; None: it is there whatever is declared."""
        return self.service if self.flow is None else f"{FLOW}{self.flow}"

    @property
    def view(self) -> ToolView:
        return ToolView(
            name=self.name,
            kind=self.kind.value,
            description=self.description,
            parameters=self.parameters,
            service=self.service,
            flow=self.flow,
            task_types=self.task_types,
        )

    @property
    def openai(self) -> OpenAiTool:
        function = OpenAiFunction(
            name=self.name, description=self.description, parameters=self.parameters
        )
        return OpenAiTool(function=function)


def tools_of(
    services: Sequence[Declared],
    flows: Sequence[OfferedFlow] = (),
    *,
    session: SessionArgument = SessionArgument.REQUIRED,
    direct: bool = False,
) -> Sequence[Tool]:
    """In the order of their names: those of services, of flows, to follow up, and for calls."""
    offered = [service for service in services if service.expose]
    ordered = sorted(offered, key=lambda service: service.name)
    runs = sorted(flows, key=lambda flow: flow.name)
    names = _names([(service.name, "_task_tool") for service in ordered], FOLLOW_UP_TOOLS)
    tools = [
        _hand_off(name, service, session) for name, service in zip(names, ordered, strict=True)
    ]
    names = _names([(flow.name, "_flow_tool") for flow in runs], _taken(tools))
    tools += [_start(name, flow, session) for name, flow in zip(names, runs, strict=True)]
    tools += follow_up_tools(session)
    if direct:
        types = sorted((type_, service) for service in ordered for type_ in service.task_types)
        names = _names([(type_, "") for type_, _ in types], _taken(tools))
        tools += [_call(name, *one, session) for name, one in zip(names, types, strict=True)]
        names = _names([(flow.name, "") for flow in runs], _taken(tools))
        tools += [_run(name, flow, session) for name, flow in zip(names, runs, strict=True)]
    return tools


def _taken(tools: Sequence[Tool]) -> frozenset[str]:
    return frozenset(tool.name for tool in tools)


def safe_name(text: str, suffix: str = "") -> str:
    """A name that any model provider accepts; two texts may have the same."""
    plain = re.sub(r"[^a-zA-Z0-9_-]", "_", text)
    if len(plain) + len(suffix) > LONGEST_NAME:
        return _marked(text, suffix)
    return plain + suffix


def _names(wanted: Sequence[tuple[str, str]], taken: frozenset[str]) -> Sequence[str]:
    """Where several would share a name, the one whose own name it is keeps it."""
    plain = [safe_name(text, suffix) for text, suffix in wanted]
    count = Counter(plain)
    return [
        _marked(text, suffix)
        if name in taken or (count[name] > 1 and name != text + suffix)
        else name
        for name, (text, suffix) in zip(plain, wanted, strict=True)
    ]


def _marked(text: str, suffix: str) -> str:
    mark = hashlib.sha256(text.encode()).hexdigest()[:MARK]
    plain = re.sub(r"[^a-zA-Z0-9_-]", "_", text)
    return f"{plain[: LONGEST_NAME - len(suffix) - MARK - 1]}_{mark}{suffix}"


def _hand_off(name: str, service: Declared, session: SessionArgument) -> Tool:
    types = service.task_types
    what = ", ".join(types)
    first = {
        "task_type": {
            "type": "string",
            "enum": list(types),
            "description": "What is to be done.",
        },
        "parameters": _parameters(service),
    }
    description = (
        f"{_purpose(service.description)}Hands a task to the service {service.name} ({what}) and "
        f"returns a task_id and an acknowledgment for the user at once. The work goes on in the "
        f"background; {RESULT} reports on it and has its result."
    )
    if service.requires_approval:
        description += " A person must approve each task before it runs."
    return Tool(
        name=name,
        kind=ToolKind.HAND_OFF,
        description=description,
        parameters=_object(first, session),
        output=_HANDED_OFF,
        service=service.name,
        task_types=types,
    )


def _start(name: str, flow: OfferedFlow, session: SessionArgument) -> Tool:
    what = {"description": "What the run is given."}
    given = {**what, **_part(flow.parameters, "/properties/parameters")}
    return Tool(
        name=name,
        kind=ToolKind.HAND_OFF,
        description=(
            f"{_purpose(flow.description)}Starts the flow {flow.name} and returns a task_id and an "
            f"acknowledgment for the user at once. It goes on in the background, for days if need "
            f"be; {RESULT} reports on it and has its result."
        ),
        parameters=_object({"parameters": given}, session),
        output=_HANDED_OFF,
        flow=flow.name,
        task_types=(f"{FLOW}{flow.name}",),
    )


def follow_up_tools(session: SessionArgument) -> list[Tool]:
    task_id = {"type": "string", "description": "As it was given when the task was handed off."}
    listed = {
        "status_filter": {
            "type": "string",
            "enum": list(FILTERS),
            "default": "all",
            "description": "Only tasks that are so.",
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": 20},
    }
    about = (
        SessionArgument.OPTIONAL if session is SessionArgument.REQUIRED else session
    )  # it may have none
    return [
        Tool(
            name=CANCEL,
            kind=ToolKind.CANCEL,
            description="Cancel a task that is not over yet. One that runs is asked to stop.",
            parameters=_object({"task_id": task_id}, about),
            output=_CANCEL_REQUESTED,
        ),
        Tool(
            name=RESULT,
            kind=ToolKind.RESULT,
            description=(
                "How a task is: its status, and its result, its error, how far it is or how many "
                "are ahead of it."
            ),
            parameters=_object({"task_id": task_id}, about),
            output=_REPORT,
        ),
        Tool(
            name=LIST,
            kind=ToolKind.LIST,
            description="The user's tasks, newest first, each with its status in one line.",
            parameters=_object(listed, session, optional=frozenset(listed)),
            output=_SUMMARIES,
        ),
    ]


def _call(name: str, type_: str, service: Declared, session: SessionArgument) -> Tool:
    schema = _schema(service, type_)
    general = _purpose(service.description).strip()
    special = _purpose(str(schema.get("description") or "")).strip()
    # Of several types a schema knows more; of one, it may be a class that is used elsewhere too.
    ranked = (general, special) if len(service.task_types) == 1 else (special, general)
    purpose = next(filter(None, ranked), str(schema.get("title") or type_))
    description = f"{purpose.rstrip('.')}. By the service {service.name}"
    description += ", once a person has approved it." if service.requires_approval else "."
    raw_payload = schema.get("type") != "object"
    if raw_payload:
        schema = _object({"payload": _part(schema, "/properties/payload")}, SessionArgument.BOUND)
    return _called(
        session,
        name=name,
        kind=ToolKind.CALL,
        description=description,
        parameters=schema,
        output=_report_of(service.output.get(type_)),
        service=service.name,
        task_types=(type_,),
        raw_payload=raw_payload,
    )


def _run(name: str, flow: OfferedFlow, session: SessionArgument) -> Tool:
    purpose = _purpose(flow.description).strip() or flow.name
    return _called(
        session,
        name=name,
        kind=ToolKind.CALL,
        description=f"{purpose.rstrip('.')}. By the flow {flow.name}.",
        parameters=flow.parameters,
        output=_REPORT,
        flow=flow.name,
        task_types=(f"{FLOW}{flow.name}",),
    )


def _called(session: SessionArgument, parameters: Schema, **more: Any) -> Tool:
    """With a session as one more argument, unless the payload has a field of that name itself."""
    properties = parameters.get("properties", {})
    named = session is not SessionArgument.BOUND and "session_id" not in properties
    if named:
        parameters = {**parameters, "properties": {**properties, "session_id": _SESSION}}
    return Tool(parameters=parameters, names_session=named, **more)


def _purpose(text: str) -> str:
    """What a service or a flow says of itself, as sentences before others: whole paragraphs, as
    many as a model provider takes.
    """
    purpose = ""
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split())
        if line:
            line = line if line.endswith((".", "!", "?", ":")) else f"{line}."
            if purpose and len(purpose) + len(line) > LONGEST_PURPOSE:
                break
            purpose += f"{line} "
    return purpose


def _output(kind: type[msgspec.Struct]) -> Schema:
    """With its root as an object, which a reference to one is not."""
    schema = msgspec.json.schema(kind)
    shapes = schema["$defs"]
    return {**shapes[kind.__name__], "$defs": shapes}


def _report_of(result: Any) -> Schema:
    """The report on a task, with the result as its service declares it, once there is one."""
    if not isinstance(result, Mapping):
        return _REPORT
    options = [_part(result, "/properties/result/anyOf/0"), {"type": "null"}]
    properties = {**_REPORT["properties"], "result": {"anyOf": options}}
    return {**_REPORT, "properties": properties}


def _parameters(service: Declared) -> Schema:
    here = "/properties/parameters"
    schemas = [_schema(service, type_) for type_ in service.task_types]
    if len(schemas) == 1:
        return {"description": "What the task needs.", **_part(schemas[0], here)}
    choices = [
        {"title": type_, **_part(schema, f"{here}/anyOf/{at}")}
        for at, (type_, schema) in enumerate(zip(service.task_types, schemas, strict=True))
    ]
    return {"description": "What the task needs; titles are task types.", "anyOf": choices}


def _schema(service: Declared, type_: str) -> Schema:
    found = service.schema.get(type_)
    if isinstance(found, Mapping):
        return found
    return {"type": "object"} if found is None else {}


def _part(schema: Schema, to: str) -> Schema:
    """As a part of another schema, in whose dialect it is read: only a root has `$schema`."""
    return {key: value for key, value in moved(schema, to).items() if key != "$schema"}


def moved(schema: Any, to: str) -> Any:
    """The same schema where it is a part of another: its references to itself lead there too."""
    if isinstance(schema, Mapping):
        return {
            key: f"#{to}{value[1:]}"
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else moved(value, to)
            for key, value in schema.items()
        }
    return [moved(part, to) for part in schema] if isinstance(schema, list | tuple) else schema


def _object(
    properties: Mapping[str, Any], session: SessionArgument, optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    if session is not SessionArgument.BOUND:
        properties = {**properties, "session_id": _SESSION}
    if session is not SessionArgument.REQUIRED:
        optional |= {"session_id"}
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


_SESSION = {"type": "string", "description": "Whose task it is: the user's session."}
_HANDED_OFF, _CANCEL_REQUESTED = _output(HandedOff), _output(CancelRequested)
_REPORT, _SUMMARIES = _output(TaskReport), _output(TaskSummaries)
