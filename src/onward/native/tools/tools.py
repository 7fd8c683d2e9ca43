"""The definitions of the tools for agents, made from the declared services (S2-1).

For each service one tool that hands work off, three tools that follow it up; and, for a client that
waits for the result instead, one for each task type. Decides names and schemas, which depend on the
declarations alone and not on their order. Runs nothing: toolbox.py does.
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
LONGEST_NAME = 64
MARK = 8  # characters of a digest that make two equal names differ
FILTERS = ("all", "pending", "processing", "completed", "failed", "timeout")
MOST_LISTED = 100


class ToolKind(StrEnum):
    HAND_OFF = "hand_off"  # returns at once, with the id of a task
    RESULT = "result"
    LIST = "list"
    CANCEL = "cancel"
    CALL = "call"  # waits for the result, up to a limit


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: ToolKind
    description: str
    parameters: Schema
    output: Schema  # of what is returned, beside an error
    service: str | None = None
    task_types: tuple[str, ...] = ()
    raw_payload: bool = False  # its one argument, `payload`, is the payload; else all of them are

    @property
    def view(self) -> ToolView:
        return ToolView(
            name=self.name,
            kind=self.kind.value,
            description=self.description,
            parameters=self.parameters,
            service=self.service,
            task_types=self.task_types,
        )

    @property
    def openai(self) -> OpenAiTool:
        function = OpenAiFunction(
            name=self.name, description=self.description, parameters=self.parameters
        )
        return OpenAiTool(function=function)


def tools_of(
    services: Sequence[Declared], *, bound: bool = False, direct: bool = False
) -> Sequence[Tool]:
    """In the order of their names. `bound`: the session is known, and is no argument of theirs."""
    offered = [service for service in services if service.expose]
    ordered = sorted(offered, key=lambda service: service.name)
    names = _names([(service.name, "_task_tool") for service in ordered], FOLLOW_UP_TOOLS)
    tools = [
        _hand_off(names[at], service, bound=bound) for at, service in enumerate(ordered)
    ] + follow_up_tools(bound=bound)
    if direct:
        types = sorted((type_, service) for service in ordered for type_ in service.task_types)
        taken = frozenset(tool.name for tool in tools)
        names = _names([(type_, "") for type_, _ in types], taken)
        tools += [_call(names[at], type_, service) for at, (type_, service) in enumerate(types)]
    return tools


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


def _hand_off(name: str, service: Declared, *, bound: bool) -> Tool:
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
        f"{_purpose(service)}Hands a task to the service {service.name} ({what}) and returns a "
        f"task_id and an acknowledgment for the user at once. The work goes on in the background; "
        f"{RESULT} reports on it and has its result."
    )
    if service.requires_approval:
        description += " A person must approve each task before it runs."
    return Tool(
        name=name,
        kind=ToolKind.HAND_OFF,
        description=description,
        parameters=_object(_with_session(first, bound), set()),
        output=_HANDED_OFF,
        service=service.name,
        task_types=types,
    )


def follow_up_tools(*, bound: bool) -> list[Tool]:
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
    optional = {"session_id"}  # a task may have no session
    return [
        Tool(
            name=CANCEL,
            kind=ToolKind.CANCEL,
            description="Cancel a task that is not over yet. One that runs is asked to stop.",
            parameters=_object(_with_session({"task_id": task_id}, bound), optional),
            output=_CANCEL_REQUESTED,
        ),
        Tool(
            name=RESULT,
            kind=ToolKind.RESULT,
            description=(
                "How a task is: its status, and its result, its error, how far it is or how many "
                "are ahead of it."
            ),
            parameters=_object(_with_session({"task_id": task_id}, bound), optional),
            output=_REPORT,
        ),
        Tool(
            name=LIST,
            kind=ToolKind.LIST,
            description="The user's tasks, newest first, each with its status in one line.",
            parameters=_object(_with_session(listed, bound), optional=set(listed)),
            output=_SUMMARIES,
        ),
    ]


def _call(name: str, type_: str, service: Declared) -> Tool:
    schema = _schema(service, type_)
    named = str(schema.get("description") or "") or _purpose(service).strip()
    purpose = named or str(schema.get("title") or type_)
    description = f"{purpose.rstrip('.')}. By the service {service.name}"
    description += ", once a person has approved it." if service.requires_approval else "."
    raw_payload = schema.get("type") != "object"
    if raw_payload:
        schema = _object({"payload": _part(schema, "/properties/payload")}, set())
    return Tool(
        name=name,
        kind=ToolKind.CALL,
        description=description,
        parameters=schema,
        output=_report_of(service.output.get(type_)),
        service=service.name,
        task_types=(type_,),
        raw_payload=raw_payload,
    )


def _purpose(service: Declared) -> str:
    """The first paragraph of what the service says of itself, as a sentence before others."""
    first = " ".join(service.description.partition("\n\n")[0].split())
    return f"{first.rstrip('.')}. " if first else ""


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


def _with_session(properties: dict[str, Any], bound: bool) -> dict[str, Any]:
    if bound:
        return properties
    session = {"type": "string", "description": "Whose task it is: the user's session."}
    return {**properties, "session_id": session}


def _object(properties: Mapping[str, Any], optional: set[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


_HANDED_OFF, _CANCEL_REQUESTED = _output(HandedOff), _output(CancelRequested)
_REPORT, _SUMMARIES = _output(TaskReport), _output(TaskSummaries)
