"""docs/reference against the code: what its tables say is what the server does.

PROTOCOL.md is the index of these pages.
"""

from __future__ import annotations

import os
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
from onward.core.policy import BY_ERROR, POISON_AFTER, TRANSIENT, profiles
from onward.core.task import FINAL, FINAL_EVENTS, State
from onward.doors.errors import STATUS
from onward.doors.flows.rows import RunRow
from onward.doors.tasks.shapes import TaskDetail
from onward.doors.vocabulary import AGENTS, FLOWS, MCP, STREAMS, SYNC, TASKS
from onward.doors.worker_socket import REFUSED
from onward.faults import PERMANENT
from onward.native.caller import Action
from onward.settings import Settings
from onward.wire import base as wire
from onward.wire import frames
from onward.wire.approvals import ApprovalView
from onward.wire.attention import AttentionItem, Rule
from onward.wire.base import MAX_BODY
from onward.wire.batches import BatchTerms, BatchView
from onward.wire.dead_letters import DeadGroup, Replay
from onward.wire.encryption import RotationStep
from onward.wire.health import HealthView
from onward.wire.keys import AuditEntry, CreateKey, KeyView
from onward.wire.limits import LimitUse, LimitView
from onward.wire.log import ReaderView
from onward.wire.notifications import Notification
from onward.wire.operations import OperationFilter, OperationView
from onward.wire.problems import Problem
from onward.wire.queues import QueueView
from onward.wire.runs import NodeRun, RunView
from onward.wire.schedules import ScheduleBody
from onward.wire.services import ServiceDeclaration
from onward.wire.sessions import SessionView
from onward.wire.tasks import Debounce, Explanation, Submit, TaskView, Unique
from onward.wire.workers import WorkerView
from onward.workers.socket import sessions as socket

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.stem: path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")}
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
    *(ROOT / "clients").glob("*/*.md"),
    *(ROOT / "web").glob("*.md"),
]
SOURCES = "\n".join(path.read_text() for path in (ROOT / "src" / "onward").rglob("*.py"))

Row = tuple[str, ...]
LIFE = "task-lifecycle"
FAILURE = "Failure: classes, schedules, clocks"
FROM_WORKER = get_args(frames.FromWorker)
FROM_SERVER = get_args(frames.FromServer)


def section(page: str, heading: str) -> str:
    text = PAGES[page]
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, flags=re.M)
    assert found is not None, f"{page}.md has no section {heading!r}"
    body = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", body, flags=re.M)
    return body if end is None else body[: end.start()]


def tables(text: str) -> Iterator[tuple[Row, Sequence[Row]]]:
    """Each table of a text: its header and its rows, cells without their back-ticks."""
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        lines = [_cells(line) for line in block.splitlines()]
        assert all(len(line) == len(lines[0]) for line in lines), block
        yield lines[0], lines[2:]


def table(page: str, heading: str, *header: str) -> Sequence[Row]:
    for names, rows in tables(section(page, heading)):
        if names[: len(header)] == header:
            return rows
    raise AssertionError(f"{page}.md, {heading!r}: no table begins with {header}")


def _cells(line: str) -> Row:
    return tuple(_bare(cell.strip()) for cell in line.strip().strip("|").split("|"))


def _bare(cell: str) -> str:
    return cell.strip("`") if cell.count("`") == 2 else cell


def words(cell: str) -> list[str]:
    return [word.strip() for word in cell.split(",")]


def test_states_and_transitions() -> None:
    rows = table(LIFE, "States and transitions", "from", "to", "events")
    documented = {(State(row[0]), State(row[1])): frozenset(words(row[2])) for row in rows}
    assert documented == TRANSITIONS
    assert len(documented) == len(rows), "a transition stands there twice"
    text = section(LIFE, "States and transitions")
    finals = re.search(r"Four of them are final: `([a-z ]+)`", text)
    assert finals is not None
    assert {State(word) for word in finals[1].split()} == FINAL


def test_phases_and_the_vocabularies() -> None:
    rows = table(LIFE, "Phases and vocabularies", "phase", "when", "sync", "streams", "agents")
    columns = (SYNC, STREAMS, AGENTS, TASKS, FLOWS, MCP)
    assert {row[0] for row in rows} == set(Phase)
    for column, vocabulary in enumerate(columns, start=2):
        assert {Phase(row[0]): row[column] for row in rows} == vocabulary


