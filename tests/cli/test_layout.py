"""How graphs are drawn: each node once, every edge with its action."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from onward.cli.layout import DEEPEST, EXIT, Line, joins, lay_out
from onward.wire.flows import EdgeView, NodeView


def graph(*edges: tuple[str, str, str], also: Sequence[str] = ()) -> list[NodeView]:
    keys = dict.fromkeys([key for source, _, to in edges for key in (source, to)] + [*also])
    return [
        NodeView(
            key=key,
            kind="executor",
            start=number == 0,
            edges=tuple(
                EdgeView(action=action, to=to) for source, action, to in edges if source == key
            ),
        )
        for number, key in enumerate(keys)
    ]


def drawn(lines: Sequence[Line]) -> str:
    return "\n".join(_line(line).rstrip() for line in lines)


def _line(line: Line) -> str:
    node = "" if line.node is None else line.node.key.rpartition("/")[2]
    arrow = "" if line.leads_to is None else f"{line.arrow} {line.leads_to}"
    return f"{line.rails}{line.edge}{line.note}{node}{arrow}"


def picture(*lines: str) -> str:
    return "\n".join(lines)


def test_a_branch_that_ends_hangs_from_its_node() -> None:
    lines = lay_out(graph(("route", "goB", "b"), ("route", "goC", "c")))
    assert drawn(lines) == picture("route", "├─ goB ─ b", "└─ goC ─ c")


def test_branches_that_meet_again_go_on_below() -> None:
    edges = graph(
        ("a", "x", "b"), ("a", "long", "c"), ("a", "skip", "d"), ("b", "default", "d"),
        ("c", "default", "d"), ("d", "default", "e"),
    )  # fmt: skip
    assert drawn(lay_out(edges)) == picture(
        "a", "├─ x ──── b", "├─ long ─ c", "├─ skip ─ ↓ d", "│", "d", "│", "e"
    )


def test_a_failure_edge_leaves_the_line_and_does_not_take_its_nodes() -> None:
    edges = graph(
        ("a", "error", "c"), ("a", "default", "b"), ("b", "default", "c"), ("b", "error", "mend"),
        ("mend", "default", "a"),
    )  # fmt: skip
    assert drawn(lay_out(edges)) == picture(
        "a", "├─ error ─ ↓ c", "│", "b", "├─ error ─ mend", "│          └─ ↑ a", "│", "c"
    )


def test_an_action_on_the_line_is_said_and_a_taken_edge_is_heavy() -> None:
    edges = graph(("ask", "approved", "go"), ("ask", "rejected", "stop"), ("go", "done", "end"))
    taken = frozenset({("ask", "go"), ("go", "end")})
    assert drawn(lay_out(edges, taken)) == picture(
        "ask", "├━ approved ━ go", "│             ┃ done", "│             end", "└─ rejected ─ stop"
    )


def test_what_no_edge_leads_to_is_shown_as_such() -> None:
    assert drawn(lay_out(graph(("a", "default", "b"), also=["lost"]))) == picture(
        "a", "│", "b", "", "no edge leads here:", "lost"
    )


def test_a_subflow_is_drawn_inside_its_node() -> None:
    nodes = [
        NodeView(key="a", kind="subflow", start=True, edges=(EdgeView(action="default", to="b"),)),
        NodeView(
            key="a/x", kind="executor", start=True, edges=(EdgeView(action="default", to="y"),)
        ),
        NodeView(key="a/y", kind="executor"),
        NodeView(key="b", kind="executor"),
    ]
    assert drawn(lay_out(nodes, airy=False)) == picture("a", "│ ┊ x", "│ ┊ y", "b")


def test_many_branches_inside_each_other_do_not_run_off_the_page() -> None:
    edges = [
        edge
        for n in range(60)
        for edge in ((f"n{n}", "on", f"n{n + 1}"), (f"n{n}", "off", f"end{n}"))
    ]
    lines = lay_out(graph(*edges))
    assert max(len(line.rails) for line in lines) <= DEEPEST * len("│ off ─── ")
    assert len([line for line in lines if line.node is not None]) == 121


def test_joins_are_where_every_way_must_pass() -> None:
    ways = {"a": ["b", "c"], "b": ["d"], "c": ["d", "e"], "d": ["f"], "e": ["f"], "f": []}
    assert joins(ways) == {
        EXIT: EXIT, "a": "f", "b": "d", "c": "f", "d": "f", "e": "f", "f": EXIT
    }  # fmt: skip


KEYS = [f"n{number}" for number in range(8)]
ACTIONS = st.sampled_from(["default", "error", "timeout", "a", "b"])


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(KEYS), ACTIONS), st.sampled_from(KEYS), min_size=1, max_size=24
    )
)
def test_whatever_the_graph_each_node_stands_once_and_no_edge_is_lost(
    edges: dict[tuple[str, str], str],
) -> None:
    nodes = graph(*((source, action, to) for (source, action), to in edges.items()), also=KEYS)
    lines = lay_out(nodes)
    stands = [line.node.key for line in lines if line.node is not None]
    assert sorted(stands) == KEYS
    text = drawn(lines)
    for _, action in edges:
        assert action == "default" or action in text
