"""A definition as a picture."""

from __future__ import annotations

import re
from typing import Any

from onward.flow.definition import parse
from onward.flow.graph import mermaid, outline
from onward.wire.flows import EdgeView, NodeView
from tests.flow.simulated_run import call, chain, edge

FLOW: dict[str, Any] = {
    "start": "fetch",
    "nodes": {
        "lost": call("never"),
        "fetch": call("fetch"),
        "big": {"kind": "choice", "default_action": "no"},
        "each": {"kind": "foreach", "service": "read", "prep": {"input_key": "x"}},
        "sub": {"kind": "subflow", "subflow": chain(("i", call("inner")), ("j", call("inner")))},
        "ask": {"kind": "approval", "params": {"reason": "goes to print"}},
    },
    "edges": [
        edge("fetch", "", "big"),
        edge("big", "yes", "each"),
        edge("big", "no", "sub"),
        edge("each", "", "ask"),
        edge("sub", "", "ask"),
    ],
}


def test_a_graph_is_drawn_with_its_subflows_inside() -> None:
    assert mermaid(parse(FLOW)) == (
        "flowchart TD\n"
        '    n0["lost<br/>never"]\n'
        '    n1["▶ fetch<br/>fetch"]\n'
        '    n2{"big"}\n'
        '    n3[["each<br/>read for each"]]\n'
        '    subgraph n4["sub"]\n'
        '        n5["▶ i<br/>inner"]\n'
        '        n6["j<br/>inner"]\n'
        "        n5 --> n6\n"
        "    end\n"
        '    n7{{"ask<br/>goes to print"}}\n'
        "    n1 --> n2\n"
        '    n2 -->|"yes"| n3\n'
        '    n2 -->|"no"| n4\n'
        "    n3 --> n7\n"
        "    n4 --> n7\n"
    )


def test_states_are_coloured_and_unknown_ones_left_alone() -> None:
    states = {"fetch": "ok", "big": "ok", "sub/i": "running", "gone": "ok", "ask": "odd"}
    drawn = mermaid(parse(FLOW), states).splitlines()
    assert [line.strip() for line in drawn if line.startswith("    class ")] == [
        "class n1,n2 ok",
        "class n5 running",
    ]
    assert sum(line.startswith("    classDef") for line in drawn) == 2


def test_no_markup_gets_through() -> None:
    nasty = '"]; click n0 "javascript:alert(1)"\n<script>x</script>%%{init}%%`#`'
    flow = chain((nasty.replace("/", ""), call(nasty)), ("b", call()))
    flow["edges"][0]["action"] = nasty
    drawn = mermaid(parse(flow))
    text = r'[^"<>`%]*'
    node, drawn_edge = rf'    n\d\["{text}(<br/>{text})?"\]', rf'    n0 -->\|"{text}"\| n1'
    head, *lines = drawn.splitlines()
    assert (head, len(lines)) == ("flowchart TD", 3)
    assert all(re.fullmatch(f"{node}|{drawn_edge}", line) for line in lines)


def test_an_outline_goes_as_a_run_would() -> None:
    rows = outline(parse(FLOW))
    assert [(row.depth, row.key, row.kind) for row in rows] == [
        (0, "fetch", "executor"),
        (0, "big", "choice"),
        (0, "each", "foreach"),
        (0, "sub", "subflow"),
        (1, "sub/i", "executor"),
        (1, "sub/j", "executor"),
        (0, "ask", "approval"),
        (0, "lost", "executor"),
    ]
    leads_to = (EdgeView(action="yes", to="each"), EdgeView(action="no", to="sub"))
    assert rows[1] == NodeView(key="big", kind="choice", edges=leads_to)
    to_big = (EdgeView(action="default", to="big"),)
    assert rows[0] == NodeView(key="fetch", kind="executor", what="fetch", start=True, edges=to_big)