def test_event_types_and_which_of_them_are_final() -> None:
    rows = table(LIFE, "Events", "type", "data", "final")
    documented = [row[0] for row in rows]
    assert len(documented) == len(set(documented))
    known = set(re.findall(r'"((?:task|approval|node|signal)\.[a-z_]+)"', SOURCES)) - set(Action)
    assert set(documented) == known
    assert {event for events in TRANSITIONS.values() for event in events} <= known
    assert {row[0] for row in rows if row[2] == "yes"} == FINAL_EVENTS


def test_retry_schedules() -> None:
    rows = table(LIFE, FAILURE, "class")
    assert {row[0] for row in rows} == set(BY_ERROR)
    for name, causes, delays, jitter in rows:
        schedule = BY_ERROR[name]
        assert tuple(int(delay) * 1000 for delay in words(delays)) == schedule.delays_ms
        low, high = (int(part) / 100 for part in jitter.removesuffix(" %").split("–"))
        assert (low, high) == schedule.jitter
        named = {word for word in words(causes) if word in TRANSIENT}
        assert named == {word for word, class_ in TRANSIENT.items() if class_ == name}


def test_permanent_errors_and_poison() -> None:
    text = section(LIFE, FAILURE)
    rule = re.search(r"permanent if it is (.*?); anything", text, flags=re.S)
    assert rule is not None
    assert set(re.findall(r"`(\w+)`", rule[1])) == PERMANENT
    assert f"{POISON_AFTER} in a row end the task" in text


def test_profiles() -> None:
    rows = table(LIFE, FAILURE, "profile")
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
    documented = [
        (row[0], path)
        for text in PAGES.values()
        for header, rows in tables(text)
        if header == ("method", "path", "answers")
        for row in rows
        for path in _forms(row[1])
    ]
    assert "`GET /ws/worker`" in section("workers", "The worker socket")
    assert len(documented) == len(set(documented))
    assert {*documented, ("GET", "/ws/worker")} == _routes()


def test_problem_codes_and_statuses() -> None:
    rows = table("errors", "Problems", "code", "status", "when")
    assert {row[0]: int(row[1]) for row in rows} == {
        error.code: status for error, status in STATUS.items()
    }
    every = {
        value
        for value in vars(core_errors).values()
        if isinstance(value, type) and issubclass(value, core_errors.CoreError)
    }
    assert every - {core_errors.CoreError} == set(STATUS), "an error has no status"


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
    assert set(FROM_WORKER) == set(socket.Session._ON), "a frame without its handler"
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
    text = section("workers", "The worker socket")
    return [rows for header, rows in tables(text) if header == ("type", "fields")][which]


def test_close_codes() -> None:
    text = section("workers", "The worker socket")
    codes = re.search(r"Close codes: (.*?)\n\n", text, flags=re.S)
    assert codes is not None
    documented = {int(code) for code in re.findall(r"\b[14]\d{3}\b", codes[1])}
    assert documented == {socket.REPLACED, socket.TOO_MANY, socket.GOING_AWAY, REFUSED}


def test_settings_names_and_defaults() -> None:
    found = table("settings", "Server", "name", "default", "unit", "meaning")
    rows = {row[0]: row for row in found}
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


@pytest.mark.parametrize(
    ("page", "heading", "shape"),
    [
        ("http-api", "Submit", Submit),
        ("http-api", "Task", TaskView),
        ("bulk", "Batch terms", BatchTerms),
        ("bulk", "Batch", BatchView),
        ("bulk", "Filter", OperationFilter),
        ("bulk", "Operation", OperationView),
        ("bulk", "Unique", Unique),
        ("bulk", "Debounce", Debounce),
        ("http-api", "Explain", Explanation),
        ("http-api", "Approval", ApprovalView),
        ("http-api", "Dead letter group", DeadGroup),
        ("http-api", "Replay", Replay),
        ("http-api", "Schedule", ScheduleBody),
        ("http-api", "Service", ServiceDeclaration),
        ("http-api", "Worker", WorkerView),
        ("http-api", "Queue", QueueView),
        ("limits", "Limit", LimitView),
        ("limits", "Limit use", LimitUse),
        ("webhooks", "Attention item", AttentionItem),
        ("keys", "Create key", CreateKey),
        ("keys", "Key", KeyView),
        ("keys", "Audit entry", AuditEntry),
        ("http-api", "Health", HealthView),
        ("http-api", "Log reader", ReaderView),
        ("http-api", "Rotation step", RotationStep),
        ("agents", "Session", SessionView),
        ("agents", "Notification", Notification),
        ("errors", "Problems", Problem),
    ],
)
def test_native_shapes(page: str, heading: str, shape: type[msgspec.Struct]) -> None:
    assert _named(page, heading) == sorted(_fields_of(shape))


