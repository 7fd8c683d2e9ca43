"""From a definition as it is written (JSON) to its parts: all flaws are reported together.

What cannot be reached, or looks like a slip but means something, is a warning and no flaw. What a
node kind asks of its node stands with the kind, in nodes/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from onward.core.errors import Invalid
from onward.flow import expr
from onward.flow.fields import MAX_MS, Book, Fields, shown
from onward.flow.nodes import KINDS
from onward.flow.parts import (
    DEFAULT,
    MAX_STEPS,
    AsTool,
    Case,
    Compensation,
    Definition,
    Edge,
    Flaw,
    Mode,
    Node,
    Post,
    Prep,
    Strategy,
    reached,
)
from onward.flow.scope import RESERVED, key_flaw, path_flaw

MAX_NODES = 1_000
MAX_EDGES = 5_000
MAX_SUBFLOWS = 8  # inside each other
MAX_BYTES = 256 * 1024
MAX_STEPS_EVER = 1_000_000
MAX_TRIES = 1_000
MAX_PARALLEL = 1_000
NAMED = 20  # flaws in an error's text; the rest is counted

MODES = ("sequential", "concurrent")
STRATEGIES = ("fail_fast", "collect_errors", "ignore_errors")

# On other kinds these mean nothing. That is doubtful, not wrong: some clients send all fields.
_FAN = frozenset({"parallel", "foreach"})
_AT_HOME: Mapping[str, frozenset[str]] = {
    "service": frozenset({"executor", "local", "foreach"}),
    "choice_cases": frozenset({"choice"}),
    "parallel_services": frozenset({"parallel"}),
    "parallel_mode": _FAN,
    "max_parallel": _FAN,
    "failure_strategy": _FAN,
    "subflow": frozenset({"subflow"}),
}


class DefinitionFaults(Invalid):
    """Everything that is wrong with a definition; `flaws` has it one by one."""

    def __init__(self, flaws: list[Flaw]) -> None:
        named = "; ".join(map(str, flaws[:NAMED]))
        more = f"; and {len(flaws) - NAMED} more" if len(flaws) > NAMED else ""
        super().__init__(named + more, pointer=flaws[0].field)
        self.flaws = tuple(flaws)


def parse(raw: object) -> Definition:
    book = Book()
    _weigh(raw, book)
    definition = _graph(raw, book, path="", depth=0)
    if book.flaws:
        raise DefinitionFaults(book.flaws)
    return msgspec.structs.replace(definition, warnings=tuple(book.warnings))


def _weigh(raw: object, book: Book) -> None:
    """Too large, or no JSON at all: nothing else is looked at then."""
    try:
        size = len(msgspec.json.encode(raw))
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise DefinitionFaults([Flaw(None, "", f"the definition is not JSON: {error}")]) from None
    if size > MAX_BYTES:
        message = f"the definition takes {size} bytes; at most {MAX_BYTES} are allowed"
        raise DefinitionFaults([Flaw(None, "", message)])


def _graph(raw: object, book: Book, *, path: str, depth: int) -> Definition:
    """A whole definition, or a subflow: then flaws name the node that it lies in."""
    fields = Fields(raw, book, node=path.rstrip("/") or None, name="subflow" if path else "")
    nodes = {
        key: _node(key, node, book, path, depth) for key, node in _named_nodes(fields, book, path)
    }
    edges = _edges(fields, book, nodes, path)
    graph = Definition(
        start=_start(fields, nodes) or "",
        nodes=nodes,
        edges=edges,
        actions=_by_node(edges),
        name=fields.text("name"),
        description=fields.text("description"),
        max_steps=fields.number("max_steps", MAX_STEPS_EVER, low=1) or MAX_STEPS,
        tool=None if path else _tool(fields),
    )
    fields.close()
    _unreachable(graph, book, path)
    return graph


def _tool(fields: Fields) -> AsTool | None:
    """`true`, or what its tool says and takes. That its schema is one, the catalog checks."""
    asked = fields.raw("tool")
    if asked is None or isinstance(asked, bool):
        return AsTool() if asked else None
    tool = fields.inner("tool")
    if tool is None or not isinstance(asked, Mapping):
        return None
    description, parameters = tool.text("description"), tool.object("parameters")
    tool.close()
    if parameters and parameters.get("type") != "object":
        tool.flaw("parameters", 'tool.parameters must have "type": "object": they are named')
    return AsTool(description=description, **({"parameters": parameters} if parameters else {}))


def _named_nodes(fields: Fields, book: Book, path: str) -> list[tuple[str, Any]]:
    nodes = fields.object("nodes")
    book.nodes += len(nodes)
    if book.nodes > MAX_NODES:
        fields.flaw("nodes", f"more than {MAX_NODES} nodes")
        return []
    if not nodes:
        fields.flaw("nodes", f"{fields.named('nodes')} is missing or empty")
    for key in nodes:
        if not isinstance(key, str) or not key or "/" in key or key == RESERVED:
            book.add(
                Flaw(f"{path}{key}", "nodes", "a node's key must be text without '/', and not _rt")
            )
    return list(nodes.items())


def _start(fields: Fields, nodes: Mapping[str, Node]) -> str | None:
    start = fields.text("start", required=True)
    if start is not None and nodes and start not in nodes:
        named = fields.named("start")
        fields.flaw("start", f"{named} names no node: {start!r}{fields.nearest(start, nodes)}")
    return start


def _edges(fields: Fields, book: Book, nodes: Mapping[str, Node], path: str) -> tuple[Edge, ...]:
    raw = fields.list("edges")
    book.edges += len(raw)
    if book.edges > MAX_EDGES:
        fields.flaw("edges", f"more than {MAX_EDGES} edges")
        return ()
    edges: dict[tuple[str, str], Edge] = {}
    for number, each in enumerate(raw):
        edge = _edge(each, book, nodes, path, fields.named(f"edges[{number}]"))
        if edge is None:
            continue
        if (edge.source, edge.action) in edges:
            message = f"two edges for action {edge.action!r}"
            book.add(Flaw(path + edge.source, fields.named(f"edges[{number}]"), message))
        edges[edge.source, edge.action] = edge
    return tuple(edges.values())


def _edge(raw: Any, book: Book, nodes: Mapping[str, Node], path: str, name: str) -> Edge | None:
    before = len(book.flaws)
    fields = Fields(raw, book, node=path.rstrip("/") or None, name=name)
    source, target = fields.text("from", required=True), fields.text("to", required=True)
    action = fields.text("action") or DEFAULT
    fields.close()
    for end, key in (("from", source), ("to", target)):
        if key is not None and nodes and key not in nodes:
            fields.flaw(
                end, f"{fields.named(end)} names no node: {key!r}{fields.nearest(key, nodes)}"
            )
    if source is None or target is None or len(book.flaws) > before:
        return None
    return Edge(source, action, target)


def _by_node(edges: Iterable[Edge]) -> dict[str, dict[str, str]]:
    actions: dict[str, dict[str, str]] = {}
    for edge in edges:
        actions.setdefault(edge.source, {})[edge.action] = edge.target
    return actions


def _unreachable(graph: Definition, book: Book, path: str) -> None:
    seen = set(reached(graph.start, graph.targets))
    for key in (key for key in graph.nodes if key not in seen):
        book.warnings.append(Flaw(path + key, "", "no edge leads here from the start"))


def _node(key: str, raw: Any, book: Book, path: str, depth: int) -> Node:
    fields = Fields(raw, book, node=f"{path}{key}")
    if not isinstance(raw, Mapping):
        return Node(key=key, kind="")
    _asked_in_vain(fields)
    kind = fields.text("kind", required=True)
    at_once = fields.number("max_parallel", MAX_PARALLEL) or None
    node = Node(
        key=key,
        kind=kind or "",
        service=fields.text("service"),
        description=fields.text("description"),
        params=fields.object("params"),
        prep=_prep(fields.inner("prep")),
        post=_post(fields.inner("post")),
        default_action=fields.text("default_action"),
        max_retries=fields.number("max_retries", MAX_TRIES) or 0,
        wait_ms=fields.number("wait_ms", MAX_MS) or 0,
        max_attempts=fields.number("max_attempts", MAX_TRIES) or 1,
        attempt_delay_ms=fields.number("attempt_delay_ms", MAX_MS) or 0,
        weighted_by_load=fields.flag("weighted_by_load", default=True),
        timeout_ms=fields.number("timeout_ms", MAX_MS) or None,
        choice_cases=_cases(fields, book),
        parallel_services=_services(fields),
        parallel_mode=_mode(fields, at_once),
        max_parallel=at_once,
        failure_strategy=cast(
            Strategy, fields.one_of("failure_strategy", STRATEGIES) or "fail_fast"
        ),
        subflow=_subflow(fields, book, f"{path}{key}/", depth + 1),
        compensate=_compensation(fields.inner("compensate")),
    )
    fields.close()
    if kind is not None:
        _of_its_kind(node, fields)
    return node


def _mode(fields: Fields, at_once: int | None) -> Mode:
    """A bound on how many at a time means that they run at a time."""
    mode = fields.one_of("parallel_mode", MODES)
    if mode == "sequential" and (at_once or 0) > 1:
        what = f"max_parallel {at_once} means nothing with parallel_mode 'sequential'"
        fields.doubt("max_parallel", f"{what}; did you mean 'concurrent'?")
    return cast(Mode, mode or ("sequential" if at_once is None else "concurrent"))


def _asked_in_vain(fields: Fields) -> None:
    kind = fields.raw("kind")
    for field, kinds in _AT_HOME.items():
        set_ = fields.raw(field) not in (None, 0, [], {})
        if set_ and isinstance(kind, str) and kind in KINDS and kind not in kinds:
            fields.doubt(field, f"{field} means nothing on kind {kind!r}")


def _of_its_kind(node: Node, fields: Fields) -> None:
    kind = KINDS.get(node.kind)
    if kind is None:
        hint = fields.nearest(node.kind, KINDS) or f"; there are {', '.join(KINDS)}"
        fields.flaw("kind", f"unknown kind {node.kind!r}{hint}")
        return
    for field, message in kind.check(node):
        fields.flaw(field, f"{field} {message}")


def _prep(fields: Fields | None) -> Prep:
    if fields is None:
        return Prep()
    key = fields.text("input_key")
    mapped = dict(fields.texts("input_map"))
    fields.close()
    paths = {"input_key": key, **{f"input_map.{to}": path for to, path in mapped.items()}}
    _check(fields, paths, path_flaw)
    return Prep(key, mapped)


def _post(fields: Fields | None) -> Post:
    if fields is None:
        return Post()
    post = Post(
        output_key=_plain(fields.text("output_key")),
        output_map={_plain(to) or "": field for to, field in fields.texts("output_map")},
        action_static=fields.text("action_static"),
        action_key=fields.text("action_key"),
        error_key=_plain(fields.text("error_key")),
    )
    fields.close()
    written = {
        "output_key": post.output_key,
        "error_key": post.error_key,
        **{f"output_map.{to}": to for to in post.output_map},
    }
    _check(fields, written, key_flaw)
    _check(fields, {"action_key": post.action_key}, path_flaw)
    return post


def _check(
    fields: Fields, values: Mapping[str, str | None], flaw_of: Callable[[str], str | None]
) -> None:
    for field, value in values.items():
        flaw = None if value is None else flaw_of(value)
        if flaw is not None:
            fields.flaw(field, f"{fields.named(field)} {flaw}")


def _plain(key: str | None) -> str | None:
    return None if key is None else key.removeprefix("$shared.")


def _cases(fields: Fields, book: Book) -> tuple[Case, ...]:
    cases = []
    for number, raw in enumerate(fields.list("choice_cases")):
        name = f"choice_cases[{number}]"
        # A case is no node, but its flaws are the node's.
        case = Fields(raw, book, node=fields.node, name=name)
        action, what = case.text("action", required=isinstance(raw, Mapping)), case.raw("expr")
        case.close()
        for message in ["is missing"] if what is None else expr.flaws(what):
            case.flaw("expr", f"{name}.expr {message}")
        for message in expr.doubts(what):
            case.doubt("expr", f"{name}.expr: {message}")
        cases.append(Case(action or DEFAULT, what))
    return tuple(cases)


def _services(fields: Fields) -> tuple[str, ...]:
    services = fields.list("parallel_services")
    for number, service in enumerate(services):
        if not isinstance(service, str) or not service:
            name = f"parallel_services[{number}]"
            fields.flaw(name, f"{name} must be text, not {shown(service)}")
    return tuple(services)


def _subflow(fields: Fields, book: Book, path: str, depth: int) -> Definition | None:
    raw = fields.raw("subflow")
    if raw is None:
        return None
    if depth > MAX_SUBFLOWS:
        fields.flaw("subflow", f"subflows lie more than {MAX_SUBFLOWS} deep in each other")
        return None
    return _graph(raw, book, path=path, depth=depth)


def _compensation(fields: Fields | None) -> Compensation | None:
    if fields is None:
        return None
    service = fields.text("service", required=True)
    params = fields.object("params")
    prep = fields.inner("prep")
    fields.close()
    return Compensation(service or "", params, None if prep is None else _prep(prep))
