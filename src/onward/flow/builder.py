"""Flows in Python: a small builder that compiles to the JSON definition, and nothing more.

flow = Flow("review")
fetch = flow.executor("fetch", service="fetch", input=params.url, output="doc")
route = flow.choice("route", {"long": shared.doc.size > 10_000}, default_action="short")
fetch >> route
route - "long" >> flow.executor("summarize", service="summarize", output="text")
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import signature
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict, TypeVar, Unpack

import msgspec

from onward.flow import definition
from onward.flow.parts import Definition, Mode, Strategy


class Ref:
    """A path, written as Python: `shared.doc.size`, `params["a key"]`. Compared, it is a Cond."""

    __slots__ = ("_path",)
    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # == makes a condition

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("__"):
            raise AttributeError(name)
        return Ref(f"{self._path}.{name}")

    def __getitem__(self, key: str | int) -> Ref:
        return Ref(f"{self._path}.{key}")

    def __str__(self) -> str:
        return self._path

    def __eq__(self, other: object) -> Cond:  # type: ignore[override]
        return self._compared("eq", other)

    def __ne__(self, other: object) -> Cond:  # type: ignore[override]
        return self._compared("ne", other)

    def __gt__(self, other: object) -> Cond:
        return self._compared("gt", other)

    def __lt__(self, other: object) -> Cond:
        return self._compared("lt", other)

    def __ge__(self, other: object) -> Cond:
        return self._compared("ge", other)

    def __le__(self, other: object) -> Cond:
        return self._compared("le", other)

    def _compared(self, name: str, other: object) -> Cond:
        return Cond({name: [self._path, _operand(other)]})


class Cond:
    """An expression that can be joined to others by `&`, `|` and `~`."""

    __slots__ = ("expr",)

    def __init__(self, expr: Mapping[str, Any]) -> None:
        self.expr: Mapping[str, Any] = expr

    def __and__(self, other: Cond) -> Cond:
        return Cond({"and": [self.expr, other.expr]})

    def __or__(self, other: Cond) -> Cond:
        return Cond({"or": [self.expr, other.expr]})

    def __invert__(self) -> Cond:
        return Cond({"not": self.expr})

    def __bool__(self) -> bool:
        raise TypeError("a condition is decided by the engine; join conditions by & | ~")


params: Ref = Ref("$params")
shared: Ref = Ref("$shared")
given: Ref = Ref("$input")


def exists(path: Ref) -> Cond:
    """The path leads somewhere, be it to null."""
    return Cond({"exists": str(path)})


def within(item: object, container: object) -> Cond:
    """The item is in the list, the text or the keys of the object."""
    return Cond({"in": [_operand(item), _operand(container)]})


def _operand(value: object) -> object:
    if isinstance(value, Ref):
        return str(value)
    if isinstance(value, str) and value.startswith("$"):
        return "$" + value  # a text as it stands: paths are Refs here
    return [_operand(each) for each in value] if isinstance(value, list | tuple) else value


Path: TypeAlias = str | Ref
Test: TypeAlias = Cond | Mapping[str, Any]


class NodeOptions(TypedDict, total=False):
    """What any node may have. `input` and `output` take a key or a map of them."""

    input: Path | Mapping[str, Path]
    output: str | Mapping[str, str]
    params: Mapping[str, Any]
    action_static: str
    action_key: Path
    default_action: str
    error_key: str
    description: str
    compensate: str | Mapping[str, Any]  # a service, or all of it


class Tries(NodeOptions, total=False):
    """What a node that makes calls may have besides."""

    max_retries: int
    wait_ms: int
    max_attempts: int
    attempt_delay_ms: int
    weighted_by_load: bool
    timeout_ms: int


class Fan(Tries, total=False):
    """What a node that makes many calls may have besides."""

    parallel_mode: Mode
    max_parallel: int
    failure_strategy: Strategy


class Step:
    """A node of a flow. `a >> b` draws the default edge, `a - "word" >> b` that of an action."""

    def __init__(self, flow: Flow, key: str) -> None:
        self.flow = flow
        self.key = key

    def __rshift__(self, target: Target) -> Target:
        return Branch(self, "default") >> target

    def __sub__(self, action: str) -> Branch:
        return Branch(self, action)


class Branch:
    """The edge of an action, before it has a target: `step - "word"`."""

    def __init__(self, step: Step, action: str) -> None:
        self.step = step
        self.action = action

    def __rshift__(self, target: Target) -> Target:
        if target.flow is not self.step.flow:
            raise ValueError(f"{self.step.key!r} and {target.key!r} are nodes of two flows")
        target.flow.edge(self.step.key, self.action, target.key)
        return target


Target = TypeVar("Target", bound=Step)


class Flow:
    """A flow that is put together in Python: nodes, and the edges between them."""

    def __init__(
        self,
        name: str | None = None,
        *,
        max_steps: int | None = None,
        description: str = "",
        tool: bool | Mapping[str, Any] = False,
    ) -> None:
        """`tool`: agents are offered it; with {"description", "parameters"}, by this description
        and with params that fit this JSON Schema.
        """
        self._head = {
            "name": name,
            "description": description,
            "max_steps": max_steps,
            "tool": tool,
        }
        self._start: str | None = None
        self._nodes: dict[str, dict[str, Any]] = {}
        self._edges: list[dict[str, str]] = []

    def executor(self, key: str, service: str, **options: Unpack[Tries]) -> Step:
        """A call of a service."""
        return self._node("executor", key, {"service": service}, options, Tries)

    def local(self, key: str, service: str, **options: Unpack[Tries]) -> Step:
        """A call of a function of the server's own process."""
        return self._node("local", key, {"service": service}, options, Tries)

    def choice(
        self, key: str, choice_cases: Mapping[str, Test], **options: Unpack[NodeOptions]
    ) -> Step:
        """The first case that holds names the action; `default_action` does if none holds."""
        listed = [
            {"action": action, "expr": test.expr if isinstance(test, Cond) else test}
            for action, test in choice_cases.items()
        ]
        return self._node("choice", key, {"choice_cases": listed}, options)

    def parallel(self, key: str, parallel_services: Sequence[str], **options: Unpack[Fan]) -> Step:
        """Several services with one input; their results are in the order of the services."""
        own = {"parallel_services": list(parallel_services)}
        return self._node("parallel", key, own, options, Fan)

    def foreach(self, key: str, service: str, **options: Unpack[Fan]) -> Step:
        """One service with each item of the input; the results are in the order of the items."""
        return self._node("foreach", key, {"service": service}, options, Fan)

    def subflow(self, key: str, flow: Flow, **options: Unpack[NodeOptions]) -> Step:
        """A graph inside this node, with a shared state of its own."""
        return self._node("subflow", key, {"subflow": flow.definition()}, options)

    def flow_ref(
        self, key: str, flow: str, *, version: int | None = None, **options: Unpack[Tries]
    ) -> Step:
        """A run of a published flow; its final shared state is the result."""
        return self._node("flow_ref", key, _params(flow=flow, version=version), options, Tries)

    def timer(self, key: str, delay_ms: int | Path, **options: Unpack[NodeOptions]) -> Step:
        """Wait so long, which holds no worker."""
        return self._node("timer", key, _params(delay_ms=delay_ms), options)

    def wait_event(
        self,
        key: str,
        signal_key: Path | None = None,
        *,
        timeout_ms: int | Path | None = None,
        **options: Unpack[NodeOptions],
    ) -> Step:
        """Wait until the shared key holds something true, by a signal or otherwise."""
        own = _params(signal_key=signal_key, timeout_ms=timeout_ms)
        return self._node("wait_event", key, own, options)

    def approval(
        self,
        key: str,
        approval_key: Path | None = None,
        *,
        reason: str | None = None,
        timeout_ms: int | Path | None = None,
        from_data: bool | None = None,
        **options: Unpack[NodeOptions],
    ) -> Step:
        """A person is asked; `approval_key` is the shared key that gets the decision."""
        own = _params(
            approval_key=approval_key, reason=reason, timeout_ms=timeout_ms, from_data=from_data
        )
        return self._node("approval", key, own, options)

    def start(self, step: Step) -> None:
        """Where a run begins; otherwise at the node that was made first."""
        self._start = step.key

    def edge(self, source: str, action: str, target: str) -> None:
        """The edge from one node to another, by their keys; `>>` is shorter."""
        self._edges.append({"from": source, "action": action, "to": target})

    def definition(self) -> dict[str, Any]:
        """The flow as data, as it is published."""
        head = {name: value for name, value in self._head.items() if value}
        return {**head, "start": self._start, "nodes": dict(self._nodes), "edges": self._edges[:]}

    def to_json(self) -> str:
        """The definition as JSON text."""
        return msgspec.json.encode(self.definition()).decode()

    def check(self) -> Definition:
        """Read as the server reads it; raises with every flaw, each naming its node."""
        return definition.parse(self.definition())

    def _node(
        self,
        kind: str,
        key: str,
        own: Mapping[str, Any],
        options: Mapping[str, Any],
        known: type = NodeOptions,
    ) -> Step:
        if key in self._nodes:
            raise ValueError(f"there is a node {key!r} already")
        _refuse_unknown(kind, options, known.__annotations__)
        node = {"kind": kind, **_written(options)}
        given_params = node.get("params", {})
        node |= own
        if given_params:
            node["params"] = {**given_params, **own.get("params", {})}
        self._nodes[key] = node
        self._start = self._start or key
        return Step(self, key)