def test_a_run_is_a_task_with_more() -> None:
    assert _named("http-api", "Run") == sorted(_fields_of(RunView) - _fields_of(TaskView))


def _named(page: str, heading: str) -> list[str]:
    """The fields in the first column of a table, of which several may share a row."""
    rows = table(page, heading, "field", "meaning")
    return sorted(re.findall(r"\w+", " ".join(row[0] for row in rows)))


def _fields_of(shape: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(shape)}


def test_why_a_task_is_where_it_is() -> None:
    rows = table("http-api", "Explain", "reason", "when")
    documented = {word for row in rows for word in words(row[0])}
    source = (ROOT / "src/onward/native/explain.py").read_text()
    known = set(re.findall(r'return \(?\s*"([a-z_]+)", ', source))
    assert documented == known - set(Phase)


def test_what_needs_attention() -> None:
    rows = table("webhooks", "Attention item", "rule", "target", "when")
    assert [row[0] for row in rows] == list(get_args(Rule))


def test_the_tasks_doors_shape() -> None:
    found = re.search(
        r"\*\*Task\.\*\* `(.*?)` and, ours, `(.*?)`", section("tasks-api", "Task"), flags=re.S
    )
    assert found is not None
    assert [*found[1].split(), *found[2].split()] == list(TaskDetail.__struct_fields__)


def test_the_flow_centres_shapes() -> None:
    run = re.search(r"`(.*?)` and, ours, `(.*?)`", section("flow-centre", "Run"), flags=re.S)
    assert run is not None
    assert [*run[1].split(), run[2]] == list(RunRow.__struct_fields__)
    found = re.search(r"`(.*?)`", section("flow-centre", "Node run"), flags=re.S)
    assert found is not None
    assert found[1].split() == list(NodeRun.__struct_fields__)


def test_the_index_stays_short_and_leads_to_every_page() -> None:
    index = (ROOT / "PROTOCOL.md").read_text()
    assert len(index.splitlines()) <= 40
    assert all(f"(docs/reference/{page}.md)" in index for page in PAGES)
    assert all(len(text.splitlines()) <= 450 for text in PAGES.values())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        page = document.parent / path if path else document
        if _on_the_site(page):  # made when it is built, which checks the anchor, too
            continue
        assert page.exists(), target
        if anchor:
            assert anchor in _anchors(page.read_text()), target


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_path_that_a_document_names_exists(document: str) -> None:
    known = {f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("src/**/*.*")}
    known |= {f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("tests/**/*.py")}
    text = (ROOT / document).read_text()
    named = re.findall(r"(?<![\w*>])[a-z_]+(?:/[a-z_]+)*\.(?:py|sql|lua)\b", text)
    missing = [name for name in named if not any(path.endswith(f"/{name}") for path in known)]
    assert missing == ["utils.py"] * len(missing)


def _on_the_site(page: Path) -> bool:
    menu = (ROOT / "mkdocs.yml").read_text()
    inside = Path(os.path.normpath(page)).relative_to(ROOT).as_posix().removeprefix("docs/")
    return not page.exists() and re.search(rf"\s{re.escape(inside)}$", menu, re.M) is not None


def _anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings}


def test_the_words_on_the_wire_are_those_of_the_core() -> None:
    """`wire` imports nothing of ours, so that these stand there once more."""
    assert set(get_args(wire.State)) == {state.value for state in State}
    assert set(get_args(wire.Phase)) == {phase.value for phase in Phase}


def test_the_limits_on_bodies_and_frames_are_those_of_the_code() -> None:
    body = f"at most {MAX_BODY >> 20} MiB"
    assert body in PAGES["http-api"]
    assert f"larger than {MAX_BODY >> 20} MiB" in PAGES["errors"]
    assert frames.LARGEST == MAX_BODY + (64 << 10)
    assert f"{body} + 64 KiB each" in PAGES["workers"]
