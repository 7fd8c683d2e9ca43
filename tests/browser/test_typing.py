"""What is typed stays, and what comes in later changes nothing under the reader's hands."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Site, code
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]

AMOUNT = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
FULL = "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError') }"
SLOW = """const wait = window.setTimeout;
window.setTimeout = (act, ms, ...more) => wait(act, ms === 250 ? 60000 : ms, ...more)"""

# The first change is sent late: did the second one not wait for it, it would be written last.
LATE = """const send = window.fetch; let first = true;
window.fetch = async (url, init) => {
  const late = init?.method === "PUT" && first;
  if (late) first = false;
  if (late) await new Promise((go) => setTimeout(go, 1000));
  return send(url, init);
}"""


@pytest.mark.parametrize(("typed", "means"), [("1.05", 1.05), (".5", 0.5), ("-20.10", -20.1)])
def test_a_number_is_what_was_typed(site: Site, typed: str, means: float) -> None:
    body = {"name": "pay", "task_types": ["pay"], "schema": {"pay": AMOUNT}}
    site.post("/api/v2/services", body)
    with site.page("/playground?door=native") as page:
        page.get_by_role("button", name="pay", exact=True).click()
        field = page.get_by_role("spinbutton", name="amount")
        field.press("Control+a")
        field.press_sequentially(typed)
        expect(field).to_have_value(typed)
        page.get_by_role("button", name="Send").click()
        response = page.locator(".card", has_text="Response")
        expect(response.locator(".badge").first).to_have_text("202")
    (task,) = site.get("/api/v2/tasks?type=pay")["items"]
    assert task["payload"] == {"amount": means}


def test_letters_that_have_not_arrived_are_not_overwritten(site: Site) -> None:
    site.submit("nobody-does-this")
    with site.page("/queues") as page:
        page.add_init_script(SLOW)  # the pause after typing takes a minute
        page.goto(f"{site.url}/ui/tasks")
        box = page.get_by_role("searchbox")
        box.press_sequentially("nobody")
        page.get_by_role("button", name="queued").click()
        expect(page).to_have_url(re.compile(r"q=state%3Aqueued\+nobody"))
        expect(box).to_have_value("state:queued nobody")


def test_a_draft_that_the_browser_cannot_keep_is_still_there(site: Site) -> None:
    with site.page("/flows") as page:
        page.add_init_script(FULL)
        page.goto(f"{site.url}/ui/flows?new=1")
        text = page.get_by_label("Definition")
        text.fill('{"nodes": {}}')
        text.press_sequentially("  ")
        poll_until(lambda: code(text) == '{"nodes": {}}  ')


def test_cards_of_another_tab_do_not_stay(site: Site) -> None:
    site.submit("echo", {"n": 1}, requires_approval=True)
    with site.page("/approvals") as page:
        expect(page.locator("li .card")).to_have_count(1)
        page.get_by_role("button", name="Approved").click()
        expect(page.get_by_text("Nothing here")).to_be_visible()


def test_a_key_sends_what_was_written_into_the_card(site: Site) -> None:
    id = site.submit("echo", {"n": 1}, requires_approval=True)
    with site.page("/approvals") as page:
        page.get_by_label("deciding as").fill("ann")
        card = page.locator("li .card")
        card.get_by_role("textbox", name="Comment").fill("one is too few")
        card.get_by_role("button", name="Edit payload").click()
        card.get_by_label("Payload").fill('{"n": 2}')
        page.locator("h1").click()
        page.keyboard.press("j")
        page.keyboard.press("a")
        expect(card).to_contain_text("approved by ann")
    assert site.get(f"/api/v2/tasks/{id}")["payload"] == {"n": 2}
    assert site.get(f"/api/v2/approvals/{id}")["comment"] == "one is too few"


def test_the_keys_stay_at_the_row_that_was_chosen(site: Site) -> None:
    first = site.submit("nobody-does-this", {"n": 1})
    with site.page("/tasks") as page:
        rows = page.locator(".virtual .list-row")
        expect(rows).to_have_count(1)
        page.keyboard.press("j")
        site.submit("nobody-does-this", {"n": 2})
        expect(rows).to_have_count(2)
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(first))


def test_a_row_stays_under_the_pointer(site: Site) -> None:
    site.submit("nobody-does-this", {"n": 1})
    with site.page("/tasks") as page:
        rows = page.locator(".virtual .list-row")
        expect(rows).to_have_count(1)
        rows.first.hover()
        site.submit("nobody-does-this", {"n": 2})
        fresh = page.get_by_role("button", name="1 new")
        expect(fresh).to_be_visible()
        expect(rows).to_have_count(1)
        fresh.click()
        expect(rows).to_have_count(2)


def test_a_choice_of_the_palette_is_about_what_is_typed(site: Site) -> None:
    id = site.submit("nobody-does-this")
    with site.page("/") as page:
        expect(page.locator("h1")).to_be_visible()
        page.keyboard.press("Control+k")
        page.keyboard.type("nobody")
        found = page.get_by_role("option", name=re.compile(id))
        expect(found).to_be_visible()
        held: list[Route] = []
        page.route(re.compile("q=nobodyelse"), lambda route: held.append(route))
        page.keyboard.type("else")
        expect(found).to_have_count(0)  # though the server has not answered
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/ui/tasks.q=nobodyelse"))
        for route in held:
            route.continue_()


def test_of_two_choices_in_a_row_both_hold(site: Site) -> None:
    site.submit("echo", session_id="ann")
    poll_until(lambda: site.get("/api/v2/sessions")["items"])
    with site.page("/queues") as page:
        page.add_init_script(LATE)
        page.goto(f"{site.url}/ui/sessions/ann?tab=preferences")
        overdue, failed = page.get_by_label("overdue"), page.get_by_label("failed")
        expect(overdue).to_be_checked()
        overdue.uncheck()
        failed.uncheck()
        expect(page.get_by_text("Saved")).to_have_count(2)
        expect(overdue).not_to_be_checked()
        expect(failed).not_to_be_checked()
    kept = site.get("/api/v2/sessions/ann/preferences")["types"]
    assert set(kept) == {"task_completed", "approval_requested"}
