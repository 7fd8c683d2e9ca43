"""axe finds nothing on any page or dialog, in any size and colour; and none of them is left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDE, Site, code
from tests.processes import HTTP
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]

SOURCES = Path(__file__).parents[2] / "web" / "src"
FLOW = {
    "start": "ask",
    "nodes": {"ask": {"kind": "approval"}, "nap": {"kind": "timer", "params": {"delay_ms": 1}}},
    "edges": [{"from": "ask", "action": "approved", "to": "nap"}],
}


def fill(site: Site) -> dict[str, str]:
    """One of everything; what stands for the names in the addresses of pages."""
    site.start_worker()
    dead = [site.submit("picky", {"n": n}, max_retries=0, session_id="ann") for n in range(2)]
    queued = site.submit("nobody-does-this")
    site.post("/api/v2/flows", {"name": "short", "definition": FLOW})
    nap = {"start": "nap", "nodes": {"nap": FLOW["nodes"]["nap"]}}  # type: ignore[index]
    run = site.post("/api/v2/runs", {"flow": "short"})["id"]
    site.post("/api/v2/flows/short/versions", {"definition": {**nap, "edges": []}})
    site.post("/api/v2/schedules", {"name": "nightly", "type": "echo", "cron": "0 3 * * *"})
    HTTP.put(f"{site.url}/api/v2/limits/crm", json={"concurrency": {"total": 2}}).raise_for_status()
    site.post("/api/v2/services", {"name": "crm", "task_types": ["crm"], "limits": ["crm"]})
    many = {"tasks": [{"type": "crm"}, {"type": "crm"}], "batch": {"name": "import"}}
    batch = site.post("/api/v2/tasks/batch", many)["batch"]
    site.post("/api/v2/tasks/cancel", {"filter": {"type": "no-such-type"}})
    poll_until(lambda: all(site.get(f"/api/v2/tasks/{id}")["state"] == "dead" for id in dead))
    poll_until(lambda: site.get(f"/api/v2/runs/{run}")["current_node"] == "ask")
    return {
        "/tasks/:id": f"/tasks/{dead[0]}",
        "/flows/:flow": "/flows/short",
        "/runs/:id": f"/runs/{run}",
        "/sessions/:id": "/sessions/ann",
        "/queues/:name": "/queues/picky",
        "/workers/:id": "/workers/tester",
        "/services/:name": "/services/countdown",
        "/schedules/:name": "/schedules/nightly",
        "/limits/:name": "/limits/crm",
        "/batches/:id": f"/batches/{batch}",
        "queued": f"/tasks/{queued}",
    }


def ready(page: Page) -> None:
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".skeleton")).to_have_count(0)


def test_axe_finds_nothing_on_any_page(site: Site, axe: Callable[[Page], list[str]]) -> None:
    names = fill(site)
    paths = re.findall(
        r'^    path: "(.*)"|\{ path: "(.*?)"', (SOURCES / "pages.ts").read_text(), re.M
    )
    routes = [one or other for one, other in paths]
    assert len(routes) >= 23
    found = {}
    with site.page("/") as page:
        for route in [*routes, "/not/a/page"]:
            page.goto(f"{site.url}/ui{names[route] if ':' in route else route}")
            ready(page)
            if findings := axe(page):
                found[route] = findings
    assert found == {}


def choose_all(page: Page) -> None:
    page.get_by_role("checkbox", name="Select all loaded tasks").check()


def edited(page: Page) -> None:
    text = page.get_by_label("Definition")
    expect(text).to_be_visible()
    text.fill(code(text).replace('"delay_ms": 1', '"delay_ms": 2'))


def more(page: Page) -> None:
    page.get_by_role("button", name="Add a rate").click()


Step: TypeAlias = str | Callable[[Page], None]
# The file that has it, its page, and what opens it: keys, the names of buttons, or more.
DIALOGS: dict[str, tuple[str, str, tuple[Step, ...]]] = {
    "palette": ("components/palette.tsx", "/", ("key:Control+k",)),
    "help": ("components/palette.tsx", "/", ("key:?",)),
    "many tasks": ("components/bulk.tsx", "/tasks", (choose_all, "Cancel")),
    "a saved view": ("components/savedviews.tsx", "/tasks?q=state:dead", ("Save this view",)),
    "cancel a task": ("views/Task.tsx", "queued", ("Cancel",)),
    "retry a task": ("views/Task.tsx", "/tasks/:id", ("Retry",)),
    "abandon a task": ("views/Task.tsx", "/tasks/:id", ("Abandon",)),
    "retry a group": ("components/replay.tsx", "/dead-letters", ("Retry", "Change some fields")),
    "abandon a group": ("views/DeadLetters.tsx", "/dead-letters", ("Abandon",)),
    "drain a worker": ("components/drain.tsx", "/workers", ("Drain tester",)),
    "pause a queue": ("components/pause.tsx", "/queues", ("Pause picky",)),
    "run a flow": ("components/runform.tsx", "/flows/:flow", ("Run",)),
    "publish": ("components/floweditor.tsx", "edit", (edited, "Review and publish")),
    "roll back": ("views/Flow.tsx", "versions", ("Roll back to version 1",)),
    "fork": ("components/node.tsx", "/runs/:id", ("Fork from here",)),
    "cancel a run": ("views/Run.tsx", "/runs/:id", ("Cancel",)),
    "new schedule": ("components/scheduleform.tsx", "/schedules?new=1", ()),
    "delete a schedule": ("views/Schedule.tsx", "/schedules/:name", ("Delete",)),
    "new limit": ("components/limits.tsx", "/limits?new=1", ()),
    "change a limit": ("components/limits.tsx", "/limits/:name", ("Change", more, "Review")),
    "delete a limit": ("views/Limit.tsx", "/limits/:name", ("Delete",)),
    "delete many tasks": ("components/bulk.tsx", "/tasks?q=state:dead", (choose_all, "Delete")),
    "new key": ("views/Keys.tsx", "/keys", ("New key",)),
}


def test_no_dialog_is_left_out() -> None:
    opening = re.compile(r"<(Dialog|Confirm)\b")
    having = {
        str(file.relative_to(SOURCES))
        for file in SOURCES.rglob("*.tsx")
        if opening.search(file.read_text())
    }
    assert having - {"components/confirm.tsx"} == {file for file, _, _ in DIALOGS.values()}


def test_axe_finds_nothing_in_any_dialog(site: Site, axe: Callable[[Page], list[str]]) -> None:
    names = fill(site)
    names["edit"] = "/flows/short?tab=edit"
    names["versions"] = "/flows/short?tab=versions"
    found = {}
    with site.page("/") as page:
        for name, (_, path, steps) in DIALOGS.items():
            page.set_viewport_size(WIDE)
            page.goto(f"{site.url}/ui{names.get(path, path)}")
            ready(page)
            for step in steps:
                if callable(step):
                    step(page)
                elif step.startswith("key:"):
                    page.keyboard.press(step.removeprefix("key:"))
                else:
                    page.get_by_role("button", name=step, exact=True).first.click()
            expect(page.get_by_role("dialog")).to_be_visible()
            if findings := axe(page):
                found[name] = findings
    assert found == {}