_POST = ("action_static", "action_key", "error_key")
# Words of earlier versions that are like none of today's.
_NOW = {
    "undo": "compensate",
    "workers": "max_attempts",
    "worker_delay_ms": "attempt_delay_ms",
    "by_load": "weighted_by_load",
    "concurrent": "parallel_mode",
    "on_failure": "failure_strategy",
    "within_ms": "timeout_ms",
}


def _refuse_unknown(kind: str, options: Iterable[str], known: Collection[str]) -> None:
    for name in options:
        if name not in known:
            named = signature(getattr(Flow, kind)).parameters
            takes = [each for each in named if each not in ("self", "key", "options")]
            takes += [each for each in known if each not in takes]
            close = [_NOW[name]] if name in _NOW else get_close_matches(name, takes, n=1)
            nearest = f"did you mean {close[0]!r}? " if close else ""
            raise TypeError(f"{kind}() takes no {name!r}; {nearest}it takes {', '.join(takes)}")


def _written(options: Mapping[str, Any]) -> dict[str, Any]:
    aside = {*_POST, "input", "output", "compensate"}
    node = {name: _plain(each) for name, each in options.items() if name not in aside}
    if (value := options.get("input")) is not None:
        node["prep"] = {_keyed("input", value): _plain(value)}
    post = {name: _plain(options[name]) for name in _POST if name in options}
    if (value := options.get("output")) is not None:
        post[_keyed("output", value)] = _plain(value)
    if post:
        node["post"] = post
    if (undo := options.get("compensate")) is not None:
        node["compensate"] = {"service": undo} if isinstance(undo, str) else _plain(undo)
    return node


def _keyed(what: Literal["input", "output"], value: object) -> str:
    return f"{what}_map" if isinstance(value, Mapping) else f"{what}_key"


def _params(**values: object) -> dict[str, Any]:
    return {"params": {name: _plain(each) for name, each in values.items() if each is not None}}


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
