"""What an operator does all day: in no more clicks than ever, and without a mouse as well."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Site, code
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]

COUNT = "window.clicks = 0; addEventListener('pointerdown', () => window.clicks++, true)"
# The code editor is in a shadow tree, of which the document knows the host alone.
FOCUSED = "it => it === it.getRootNode().activeElement"
MOST_TABS = 250
TIMER = {"kind": "timer", "params": {"delay_ms": 1}}
ECHO = {"kind": "executor", "service": "echo", "prep": {"input_key": "$params.n"}}


class Operator:
    """Works with the mouse alone, or with the keyboard alone."""

    def __init__(self, page: Page, keyboard: bool) -> None:
        self.page = page
        self.keyboard = keyboard

    def go(self, title: str, key: str) -> None:
        if self.keyboard:
            self.page.keyboard.press("g")
            self.page.keyboard.press(key)
        else:
            self.page.get_by_role("navigation").get_by_role("link", name=title).click()
        expect(self.page.locator("h1", has_text=title)).to_be_visible()

    def act(self, on: Locator) -> None:
        expect(on).to_be_enabled()
        if not self.keyboard:
            on.click()
            return
        self._reach(on)
        self.page.keyboard.press("Space" if on.get_attribute("type") == "checkbox" else "Enter")

    def write(self, on: Locator, text: str) -> None:
        if not self.keyboard:
            on.fill(text)
            return
        self._reach(on)
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)

    def _reach(self, on: Locator) -> None:
        expect(on).to_be_visible()
        for _ in range(MOST_TABS):
            if on.evaluate(FOCUSED):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"no way to {on} by the Tab key")


Task: TypeAlias = Callable[[Site, Operator], None]
TASKS: dict[str, tuple[int, str, Task]] = {}  # most clicks, where it begins, what is done


def task(clicks: int, begins: str = "/") -> Callable[[Task], Task]:
    def keep(do: Task) -> Task:
        TASKS[do.__name__] = (clicks, begins, do)
        return do

    return keep


def dead(site: Site, count: int) -> list[str]:
    site.start_worker()
    ids = [site.submit("picky", {"n": n}, max_retries=0) for n in range(count)]
    for id in ids:
        until_state(site, id, "dead")
    return ids


def until_state(site: Site, id: str, *states: str) -> None:
    poll_until(lambda: site.get(f"/api/v2/tasks/{id}")["state"] in states)


def a_run(site: Site, node: Any = TIMER, **params: Any) -> str:
    definition = {"start": "one", "nodes": {"one": node}, "edges": []}
    site.post("/api/v2/flows", {"name": "short", "definition": definition})
    id: str = site.post("/api/v2/runs", {"flow": "short", "params": params})["id"]
    return id


@task(clicks=2)
def why_is_it_stuck(site: Site, operator: Operator) -> None:
    site.submit("nobody-does-this")
    operator.go("Tasks", "t")
    operator.act(operator.page.locator(".list-what a"))
    expect(operator.page.locator(".notice")).to_contain_text("No worker for")


@task(clicks=1)
def which_service_fails(site: Site, operator: Operator) -> None:
    dead(site, 1)
    row = operator.page.get_by_role("region", name="Services").locator("tr", has_text="picky")
    expect(row).to_contain_text("100 %")
    operator.act(row.get_by_role("link", name="1"))
    expect(operator.page.locator(".virtual .list-row")).to_contain_text("this is not good")


@task(clicks=5)
def cancel_by_a_filter(site: Site, operator: Operator) -> None:
    ids = [site.submit("nobody-does-this", {"n": n}) for n in range(3)]
    page = operator.page
    operator.go("Tasks", "t")
    operator.write(page.get_by_role("searchbox"), "type:nobody-does-this")
    expect(page).to_have_url(re.compile("nobody-does-this"))
    operator.act(page.get_by_role("checkbox", name="Select all loaded tasks"))
    operator.act(page.get_by_role("button", name="Cancel", exact=True))
    operator.act(page.get_by_role("button", name="Cancel 3 tasks"))
    expect(page.locator(".bulk")).to_contain_text("3 of 3 canceled")
    for id in ids:
        until_state(site, id, "canceled")


@task(clicks=6)
def retry_by_a_filter(site: Site, operator: Operator) -> None:
    ids = dead(site, 3)
    page = operator.page
    operator.go("Tasks", "t")
    operator.write(page.get_by_role("searchbox"), "state:dead")
    expect(page).to_have_url(re.compile("dead"))
    operator.act(page.get_by_role("checkbox", name="Select all loaded tasks"))
    operator.act(page.get_by_role("button", name="Retry", exact=True))
    operator.act(page.get_by_role("button", name="Retry 3 tasks"))
    expect(page.locator(".bulk")).to_contain_text("3 of 3 retried")
    poll_until(lambda: site.get(f"/api/v2/tasks/{ids[0]}")["generation"] == 2)


@task(clicks=4)
def replay_a_dead_letter_mended(site: Site, operator: Operator) -> None:
    (id,) = dead(site, 1)
    operator.go("Dead letters", "d")
    operator.act(operator.page.get_by_role("button", name="Retry", exact=True))
    operator.write(operator.page.get_by_label("Payload"), '{"good": true}')
    operator.act(operator.page.get_by_role("button", name="Retry with this payload"))
    until_state(site, id, "succeeded")


@task(clicks=3)
def replay_a_group_at_a_rate(site: Site, operator: Operator) -> None:
    dead(site, 3)
    page = operator.page
    operator.go("Dead letters", "d")
    operator.act(page.get_by_role("button", name="Retry", exact=True))
    operator.write(page.get_by_label("Rate limit per second"), "0.01")
    operator.act(page.get_by_role("dialog").get_by_role("button", name="Retry", exact=True))
    expect(page.get_by_text("Retrying 3 tasks")).to_be_visible()


@task(clicks=2)
def approve(site: Site, operator: Operator) -> None:
    id = site.submit("echo", {"n": 1}, requires_approval=True)
    operator.go("Approvals", "a")
    operator.write(operator.page.get_by_label("deciding as"), "ann")
    operator.act(operator.page.get_by_role("button", name="Approve", exact=True))
    until_state(site, id, "succeeded")


@task(clicks=2)
def reject(site: Site, operator: Operator) -> None:
    id = site.submit("echo", {"n": 1}, requires_approval=True)
    operator.go("Approvals", "a")
    operator.write(operator.page.get_by_label("deciding as"), "ann")
    operator.act(operator.page.get_by_role("button", name="Reject", exact=True))
    until_state(site, id, "failed")


@task(clicks=3)
def pause_a_queue(site: Site, operator: Operator) -> None:
    operator.go("Queues", "q")
    operator.act(operator.page.get_by_role("button", name="Pause echo"))
    dialog = operator.page.get_by_role("dialog")
    operator.write(dialog.get_by_label("Reason"), "new codec")
    operator.act(dialog.get_by_role("button", name="Pause"))
    poll_until(lambda: site.get("/api/v2/queues/echo")["paused"] is not None)


@task(clicks=3)
def drain_a_worker(site: Site, operator: Operator) -> None:
    operator.go("Workers", "w")
    operator.act(operator.page.get_by_role("button", name="Drain").first)
    operator.act(operator.page.get_by_role("button", name="Drain worker"))
    poll_until(lambda: site.get("/api/v2/workers")["items"][0]["draining"])


@task(clicks=2)
def watch_a_run(site: Site, operator: Operator) -> None:
    run = a_run(site, {"kind": "wait_event", "params": {"event": "paid"}})
    poll_until(lambda: site.get(f"/api/v2/runs/{run}")["current_node"] == "one")
    operator.go("Runs", "r")
    operator.act(operator.page.get_by_role("link", name=run[-12:]))
    badge = operator.page.locator("h1 .badge")
    expect(badge).to_contain_text("waiting")
    site.post(f"/api/v2/runs/{run}/signal", {"name": "one"})
    expect(badge).to_contain_text("succeeded")


@task(clicks=4)
def fork_from_a_node(site: Site, operator: Operator) -> None:
    run = a_run(site, ECHO, n=1)
    until_state(site, run, "succeeded")
    operator.go("Runs", "r")
    operator.act(operator.page.get_by_role("link", name=run[-12:]))
    operator.act(operator.page.get_by_role("button", name="Fork from here"))
    dialog = operator.page.get_by_role("dialog")
    operator.write(dialog.get_by_label("Shared state"), '{"brought": "along"}')
    operator.act(dialog.get_by_role("button", name="Fork", exact=True))
    expect(operator.page).not_to_have_url(re.compile(run))
    expect(operator.page.get_by_role("region", name="shared state").first).to_contain_text("along")


@task(clicks=4)
def edit_and_publish_a_flow(site: Site, operator: Operator) -> None:
    a_run(site)
    page = operator.page
    operator.go("Flows", "f")
    operator.act(page.get_by_role("link", name="Edit short"))
    text = page.get_by_label("Definition")
    expect(text).to_contain_text("delay_ms")
    operator.write(text, code(text).replace('"delay_ms": 1', '"delay_ms": 2'))
    operator.act(page.get_by_role("button", name="Review and publish"))
    operator.act(page.get_by_role("button", name="Publish version 2"))
    poll_until(lambda: site.get("/api/v2/flows/short")["version"] == 2)


@task(clicks=3)
def add_a_schedule(site: Site, operator: Operator) -> None:
    page = operator.page
    operator.go("Schedules", "c")
    operator.act(page.get_by_role("button", name="New schedule"))
    for label, text in (("Name", "nightly"), ("Task type", "echo"), ("Cron", "0 3 * * *")):
        operator.write(page.get_by_role("dialog").get_by_label(label), text)
    operator.act(page.get_by_role("button", name="Create schedule"))
    expect(page.get_by_role("link", name="nightly", exact=True)).to_be_visible()


@task(clicks=3)
def read_what_a_session_was_told(site: Site, operator: Operator) -> None:
    site.submit("echo", {"n": 1}, session_id="ann")
    notices = "/api/v2/sessions/ann/notifications?peek=true"
    poll_until(lambda: site.get(notices)["items"])
    operator.go("Sessions", "e")
    operator.act(operator.page.get_by_role("link", name="ann", exact=True))
    operator.act(operator.page.get_by_role("button", name="Notices"))
    expect(operator.page.get_by_role("list", name="Notices")).to_contain_text("echo is ready")


@task(clicks=4)
def submit_by_a_form(site: Site, operator: Operator) -> None:
    page = operator.page
    operator.go("Playground", "p")
    operator.act(page.get_by_role("button", name="Task", exact=True))
    operator.act(page.get_by_role("button", name="countdown", exact=True))
    operator.write(page.get_by_role("spinbutton", name="seconds"), "0.05")
    operator.act(page.get_by_role("button", name="Send"))
    expect(page.locator(".card", has_text="Response").locator(".badge").first).to_have_text("202")
    assert site.get("/api/v2/tasks?type=countdown")["items"][0]["payload"] == {"seconds": 0.05}


@task(clicks=1, begins="task")
def copy_a_task_as_curl(site: Site, operator: Operator) -> None:
    operator.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    operator.act(operator.page.get_by_role("button", name="curl"))
    expect(operator.page.locator(".toast").last).to_contain_text("Copied a curl command")


@task(clicks=1)
def search_for_a_task(site: Site, operator: Operator) -> None:
    for word in ("needle", "hay"):
        site.submit("nobody-does-this", {"word": word})
    page = operator.page
    operator.go("Tasks", "t")
    expect(page.locator(".virtual .list-row")).to_have_count(2)
    page.keyboard.press("/")
    page.keyboard.type("needle")
    expect(page.locator(".virtual .list-row")).to_have_count(1)


@contextmanager
def at_work(site: Site, begins: str, keyboard: bool) -> Any:
    path = f"/tasks/{site.submit('nobody-does-this')}" if begins == "task" else begins
    with site.page(path) as page:
        expect(page.locator("h1")).to_be_visible()
        page.evaluate(COUNT)
        yield Operator(page, keyboard)


@pytest.mark.parametrize("keyboard", [False, True], ids=["mouse", "keyboard"])
@pytest.mark.parametrize("name", sorted(TASKS))
def test_an_operators_task_takes_few_clicks_or_none(site: Site, name: str, keyboard: bool) -> None:
    most, begins, do = TASKS[name]
    with at_work(site, begins, keyboard) as operator:
        do(site, operator)
        # In one page from the beginning to the end: the counter is still there.
        clicks = operator.page.evaluate("window.clicks")
    assert clicks <= (0 if keyboard else most)
