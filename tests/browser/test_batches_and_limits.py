"""Batches and limits have pages: how far, who waits, what would change."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PHONE, Site
from tests.processes import HTTP
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]


def hand_in(site: Site, *types: str, **terms: str) -> str:
    tasks = [{"type": type_, "payload": {"n": n}} for n, type_ in enumerate(types)]
    many = {"tasks": [{**task, "max_retries": 0} for task in tasks], "batch": terms}
    batch: str = site.post("/api/v2/tasks/batch", many)["batch"]
    return batch


def put_limit(site: Site, name: str, **limit: object) -> None:
    HTTP.put(f"{site.url}/api/v2/limits/{name}", json=limit).raise_for_status()


def test_a_batch_is_followed_from_one_of_its_tasks(site: Site) -> None:
    batch = hand_in(site, "nobody-does-this", "picky", "picky", name="night import")
    site.start_worker()
    poll_until(lambda: site.get(f"/api/v2/batches/{batch}")["done"] == 2)
    with site.page("/tasks?q=type%3Anobody-does-this") as page:
        page.locator(".list-what a").click()
        page.get_by_role("link", name=batch[-12:]).click()
        expect(page.locator("h1")).to_contain_text("night import")
        expect(page.get_by_text("2 of 3")).to_be_visible()
        expect(page.locator(".virtual .list-row")).to_have_count(3)
        page.get_by_role("button", name="Cancel the rest").click()
        page.get_by_role("button", name="Cancel 1 task").click()
        expect(page.locator("h1")).to_contain_text("finished, 2 failed")
        page.get_by_role("button", name="Retry what failed").click()
        expect(page.get_by_role("dialog", name="Retry 2 tasks?")).to_be_visible()
        page.keyboard.press("Escape")
        page.locator(".big").get_by_role("link", name="2").click()
        expect(page.locator(".virtual .list-row")).to_have_count(2)
        page.get_by_role("link", name="Show the batch and its progress").click()
        expect(page.locator("h1")).to_contain_text("night import")


def test_a_limit_is_made_changed_and_deleted_after_a_look_at_what_changes(site: Site) -> None:
    with site.page("/queues") as page:
        page.get_by_role("main").get_by_role("link", name="Limits").click()
        page.get_by_role("button", name="New limit").click()
        page.get_by_label("Name").fill("crm")
        page.get_by_label("At most at once (").fill("2")
        page.get_by_role("button", name="Add a rate").click()
        page.get_by_label("Unit").select_option("minute")
        page.get_by_role("button", name="Review").click()
        question = page.get_by_role("dialog", name="Create the limit crm?")
        expect(question).to_contain_text("No service names it yet")
        assert site.get("/api/v2/limits")["items"] == []
        question.get_by_role("button", name="Create limit").click()
        row = page.get_by_role("region", name="Limits").locator("tr", has_text="crm")
        expect(row).to_contain_text("10 per minute")
        row.get_by_role("link", name="crm").click()
        page.get_by_role("button", name="Change").click()
        page.get_by_label("At most at once (").fill("0")
        page.get_by_role("button", name="Review").click()
        question = page.get_by_role("dialog", name="Change the limit crm?")
        expect(question.locator(".diff-old")).to_contain_text('"total": 2')
        expect(question.locator(".diff-new")).to_contain_text('"total": 0')
        expect(question).to_contain_text("none of their tasks starts")
        expect(question).to_contain_text("recorded in the audit log")
        question.get_by_role("button", name="Keep editing").click()
        page.get_by_label("At most at once (").fill("3")
        page.get_by_role("button", name="Review").click()
        question.get_by_role("button", name="Change limit").click()
        expect(page.get_by_text("Limit crm changed")).to_be_visible()
        poll_until(lambda: site.get("/api/v2/limits/crm")["concurrency"]["total"] == 3)
        assert site.get("/api/v2/limits/crm")["rate"][0]["per_ms"] == 60_000
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("button", name="Delete limit").click()
        expect(page.get_by_text("No shared limits yet")).to_be_visible()


def test_what_waits_for_a_limit_leads_to_it_and_back(site: Site) -> None:
    put_limit(site, "crm", concurrency={"total": 0})
    body = {"name": "picky", "task_types": ["picky"], "limits": ["crm"]}
    site.post("/api/v2/services", body)
    site.start_worker()
    id = site.submit("picky")
    why = f"/api/v2/tasks/{id}/explain"
    poll_until(lambda: site.get(why)["reason"] == "concurrency")
    with site.page(f"/tasks/{id}") as page:
        page.get_by_role("link", name="Show the limit crm").click()
        waiting = page.get_by_role("region", name="Tasks under this limit")
        expect(waiting.locator("tr", has_text="picky")).to_contain_text("1")
        page.get_by_role("link", name="picky").first.click()
        expect(page).to_have_url(re.compile("/services/picky"))
        page.get_by_role("link", name="crm").click()
        waiting.get_by_role("link", name="picky").click()
        uses = page.get_by_role("region", name="Limits")
        expect(uses.locator("tr", has_text="crm")).to_contain_text("0 at once")


def test_tasks_are_deleted_after_a_question_that_warns(site: Site) -> None:
    site.start_worker()
    ids = [site.submit("picky", {"good": True}) for _ in range(3)]
    live = site.submit("nobody-does-this")
    poll_until(lambda: all(site.get(f"/api/v2/tasks/{id}")["finished_at"] for id in ids))
    with site.page("/tasks", size=PHONE) as page:
        expect(page.locator(".virtual .list-row")).to_have_count(4)
        page.get_by_role("checkbox", name="Select all loaded tasks").check()
        expect(page.locator(".bulk")).to_contain_text("4 selected")
        page.get_by_role("button", name="Delete", exact=True).click()
        question = page.get_by_role("dialog", name="Delete 3 tasks?")
        expect(question).to_contain_text("cannot be undone")
        expect(question).to_contain_text("1 task cannot be deleted: skipped")
        question.get_by_role("button", name="Delete 3 tasks").click()
        expect(page.locator(".bulk")).to_contain_text("3 of 3 deleted")
    assert site.get("/api/v2/tasks?type=picky")["items"] == []
    assert site.get(f"/api/v2/tasks/{live}")["state"] == "queued"
