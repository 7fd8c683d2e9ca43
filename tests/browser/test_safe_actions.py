"""Nobody does by accident what cannot be undone, and whoever is refused sees why."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, ViewportSize, expect

from tests.browser.conftest import PHONE, WIDE, Site, code
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]

REFUSAL = {"title": "Conflict", "status": 409, "code": "conflict", "detail": "it moved on"}


def refuse(route: Route) -> None:
    route.fulfill(status=409, content_type="application/problem+json", json=REFUSAL)


@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_a_double_click_confirms_nothing(site: Site, size: ViewportSize) -> None:
    id = site.submit("nobody-does-this")
    with site.page(f"/tasks/{id}", size=size) as page:
        page.get_by_role("button", name="Cancel").dblclick()
        question = page.get_by_role("dialog", name="Cancel this task?")
        expect(question).to_contain_text(id)
        assert site.get(f"/api/v2/tasks/{id}")["state"] == "queued"
        question.get_by_role("button", name="Cancel task").click()
        expect(page.locator("h1 .badge")).to_contain_text("canceled")


def test_the_button_that_confirms_is_another_than_the_first(site: Site) -> None:
    site.submit("nobody-does-this")
    with site.page("/workers") as page:
        first = page.get_by_role("button", name="Drain").first
        where = first.bounding_box()
        first.click()
        question = page.get_by_role("dialog", name="Drain this worker?")
        confirm = question.get_by_role("button", name="Drain worker")
        expect(confirm).to_be_enabled()
        page.keyboard.press("Enter")  # the focus is on the one that changes nothing
        expect(question).to_have_count(0)
        assert first.bounding_box() == where
        assert not any(one["draining"] for one in site.get("/api/v2/workers")["items"])


def test_a_refusal_stands_in_the_form(site: Site) -> None:
    id = site.submit("nobody-does-this")
    site.post(f"/api/v2/tasks/{id}/cancel", None)
    with site.page(f"/tasks/{id}") as page:
        page.route(re.compile("/retry$"), refuse)
        page.get_by_role("button", name="Retry").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Retry").click()
        expect(dialog.get_by_role("alert")).to_contain_text("it moved on")
        expect(page.locator(".toast")).to_have_count(0)
    site.complaints.clear()  # the browser's own line on the status


def test_what_is_said_while_a_dialog_is_open_can_be_dismissed(site: Site) -> None:
    site.start_worker()
    id = site.submit("picky", {"good": False}, max_retries=0)
    with site.page("/dead-letters") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Abandon").click()
        dialog = page.get_by_role("dialog", name="Abandon 1 task?")
        expect(dialog).to_contain_text("this is not good")
        dialog.get_by_role("button", name="Copy id").click()
        expect(page.locator(".toast")).to_have_count(1)
        page.get_by_role("button", name="Dismiss").click()
        expect(page.locator(".toast")).to_have_count(0)
    assert site.get(f"/api/v2/tasks/{id}")["state"] == "dead"


def test_a_mistyped_filter_shows_nothing_and_offers_nothing(site: Site) -> None:
    site.submit("nobody-does-this")
    for typed, told in (
        ("state:bogus", 'Unknown state "bogus"'),
        ("worker:x", 'Unknown field "worker"'),
        ("-created:2026-01-01..2026-01-02", "is no time"),
        ("priority>1", 'Unknown field "priority"'),
    ):
        with site.page("/tasks") as page:
            page.get_by_role("searchbox").fill(typed)
            expect(page.locator("#search-help")).to_contain_text(told)
            expect(page.locator(".list-row")).to_have_count(0)
            expect(page.locator(".bulk")).to_have_count(0)


def test_an_action_on_many_is_seen_and_stopped_from_every_page(site: Site) -> None:
    for n in range(40):
        site.submit("heap", {"n": n})
    with site.page("/queues") as other, site.page("/tasks?q=type%3Aheap") as page:
        page.get_by_role("checkbox", name="Select all loaded tasks").check()
        page.get_by_role("button", name="Cancel", exact=True).click()
        question = page.get_by_role("dialog", name="Cancel 40 tasks?")
        question.get_by_label("Rate limit per second").fill("0.5")
        expect(question).to_contain_text("The last one follows after 78 s")
        question.get_by_role("button", name="Cancel 40 tasks").click()
        name = "Action on many tasks"
        expect(page.get_by_role("status", name=name)).to_contain_text("1 of 40 canceled")
        page.close()  # the server goes on without the page that began it
        bar = other.get_by_role("status", name=name)
        expect(bar).to_contain_text("of 40 canceled")
        bar.get_by_role("button", name="Stop").click()
        expect(bar).to_contain_text("stopped")
        bar.get_by_role("link", name="All operations").click()
        row = other.get_by_role("region", name="Operations").get_by_role("row").last
        expect(row).to_contain_text("40 named tasks")
        expect(row).to_contain_text("0.5 per second")
        bar.get_by_role("button", name="Done").click()
        expect(bar).to_have_count(0)
        (operation,) = site.get("/api/v2/operations")["items"]
    assert 0 < operation["done"] < 40
    left = site.get("/api/v2/tasks?state=queued&type=heap")["items"]
    assert len(left) == 40 - operation["done"]


def test_what_was_refused_of_many_is_told(site: Site) -> None:
    for n in range(2):
        site.submit("nobody-does-this", {"n": n})
    site.post("/api/v2/tasks/retry", {"filter": {"type": "nobody-does-this"}})  # they still wait
    with site.page("/operations") as page:
        row = page.get_by_role("region", name="Operations").get_by_role("row").last
        expect(row).to_contain_text("0 of 2 retried, 2 refused")
        row.get_by_text("Why some were refused").click()
        expect(row.locator(".flaws li")).to_have_count(2)
        row.get_by_role("link", name="type:nobody-does-this").click()
        expect(page.locator(".virtual .list-row")).to_have_count(2)


def test_an_approval_stays_under_the_pointer_and_is_taken_back(site: Site) -> None:
    id = site.submit("echo", {"n": 1}, requires_approval=True)
    with site.page("/approvals") as page:
        cards = page.locator("li .card")
        expect(cards).to_have_count(1)
        page.get_by_role("button", name="Approve", exact=True).click()
        expect(page.get_by_text("Enter your name")).to_be_visible()  # who decides is recorded
        page.get_by_label("Enter your name").fill("ann")
        approve = cards.first.get_by_role("button", name="Approve", exact=True)
        where = approve.bounding_box()
        site.submit("echo", {"n": 2}, requires_approval=True)
        expect(cards).to_have_count(2)
        assert approve.bounding_box() == where
        approve.click()
        cards.first.get_by_role("button", name="Undo").click()
        expect(approve).to_be_visible()
        assert site.get(f"/api/v2/approvals/{id}")["status"] == "open"
        approve.click()
        expect(cards.first).to_contain_text("approved by ann")
        expect(cards).to_have_count(2)


def test_a_decision_is_sent_when_the_tab_is_left(site: Site) -> None:
    id = site.submit("echo", {"n": 1}, requires_approval=True)
    with site.page("/approvals") as page:
        page.get_by_label("deciding as").fill("ann")
        page.get_by_role("button", name="Reject", exact=True).click()
        expect(page.get_by_role("button", name="Undo")).to_be_visible()
        page.goto("about:blank")
        poll_until(lambda: site.get(f"/api/v2/approvals/{id}")["status"] == "rejected")


def test_a_definition_is_reviewed_before_it_is_published_and_its_draft_is_kept(site: Site) -> None:
    timer = {"kind": "timer", "params": {"delay_ms": 1}}
    definition = {"start": "one", "nodes": {"one": timer}, "edges": []}
    site.post("/api/v2/flows", {"name": "short", "definition": definition})
    with site.page("/flows/short?tab=edit") as page:
        review = page.get_by_role("button", name="Review and publish")
        expect(page.get_by_text("No changes since version 1")).to_be_visible()
        expect(review).to_be_disabled()
        text = page.get_by_label("Definition")
        expect(text).to_contain_text('"delay_ms": 1')
        text.fill(code(text).replace('"delay_ms": 1', '"delay_ms": 2'))
        page.get_by_role("link", name="Queues").click()
        expect(page.get_by_role("heading", name="Queues")).to_be_visible()
        page.go_back()
        expect(text).to_contain_text('"delay_ms": 2')
        expect(page.get_by_text("Draft, kept in this browser")).to_be_visible()
        review.click()
        dialog = page.get_by_role("dialog", name="Publish version 2 of short?")
        expect(dialog.locator(".diff-new")).to_contain_text('"delay_ms": 2')
        dialog.get_by_role("button", name="Keep editing").click()
        page.get_by_role("button", name="Discard draft").click()
        expect(text).to_contain_text('"delay_ms": 1')
    assert site.get("/api/v2/flows/short")["version"] == 1


def test_a_type_brings_a_payload_that_its_service_takes(site: Site) -> None:
    schema = {
        "type": "object",
        "required": ["amount"],
        "properties": {"amount": {"type": "integer", "minimum": 1}, "note": {"type": "string"}},
    }
    body = {"name": "pay", "task_types": ["pay"], "schema": {"pay": schema}}
    site.post("/api/v2/services", body)
    with site.page("/playground?door=native") as page:
        page.get_by_role("button", name="pay", exact=True).click()
        page.get_by_role("spinbutton", name="amount").fill("7")
        page.get_by_role("textbox", name="note").fill("for lunch")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".card", has_text="Response").locator(".badge").first).to_have_text(
            "202"
        )
    (task,) = site.get("/api/v2/tasks?type=pay")["items"]
    assert task["payload"] == {"amount": 7, "note": "for lunch"}
