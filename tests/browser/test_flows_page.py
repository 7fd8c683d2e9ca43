"""Flows, runs and schedules in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import PHONE, Site, code
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8", "S4-14")]

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
TIMER = {"kind": "timer", "params": {"delay_ms": 1}}
ASKING: dict[str, Any] = {
    "start": "each",
    "nodes": {
        "each": {
            "kind": "foreach",
            "service": "echo",
            "prep": {"input_key": "$params.items"},
            "post": {"output_key": "seen"},
        },
        "ask": {"kind": "approval", "params": {"reason": "May it go on?"}},
        "after": {
            "kind": "executor",
            "service": "echo",
            "prep": {"input_map": {"note": "$params.note"}},
            "post": {"output_key": "said"},
        },
        "sorry": TIMER,
    },
    "edges": [
        {"from": "each", "to": "ask"},
        {"from": "ask", "action": "approved", "to": "after"},
        {"from": "ask", "action": "rejected", "to": "sorry"},
    ],
}


SHORT = {
    "start": "large",
    "nodes": {
        "large": {
            "kind": "choice",
            "choice_cases": [{"action": "ask", "expr": {"gt": ["$params.total", 100]}}],
        },
        "ask": {"kind": "approval", "params": {"reason": "More than 100: continue?"}},
        "label": TIMER,
    },
    "edges": [
        {"from": "large", "action": "ask", "to": "ask"},
        {"from": "large", "to": "label"},
        {"from": "ask", "action": "approved", "to": "label"},
    ],
}


def publish(site: Site, name: str = "asking", definition: Any = ASKING) -> None:
    site.post("/api/v2/flows", {"name": name, "definition": definition})


def start(site: Site, flow: str = "asking", **params: Any) -> str:
    id: str = site.post("/api/v2/runs", {"flow": flow, "params": params})["id"]
    return id


def until_at(site: Site, run: str, node: str) -> None:
    poll_until(lambda: site.get(f"/api/v2/runs/{run}")["current_node"] == node)


def node(page: Page, key: str) -> Locator:
    return page.locator(f"[data-node='{key}']")


def badge(page: Page, word: str) -> None:
    expect(page.locator("h1 .badge")).to_contain_text(word)


def test_a_flow_is_run_from_its_form_and_approved_in_its_graph(site: Site) -> None:
    publish(site)
    with site.page("/flows") as page:
        page.get_by_role("link", name="asking", exact=True).click()
        page.get_by_role("button", name="Run", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("items").fill('[{"a": 1}, {"a": 2}]')
        dialog.get_by_label("note").fill("plain words")
        dialog.get_by_role("button", name="Run").click()
        expect(page).to_have_url(re.compile("/ui/runs/"))
        expect(node(page, "ask")).to_have_attribute(
            "aria-label", re.compile("needs approval, current")
        )
        expect(node(page, "each")).to_have_attribute("aria-label", re.compile("done, 2 of 2"))
        # By keys alone: away from the node that the page follows, and back to it.
        node(page, "each").press("Enter")
        expect(page.get_by_role("progressbar")).to_have_attribute("value", "2")
        node(page, "ask").press("Enter")
        page.get_by_label("Your name").fill("ann")
        page.get_by_label("Comment").fill("looks right")
        page.get_by_role("button", name="Approve", exact=True).click()
        badge(page, "succeeded")
        expect(node(page, "after")).to_have_attribute("aria-label", re.compile("done"))
        expect(node(page, "sorry")).to_have_attribute("aria-label", re.compile("not reached"))
        page.keyboard.press("f")  # from the step that was decided back to the end
        shared = page.get_by_role("region", name="shared state", exact=True)
        expect(shared).to_contain_text("plain words")
    (run,) = site.get("/api/v2/runs")["items"]
    assert run["params"] == {"items": [{"a": 1}, {"a": 2}], "note": "plain words"}
    (approval,) = site.get("/api/v2/approvals?status=approved")["items"]
    assert (approval["by"], approval["comment"]) == ("ann", "looks right")


def test_a_rejection_takes_its_own_edge(site: Site) -> None:
    publish(site)
    run = start(site, items=[], note="no")
    until_at(site, run, "ask")
    with site.page(f"/runs/{run}") as page:
        page.get_by_label("Your name").fill("ann")
        page.get_by_role("button", name="Reject", exact=True).click()
        badge(page, "succeeded")
        expect(node(page, "sorry")).to_have_attribute("aria-label", re.compile("done"))
        expect(page.locator(".steps")).to_contain_text("→ rejected")


def test_what_is_wrong_with_a_definition_is_shown_at_its_nodes(site: Site) -> None:
    with site.page("/flows?new=1") as page:
        page.get_by_label("Name").fill("fresh")
        text = page.get_by_label("Definition")
        good = json.dumps(SHORT, indent=2)
        bad = good.replace('"approval"', '"aproval"').replace('"to": "label"', '"to": "labl"')
        text.fill(bad)
        expect(node(page, "ask")).to_have_attribute(
            "aria-label", re.compile("unknown kind 'aproval'")
        )
        # An edge that leads nowhere is the fault of the node that it leaves.
        expect(node(page, "large")).to_have_attribute("aria-label", re.compile("names no node"))
        publishing = page.get_by_role("button", name="Review and publish")
        expect(publishing).to_be_disabled()
        text.fill(good)
        expect(page.get_by_text("Valid", exact=True)).to_be_visible()
        publishing.click()
        dialog = page.get_by_role("dialog", name="Publish fresh?")
        dialog.get_by_role("button", name="Publish", exact=True).click()
        expect(page.locator("h1")).to_have_text("fresh")
        page.get_by_role("button", name="Edit").click()
        text = page.get_by_label("Definition")
        expect(text).to_contain_text("More than 100")
        text.fill(good.replace("More than 100", "More than a hundred"))
        publishing.click()
        dialog = page.get_by_role("dialog", name="Publish version 2 of fresh?")
        expect(dialog.get_by_role("region", name="Changes")).to_contain_text("+")
        dialog.get_by_role("button", name="Publish version 2").click()
        # Once it is published the page leaves the editor, and with it a tab that was chosen before.
        expect(page).not_to_have_url(re.compile("tab=edit"))
        page.get_by_role("button", name="Versions").click()
        changes = page.get_by_role("region", name="Changes")
        expect(changes.locator(".diff-old")).to_contain_text("More than 100")
        expect(changes.locator(".diff-new")).to_contain_text("More than a hundred")
    assert site.get("/api/v2/flows/fresh")["version"] == 2


def test_a_run_is_forked_from_a_node_with_another_state(site: Site) -> None:
    publish(site)
    run = start(site, items=[], note="first")
    until_at(site, run, "ask")
    with site.page(f"/runs/{run}?node=after") as page:
        page.get_by_role("button", name="Fork from here").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Shared state").fill('{"brought": "along"}')
        dialog.get_by_role("button", name="Fork", exact=True).click()
        expect(dialog).to_contain_text(re.compile("approv"))  # the run still waits for it
        assert any("409" in one for one in site.complaints)
        site.complaints.clear()
        dialog.get_by_role("button", name="Fork anyway").click()
        expect(page).not_to_have_url(re.compile(run))
        badge(page, "succeeded")
        expect(page.get_by_role("region", name="shared state")).to_contain_text("along")
        expect(page.locator(".facts").first.get_by_role("link")).to_have_attribute(
            "href", f"/ui/runs/{run}"
        )
    assert site.get(f"/api/v2/runs/{run}")["state"] == "waiting"


def test_a_fork_behind_what_was_undone_asks_first(site: Site) -> None:
    echo = {"kind": "executor", "service": "echo", "prep": {"input_key": "$params.n"}}
    inner = {"start": "hold", "nodes": {"hold": {**echo, "post": {"output_key": "held"}}}}
    undone = {
        "start": "reserve",
        "nodes": {
            "reserve": {
                **echo, "post": {"output_key": "place"}, "compensate": {"service": "echo"}
            },
            "box": {"kind": "subflow", "subflow": inner},
            "ship": {"kind": "foreach", "service": "echo", "prep": {"input_key": "nothing"}},
        },
        "edges": [{"from": "reserve", "to": "box"}, {"from": "box", "to": "ship"}],
    }  # fmt: skip
    publish(site, "undone", undone)
    run = start(site, "undone", n=7)
    poll_until(lambda: site.get(f"/api/v2/runs/{run}")["state"] == "failed")
    with site.page(f"/runs/{run}?node=ship") as page:
        page.get_by_role("button", name="Fork from here").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_label("Shared state")).to_have_value(re.compile('"place": 7'))
        dialog.get_by_role("button", name="Fork", exact=True).click()
        expect(dialog).to_contain_text("reserve was undone since")
        assert any("409" in one for one in site.complaints)  # the browser notes every refusal
        site.complaints.clear()
        dialog.get_by_role("button", name="Fork anyway").click()
        expect(page).not_to_have_url(re.compile(run))
        badge(page, "failed")
    with site.page(f"/runs/{run}?node={quote('box/hold', safe='')}") as page:
        page.get_by_role("button", name="Fork from here").click()
        expect(page.get_by_role("dialog").get_by_label("Shared state")).to_have_value("{}")


def test_a_signal_is_sent_where_the_run_waits_for_it(site: Site) -> None:
    waiting = {
        "start": "gate",
        "nodes": {"gate": {"kind": "wait_event", "params": {"signal_key": "$shared.go"}}},
    }
    publish(site, "gated", waiting)
    run = start(site, "gated")
    until_at(site, run, "gate")
    with site.page(f"/runs/{run}", size=PHONE) as page:
        # A phone gets the list; the graph is one tap away.
        expect(page.locator(".node-list")).to_contain_text("waiting · for a signal")
        page.get_by_label("Value").fill('{"green": true}')
        page.get_by_role("button", name="Send signal").click()
        badge(page, "succeeded")
        expect(page.get_by_role("region", name="shared state")).to_contain_text("green")
        page.get_by_role("button", name="Diagram").click()
        expect(page.locator("svg.graph")).to_be_visible()


def test_a_run_is_canceled_from_its_page(site: Site) -> None:
    publish(site)
    run = start(site, items=[], note="no")
    until_at(site, run, "ask")
    with site.page(f"/runs/{run}") as page:
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Cancel run").click()
        badge(page, "canceled")


def test_a_schedule_is_added_triggered_paused_and_removed(site: Site) -> None:
    with site.page("/schedules") as page:
        page.get_by_role("button", name="New schedule").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("nightly")
        dialog.get_by_label("Task type").fill("echo")
        dialog.get_by_label("Payload").fill('{"hello": "night"}')
        dialog.get_by_label("Cron").fill("0 33 * * *")
        dialog.get_by_role("button", name="Create schedule").click()
        expect(dialog.locator(".field", has=page.get_by_label("Cron"))).to_contain_text("33")
        expect(dialog.get_by_label("Cron")).to_have_attribute("aria-invalid", "true")
        assert any("422" in one for one in site.complaints)  # the browser notes every refusal
        site.complaints.clear()
        dialog.get_by_label("Cron").fill("0 3 * * *")
        dialog.get_by_role("button", name="Create schedule").click()
        expect(dialog).to_have_count(0)
        page.get_by_role("button", name="Pause nightly").click()
        expect(page.get_by_text("paused", exact=True)).to_be_visible()
        assert site.get("/api/v2/schedules/nightly")["paused"] is True
        page.get_by_role("button", name="Trigger nightly").click()
        expect(page).to_have_url(re.compile("/ui/schedules$"))  # nobody is taken elsewhere
        page.locator(".toast").get_by_role("link", name="Show").click()
        expect(page).to_have_url(re.compile("/ui/tasks/"))
        badge(page, "succeeded")
        expect(page.get_by_role("region", name="payload")).to_contain_text("night")
    with site.page("/schedules/nightly") as page:
        page.get_by_role("button", name="Edit").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Interval").click()
        dialog.get_by_label("Every").fill("2")
        dialog.get_by_label("Unit").select_option("hours")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_have_count(0)
        changed = site.get("/api/v2/schedules/nightly")
        assert (changed["every_ms"], changed["cron"], changed["paused"]) == (7_200_000, None, True)
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("button", name="Delete schedule").click()
        expect(page.get_by_text("No schedules yet")).to_be_visible()


def test_a_flow_is_scheduled_and_its_run_is_shown(site: Site) -> None:
    publish(site)
    body = {"name": "weekly", "flow": "asking", "params": {"items": []}, "every_ms": 3_600_000}
    site.post("/api/v2/schedules", body)
    with site.page("/schedules/weekly") as page:
        page.get_by_role("button", name="Trigger weekly").click()
        page.locator(".toast").get_by_role("link", name="Show").click()
        expect(page).to_have_url(re.compile("/ui/runs/"))
        expect(node(page, "ask")).to_have_attribute("aria-label", re.compile("needs approval"))


def test_nodes_do_not_lie_upon_each_other(site: Site) -> None:
    pairs = ["ab", "ac", "ad", "be", "ce", "dh", "ef", "fb", "fg", "gh", "gg", "ah"]
    edges = [{"from": pair[0], "action": pair, "to": pair[1]} for pair in pairs]
    nodes: dict[str, Any] = dict.fromkeys("abcdefgh", TIMER)
    nodes["c"] = {"kind": "subflow", "subflow": {"start": "x", "nodes": {"x": TIMER, "y": TIMER}}}
    publish(site, "tangled", {"start": "a", "nodes": nodes, "edges": edges})
    with site.page("/flows/tangled") as page:
        expect(page.locator(".hit")).to_have_count(10)
        boxes = {
            hit.get_attribute("data-node") or "": hit.bounding_box()
            for hit in page.locator(".hit").all()
        }
        for one, a in boxes.items():
            for other, b in boxes.items():
                assert a is not None
                assert b is not None
                apart = (
                    a["x"] + a["width"] <= b["x"]
                    or b["x"] + b["width"] <= a["x"]
                    or a["y"] + a["height"] <= b["y"]
                    or b["y"] + b["height"] <= a["y"]
                )
                within = one.startswith(f"{other}/") or other.startswith(f"{one}/")
                assert apart or within or one == other, (one, other)
        assert page.locator("path.line").count() == len(pairs)
        assert page.locator("path.line.back").count() == 2  # f to b, and g to itself


def test_two_keys_go_to_a_page_whatever_one_of_them_means_alone(site: Site) -> None:
    publish(site)
    run = start(site, items=[], note="no")
    until_at(site, run, "ask")
    with site.page(f"/runs/{run}?node=each") as page:
        expect(node(page, "ask")).to_be_visible()
        page.keyboard.press("f")  # follow
        expect(page).to_have_url(re.compile(f"{run}$"))
        page.keyboard.press("g")
        page.keyboard.press("f")
        expect(page).to_have_url(re.compile("/ui/flows$"))


def fill(site: Site, text: str = "plain") -> list[str]:
    """Something on every page of flows; `text` wherever somebody may write something."""
    key, name = text.replace("/", "|"), text.replace("/", "|")[:100]
    definition = {
        "description": text,
        "start": key,
        "nodes": {
            key: {"kind": "executor", "service": "echo", "prep": {"input_key": "$params.note"}},
            "ask": {"kind": "approval", "description": text, "params": {"reason": text}},
            "box": {
                "kind": "subflow",
                "subflow": {"start": "in", "nodes": {"in": TIMER}},
            },
            "lonely": {"kind": "executor", "service": text},
        },
        "edges": [{"from": key, "to": "ask"}, {"from": "ask", "action": text, "to": "box"}],
    }
    publish(site, name, definition)
    publish(site, name, {**definition, "description": f"{text} again"})
    run = start(site, name, note={text: text})
    until_at(site, run, "ask")
    site.post(
        "/api/v2/schedules", {"name": name, "type": "echo", "payload": text, "cron": "@daily"}
    )
    site.post(f"/api/v2/schedules/{quoted(name)}/trigger", None)
    flow = f"/flows/{quoted(name)}"
    return [
        *("/flows", "/flows?new=1", "/runs", "/schedules", f"/schedules/{quoted(name)}"),
        *(flow, f"{flow}?as=list", f"{flow}?tab=versions", f"{flow}?tab=definition"),
        *(f"{flow}?tab=edit", f"{flow}?tab=runs"),
        *(f"/runs/{run}", f"/runs/{run}?as=list", f"/runs/{run}?node={quoted(key)}"),
    ]


def quoted(text: str) -> str:
    return quote(text, safe="")


def settled(page: Page) -> None:
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".skeleton")).to_have_count(0)


def test_what_a_flow_is_made_of_is_shown_as_text(site: Site) -> None:
    paths = fill(site, EVIL)
    for path in paths:
        with site.page(path) as page:
            settled(page)
            assert page.locator("main img, main script, main iframe").count() == 0
    with site.page(paths[-3]) as page:
        expect(page.locator(".decide")).to_contain_text("<script>alert(2)</script>")


def test_axe_finds_nothing_serious_in_flows(site: Site, axe: Callable[[Page], list[str]]) -> None:
    found: dict[str, list[str]] = {}
    for path in fill(site):
        with site.page(path) as page:
            settled(page)
            if findings := axe(page):
                found[path] = findings
    with site.page("/schedules") as page:
        settled(page)
        page.get_by_role("button", name="New schedule").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        if findings := axe(page):
            found["new schedule"] = findings
    assert found == {}


STEPS: dict[str, Any] = {
    "start": "one",
    "nodes": {
        "one": {
            "kind": "executor",
            "service": "echo",
            "prep": {"input_key": "$params.first"},
            "post": {"output_key": "first"},
        },
        "two": {
            "kind": "executor",
            "service": "echo",
            "prep": {"input_key": "$params.second"},
            "post": {"output_key": "second"},
        },
    },
    "edges": [{"from": "one", "to": "two"}],
}


def test_the_shared_state_is_shown_at_any_step(site: Site) -> None:
    publish(site, "steps", STEPS)
    run = start(site, "steps", first={"a": 1}, second={"b": 2})
    poll_until(lambda: site.get(f"/api/v2/runs/{run}")["state"] == "succeeded")
    with site.page(f"/runs/{run}") as page:
        slider = page.get_by_role("slider", name="Step")
        before = page.get_by_role("region", name="shared state before")
        after = page.get_by_role("region", name="shared state after")
        expect(slider).to_have_attribute("aria-valuetext", "the end")
        expect(slider).to_have_attribute("max", "3")  # two steps, before them and after them
        page.keyboard.press("[")
        expect(slider).to_have_attribute("aria-valuetext", "step 2, two")
        expect(before).not_to_contain_text("second")
        expect(after.locator(".json-changed")).to_contain_text("second")
        expect(after).to_contain_text("first")
        # The same from the timeline, and from the graph.
        page.locator(".steps").get_by_role("button", name="one", exact=True).click()
        expect(slider).to_have_attribute("aria-valuetext", "step 1, one")
        expect(after.locator(".json-changed")).to_contain_text("first")
        node(page, "two").click()
        expect(slider).to_have_attribute("aria-valuetext", "step 2, two")
        expect(page).to_have_url(re.compile("step=2"))
        slider.press("Home")
        expect(page.get_by_role("region", name="shared state at the start")).to_be_visible()
        slider.press("End")
        expect(page.get_by_role("region", name="shared state", exact=True)).to_contain_text("b: 2")


def test_a_step_that_cannot_be_rebuilt_says_so(site: Site) -> None:
    wait = {"kind": "wait_event", "params": {"signal_key": "$shared.sign"}}
    publish(site, "waiting", {"start": "wait", "nodes": {"wait": wait}, "edges": []})
    run = start(site, "waiting")
    until_at(site, run, "wait")
    site.post(f"/api/v2/runs/{run}/signal", {"name": "wait", "value": "x" * 5_000})
    poll_until(lambda: site.get(f"/api/v2/runs/{run}")["state"] == "succeeded")
    with site.page(f"/runs/{run}?step=1") as page:
        expect(page.get_by_role("status").filter(has_text="Cannot be rebuilt")).to_contain_text(
            "sign: the value was too large to be written down"
        )


def test_a_large_graph_is_fitted_zoomed_and_moved(site: Site) -> None:
    names = [f"step-{n}" for n in range(40)]
    edges = [{"from": a, "to": b} for a, b in pairwise(names)]
    nodes = dict.fromkeys(names, TIMER)
    publish(site, "long", {"start": names[0], "nodes": nodes, "edges": edges})
    with site.page("/flows/long") as page:
        frame = page.get_by_role("region", name="Graph of long")
        last = node(page, names[-1])
        expect(last).not_to_be_in_viewport()
        expect(page.locator(".minimap")).to_be_visible()
        page.get_by_role("button", name="Fit").click()
        all_of_it = (
            "box => box.scrollHeight <= box.clientHeight && box.scrollWidth <= box.clientWidth"
        )
        poll_until(lambda: frame.evaluate(all_of_it))
        expect(page.locator(".minimap")).to_have_count(0)
        frame.press("+")
        frame.press("+")
        frame.press("+")
        expect(page.locator(".minimap")).to_be_visible()
        size = page.locator(".minimap").bounding_box()
        assert size is not None
        page.locator(".minimap").click(position={"x": size["width"] / 2, "y": size["height"] - 2})
        poll_until(lambda: frame.evaluate("box => box.scrollTop") > 0)
        down = frame.evaluate("box => box.scrollTop")
        place = frame.bounding_box()
        assert place is not None
        page.mouse.move(place["x"] + 12, place["y"] + 40)
        page.mouse.down()
        page.mouse.move(place["x"] + 12, place["y"] + 140)
        page.mouse.up()
        assert frame.evaluate("box => box.scrollTop") == down - 100


def test_more_runs_come_as_one_scrolls(site: Site) -> None:
    publish(site, "tick", {"start": "t", "nodes": {"t": TIMER}, "edges": []})
    first = start(site, "tick")
    for _ in range(129):
        start(site, "tick")
    with site.page("/runs") as page:
        rows = page.locator(".virtual .list-row")
        expect(rows.first).to_be_visible()
        assert rows.count() < 100
        expect(page.get_by_text("100 loaded, more as you scroll")).to_be_attached()
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(page.get_by_text("130 runs", exact=True)).to_be_attached()
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(page.get_by_role("link", name=first[-12:])).to_be_visible()


def test_a_flow_is_rolled_back_to_an_older_version(site: Site) -> None:
    publish(site, "short", {"start": "one", "nodes": {"one": TIMER}, "edges": []})
    later = {"kind": "timer", "params": {"delay_ms": 2}}
    definition = {"start": "one", "nodes": {"one": later}, "edges": []}
    site.post("/api/v2/flows/short/versions", {"definition": definition})
    with site.page("/flows/short?tab=versions") as page:
        page.get_by_role("button", name="Roll back to version 1").click()
        dialog = page.get_by_role("dialog", name="Roll back to version 1?")
        expect(dialog.locator(".diff-new")).to_contain_text('"delay_ms": 1')
        dialog.get_by_role("button", name="Publish version 3").click()
        expect(dialog).to_have_count(0)
    found = site.get("/api/v2/flows/short")
    assert found["version"] == 3
    assert found["definition"]["nodes"]["one"]["params"] == {"delay_ms": 1}


def test_where_a_definition_is_no_json_is_shown_and_gone_to(site: Site) -> None:
    with site.page("/flows?new=1") as page:
        text = page.get_by_label("Definition")
        expect(text).to_contain_text("large")
        text.fill('{\n  "start": "a",\n  "nodes": {"a": {"kind": "timer"}}\n  "edges": []\n}')
        place = page.get_by_role("button", name="Line 4, column 3: expected , or }")
        place.click()
        page.keyboard.press("ArrowLeft")
        page.keyboard.type(",")
        expect(place).to_have_count(0)
        assert '\n  ,"edges"' in code(text)
        page.keyboard.press("Control+z")
        expect(place).to_be_visible()
