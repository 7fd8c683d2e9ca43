"""PROTOCOL.md against the code: what the document says in its tables is what the server does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from fastapi.routing import iter_route_contexts
from msgspec import inspect as shapes
from pydantic import AliasChoices

from onward.app import build
from onward.core import errors as core_errors
from onward.core.machine import TRANSITIONS
from onward.core.phase import Phase
from onward.core.policy import BY_ERROR, PERMANENT, POISON_AFTER, TRANSIENT, profiles
from onward.core.task import FINAL, FINAL_EVENTS, State
from onward.doors.errors import STATUS
from onward.doors.tasks.shapes import TaskDetail
from onward.doors.vocabulary import AGENTS, FLOWS, MCP, STREAMS, SYNC, TASKS
from onward.settings import Settings
from onward.wire import base as wire
from onward.wire import frames
from onward.wire.schedules import ScheduleBody
from onward.wire.services import ServiceDeclaration
from onward.wire.tasks import Explanation, Submit, TaskView
from onward.workers.socket import sessions as socket

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "PROTOCOL.md").read_text()
SOURCES = "\n".join(path.read_text() for path in (ROOT / "src" / "onward").rglob("*.py"))

Row = tuple[str, ...]
DOORS = (
    "The dispatcher door",
    "Chat completions",
    "Workers that are called",
    "The flow centre",
    "The tasks door",
    "The native API",
)
FROM_WORKER = get_args(frames.FromWorker)
FROM_SERVER = get_args(frames.FromServer)


def section(heading: str) -> str:
    found = re.search(rf"^(#+) {re.escape(heading)}[ ✔]*$", TEXT, flags=re.M)
    assert found is not None, f"PROTOCOL.md has no section {heading!r}"
    body = TEXT[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", body, flags=re.M)
    return body if end is None else body[: end.start()]


def tables(heading: str) -> Iterator[tuple[Row, Sequence[Row]]]:
    """Each table of a section: its header and its rows, cells without their back-ticks."""
    for block in re.findall(r"(?:^\|.*\n)+", section(heading), flags=re.M):
        lines = [_cells(line) for line in block.splitlines()]
        assert all(len(line) == len(lines[0]) for line in lines), block
        yield lines[0], lines[2:]


def table(heading: str, *header: str) -> Sequence[Row]:
    for names, rows in tables(heading):
        if names[: len(header)] == header:
            return rows
    raise AssertionError(f"{heading!r} has no table that begins with {header}")


def _cells(line: str) -> Row:
    return tuple(_bare(cell.strip()) for cell in line.strip().strip("|").split("|"))


def _bare(cell: str) -> str:
    return cell.strip("`") if cell.count("`") == 2 else cell


def words(cell: str) -> list[str]:
    return [word.strip() for word in cell.split(",")]


def test_states_and_transitions() -> None:
    rows = table("States and transitions", "from", "to", "events")
    said = {(State(row[0]), State(row[1])): frozenset(words(row[2])) for row in rows}
    assert said == TRANSITIONS
    assert len(said) == len(rows), "a transition stands there twice"
    finals = re.search(r"are final: `([a-z ]+)`", section("States and transitions"))
    assert finals is not None
    assert {State(word) for word in finals[1].split()} == FINAL


def test_phases_and_the_vocabularies() -> None:
    rows = table("Phases and vocabularies", "phase", "when", "sync", "streams", "agents")
    columns = (SYNC, STREAMS, AGENTS, TASKS, FLOWS, MCP)
    for column, vocabulary in enumerate(columns, start=2):
        assert {Phase(row[0]): row[column] for row in rows} == vocabulary


def test_event_types_and_which_of_them_are_final() -> None:
    rows = table("Events", "type", "data", "final")
    said = [row[0] for row in rows]
    assert len(said) == len(set(said))
    known = set(re.findall(r'"((?:task|approval|node|signal)\.[a-z_]+)"', SOURCES))
    assert set(said) == known
    assert {event for events in TRANSITIONS.values() for event in events} <= known
    assert {row[0] for row in rows if row[2] == "yes"} == FINAL_EVENTS


def test_retry_schedules() -> None:
    rows = table("Failure: classes, schedules, clocks", "class")
    assert {row[0] for row in rows} == set(BY_ERROR)
    for name, causes, delays, jitter in rows:
        schedule = BY_ERROR[name]
        assert tuple(int(delay) * 1000 for delay in words(delays)) == schedule.delays_ms
        low, high = (int(part) / 100 for part in jitter.removesuffix(" %").split("–"))
        assert (low, high) == schedule.jitter
        named = {word for word in words(causes) if word in TRANSIENT}
        assert named == {word for word, class_ in TRANSIENT.items() if class_ == name}


def test_permanent_errors_and_poison() -> None:
    text = section("Failure: classes, schedules, clocks")
    rule = re.search(r"permanent if it is (.*?); anything", text, flags=re.S)
    assert rule is not None
    assert set(re.findall(r"`(\w+)`", rule[1])) == PERMANENT
    assert f"{POISON_AFTER} in a row end the task" in text


def test_profiles() -> None:
    rows = table("Failure: classes, schedules, clocks", "profile")
    known = profiles(lease_ms=1)
    assert {row[0] for row in rows} == set(known)
    hours = {"1 h": 1, "30 d": 30 * 24}
    for name, _, retries, ends_as, attempt, age, lost, kept in rows:
        profile = known[name]
        assert int(retries) == profile.max_retries
        assert ends_as == ("dead" if profile.dead_letters else "failed")
        assert (attempt, lost) == (
            "fail" if profile.fails_at_attempt_end else "retry",
            "fail" if profile.fails_when_lost else "retry",
        )
        ends = "die" if profile.dead_letters else "fail"
        assert age == ("notify" if profile.notifies_at_expiry else ends)
        assert hours[kept] * 3_600_000 == profile.retention_ms


def _forms(path: str) -> Sequence[str]:
    """A path that ends in [/] is there with and without that slash."""
    bare = path.removesuffix("[/]")
    return (path,) if bare == path else (bare, f"{bare}/")


def _routes() -> set[tuple[str, str]]:
    app = build(Settings(ledger="sqlite:///:memory:"))
    found: set[tuple[str, str]] = set()
    for route in iter_route_contexts(app.web.routes):
        # Starlette's own pages answer HEAD, too; a socket is a GET that is upgraded.
        for method in set(route.methods or {"GET"}) - {"HEAD"}:
            found.add((method, str(route.path)))
    return found


def test_every_route_is_documented_and_every_documented_route_exists() -> None:
    said = [
        (row[0], path)
        for heading in DOORS
        for row in table(heading, "method", "path", "answers")
        for path in _forms(row[1])
    ]
    assert "`GET /ws/worker`" in section("The worker socket")
    assert len(said) == len(set(said))
    assert {*said, ("GET", "/ws/worker")} == _routes()


def test_problem_codes_and_statuses() -> None:
    rows = table("Problems", "code", "status", "when")
    assert {row[0]: int(row[1]) for row in rows} == {
        error.code: status for error, status in STATUS.items()
    }
    every = {
        value
        for value in vars(core_errors).values()
        if isinstance(value, type) and issubclass(value, core_errors.OnwardError)
    }
    assert every - {core_errors.OnwardError} == set(STATUS), "an error has no status"


def _fields(row: Row) -> set[str]:
    cell = row[1] if "`" in row[1] else f"`{row[1]}`"
    return set(re.findall(r"`([a-z]\w*)\??`", cell))


def _wire(frame: type[Any]) -> tuple[str, set[str]]:
    shape = shapes.type_info(frame)
    assert isinstance(shape, shapes.StructType)
    return str(shape.tag), {field.encode_name for field in shape.fields}


def test_frames_from_the_worker() -> None:
    rows = {row[0]: row for row in _frames(0)}
    known = dict(_wire(frame) for frame in FROM_WORKER)
    assert set(rows) == set(known)
    assert set(FROM_WORKER) == set(socket.Session._ON), "a frame that nobody hears, or tells of"
    for tag, fields in known.items():
        assert _fields(rows[tag]) == fields, tag


def test_frames_from_the_server() -> None:
    rows = {row[0]: row for row in _frames(1)}
    known = dict(_wire(frame) for frame in FROM_SERVER)
    del known["ping"]  # the server answers pings, and sends none
    assert set(rows) == set(known)
    for tag, fields in known.items():
        assert _fields(rows[tag]) == fields, tag


def _frames(which: int) -> Sequence[Row]:
    found = [rows for header, rows in tables("The worker socket") if header == ("type", "fields")]
    return found[which]


def test_close_codes() -> None:
    codes = re.search(r"Close codes: (.*?)\n\n", section("The worker socket"), flags=re.S)
    assert codes is not None
    said = {int(code) for code in re.findall(r"\b[14]\d{3}\b", codes[1])}
    assert said == {socket.REPLACED, socket.TOO_MANY, socket.GOING_AWAY}


def test_settings_names_and_defaults() -> None:
    rows = {row[0]: row for row in table("Settings", "name", "default", "unit", "meaning")}
    known: Mapping[str, Any] = {
        _names(field.validation_alias): field for field in Settings.model_fields.values()
    }
    assert set(rows) == set(known)
    for name, field in known.items():
        assert rows[name][1] == _written(field.default), name
        choices = [str(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
        if choices:
            assert words(rows[name][2]) == choices, name


def _names(alias: object) -> str:
    return ", ".join(map(str, alias.choices)) if isinstance(alias, AliasChoices) else str(alias)


def _written(default: object) -> str:
    if default is None or default in ((), ""):
        return "none"
    return msgspec.json.encode(default).decode().strip('"')


def _told(noun: str) -> set[str]:
    """The names in the first code span of a paragraph that begins with **noun.**"""
    found = re.search(rf"\*\*{noun}\.\*\* `(.*?)`", section("The native API"), flags=re.S)
    assert found is not None, f"no paragraph tells of {noun}"
    return set(re.findall(r'"(\w+)"' if '"' in found[1] else r"\w+", found[1]))


@pytest.mark.parametrize(
    ("noun", "shape"),
    [
        ("Task", TaskView),
        ("Submit", Submit),
        ("Service", ServiceDeclaration),
        ("Schedule", ScheduleBody),
        ("Explain", Explanation),
    ],
)
def test_native_shapes(noun: str, shape: type[msgspec.Struct]) -> None:
    assert _told(noun) == {field.encode_name for field in msgspec.structs.fields(shape)}


def test_the_tasks_doors_shape() -> None:
    found = re.search(
        r"\*\*Task\.\*\* `(.*?)` and, ours, `(.*?)`", section("The tasks door"), flags=re.S
    )
    assert found is not None
    assert [*found[1].split(), *found[2].split()] == list(TaskDetail.__struct_fields__)


def test_the_document_stays_short() -> None:
    assert len(TEXT.splitlines()) <= 730


def test_the_words_on_the_wire_are_those_of_the_core() -> None:
    """`wire` imports nothing of ours, so that these stand there once more."""
    assert set(get_args(wire.State)) == {state.value for state in State}
    assert set(get_args(wire.Phase)) == {phase.value for phase in Phase}
