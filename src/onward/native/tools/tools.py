"""The tools of the agent door: what there is to call, made from the services that are declared.

One tool a service to hand work off, three to look after it; and, for those who would rather call
than hand off, one a task type. Decides names and schemas, which depend on the declarations alone
and not on their order. Never runs anything: toolbox.py does.
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

RESULT, LIST, CANCEL = "get_task_result_tool", "list_user_tasks_tool", "cancel_task_tool"
TAKERS = frozenset({RESULT, LIST, CANCEL})
LONGEST_NAME = 64
MARK = 8  # characters of a digest that tell two names apart
FILTERS = ("all", "pending", "processing", "completed", "failed", "timeout")
MOST_LISTED = 100

Schema = Mapping[str, Any]


class Kind(StrEnum):
    HAND_OFF = "hand_off"  # answers at once, with the id of a task
    RESULT = "result"
    LIST = "list"
    CANCEL = "cancel"
    CALL = "call"  # waits for the result, as long as it may


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Kind
    description: str
    parameters: Schema
    service: str | None = None
    task_types: tuple[str, ...] = ()
    whole: bool = False  # a direct call whose one argument, `payload`, is the payload

    @property
    def openai(self) -> Mapping[str, Any]:
        told = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": told}


def tools_of(
    services: Sequence[Declared], *, bound: bool = False, direct: bool = False
) -> Sequence[Tool]:
    """In the order of their names. `bound`: whose tasks they are is known, and not an argument."""
    ordered = sorted(services, key=lambda service: service.name)
    names = _names([(service.name, "_task_tool") for service in ordered], TAKERS)
    tools = [
        _hand_off(names[at], service, bound=bound) for at, service in enumerate(ordered)
    ] + _takers(bound=bound)
    if direct:
        types = sorted((type_, service) for service in ordered for type_ in service.task_types)
        taken = frozenset(tool.name for tool in tools)
        names = _names([(type_, "") for type_, _ in types], taken)
        tools += [_call(names[at], type_, service) for at, (type_, service) in enumerate(types)]
    return tools


def safe_name(text: str, suffix: str = "") -> str:
    """As any model provider takes it; another text may have the same."""
    plain = re.sub(r"[^a-zA-Z0-9_-]", "_", text)
    if len(plain) + len(suffix) > LONGEST_NAME:
        return _marked(text, suffix)
    return plain + suffix


def _names(wanted: Sequence[tuple[str, str]], taken: frozenset[str]) -> Sequence[str]:
    """Of those who would share a name, whoever is really called so keeps it."""
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
        f"Hand a task to the service {service.name} ({what}) and go on: the answer is a task_id "
        f"and an acknowledgment for the user, at once. The work goes on in the background; "
        f"{RESULT} tells how it is and gives the result."
    )
    if service.requires_approval:
        description += " A person must approve each task before it runs."
    return Tool(
        name=name,
        kind=Kind.HAND_OFF,
        description=description,
        parameters=_object(_with_session(first, bound), set()),
        service=service.name,
        task_types=types,
    )


def _takers(*, bound: bool) -> list[Tool]:
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
    open_to = {"session_id"}  # a task may be nobody's
    return [
        Tool(
            name=CANCEL,
            kind=Kind.CANCEL,
            description="Cancel a task that is not over yet. One that runs is asked to stop.",
            parameters=_object(_with_session({"task_id": task_id}, bound), open_to),
        ),
        Tool(
            name=RESULT,
            kind=Kind.RESULT,
            description=(
                "How a task is: its status, and its result, its error, how far it is or how many "
                "are ahead of it."
            ),
            parameters=_object(_with_session({"task_id": task_id}, bound), open_to),
        ),
        Tool(
            name=LIST,
            kind=Kind.LIST,
            description="The user's tasks, newest first, each with its status in one line.",
            parameters=_object(_with_session(listed, bound), optional=set(listed)),
        ),
    ]


def _call(name: str, type_: str, service: Declared) -> Tool:
    schema = _schema(service, type_)
    said = str(schema.get("description") or schema.get("title") or type_)
    description = f"{said.rstrip('.')}. By the service {service.name}"
    description += ", once a person has approved it." if service.requires_approval else "."
    whole = schema.get("type") != "object"
    if whole:
        schema = _object({"payload": _part(schema, "/properties/payload")}, set())
    return Tool(
        name=name,
        kind=Kind.CALL,
        description=description,
        parameters=schema,
        service=service.name,
        task_types=(type_,),
        whole=whole,
    )


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
    """As a part of another schema, whose dialect it is read in: `$schema` stands at a root only."""
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
    said = {"type": "string", "description": "Whose task it is: the user's session."}
    return {**properties, "session_id": said}


def _object(properties: Mapping[str, Any], optional: set[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }
