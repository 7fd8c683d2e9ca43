"""Sensitive parts on the page: not shown, until somebody asks; and never handed in masked."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Site
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("S2-9", "N-8")]

SECRET = "4111-1111"


@pytest.fixture
def task(site: Site) -> str:
    body = {"name": "pay", "task_types": ["pay"], "sensitive": ["card.number"]}
    site.post("/api/v2/services", body)
    id = site.submit("pay", {"card": {"number": SECRET, "kind": "visa"}, "amount": 7})
    site.post(f"/api/v2/tasks/{id}/cancel", None)
    return id


def test_a_task_shows_a_mask_and_on_demand_what_is_behind_it(site: Site, task: str) -> None:
    with site.page(f"/tasks/{task}") as page:
        payload = page.get_by_role("region", name="payload")
        expect(payload).to_contain_text("•••")
        expect(payload).to_contain_text("visa")
        assert SECRET not in page.content()
        page.get_by_role("button", name="Reveal hidden values").click()
        expect(payload).to_contain_text(SECRET)
        expect(page.get_by_role("button", name="Reveal hidden values")).to_have_count(0)


def test_what_is_edited_is_the_payload_itself(site: Site, task: str) -> None:
    with site.page(f"/tasks/{task}") as page:
        page.get_by_role("button", name="Retry").click()
        field = page.get_by_role("dialog").get_by_label("Payload")
        text = field.input_value()
        assert SECRET in text
        assert "•••" not in text
        field.fill(text.replace("7", "8"))
        page.get_by_role("button", name="Retry with this payload").click()
        poll_until(lambda: site.get(f"/api/v2/tasks/{task}")["payload"]["amount"] == 8)
    assert site.get(f"/api/v2/tasks/{task}")["payload"]["card"]["number"] == SECRET


def test_lists_ask_for_masks_too(site: Site, task: str) -> None:
    asked: list[str] = []
    with site.page("/tasks") as page:
        page.on("request", lambda request: asked.append(request.url))
        page.reload()
        expect(page.locator("main")).to_contain_text("pay")
    reads = [url for url in asked if "/api/v2/tasks" in url]
    assert reads
    assert all("masked=true" in url for url in reads)


def test_a_masked_dead_letter_is_shown_mended_and_replayed_with_its_group(site: Site) -> None:
    body = {"name": "picky", "task_types": ["picky"], "sensitive": ["card"]}
    site.post("/api/v2/services", body)
    site.start_worker()
    id = site.submit("picky", {"good": False, "card": SECRET}, max_retries=0)
    with site.page("/dead-letters") as page:
        group = page.locator("li .card", has_text="this is not good")
        group.get_by_role("button", name="Retry", exact=True).click()
        dialog = page.get_by_role("dialog")
        assert SECRET not in page.content()
        dialog.get_by_role("button", name="Reveal hidden values and edit").click()
        field = dialog.get_by_label("Payload")
        field.fill(field.input_value().replace("false", "true"))
        dialog.get_by_role("button", name="Retry with this payload").click()
        poll_until(lambda: site.get(f"/api/v2/tasks/{id}")["state"] == "succeeded")
    assert site.get(f"/api/v2/tasks/{id}")["payload"] == {"good": True, "card": SECRET}


def test_a_group_of_dead_letters_is_given_another_payload(site: Site) -> None:
    site.start_worker()
    ids = [site.submit("picky", {"n": n}, max_retries=0) for n in range(2)]
    with site.page("/dead-letters") as page:
        group = page.locator("li .card", has_text="this is not good")
        expect(group).to_contain_text("first")
        group.get_by_role("button", name="Retry", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Replace the payload").click()
        dialog.get_by_role("textbox", name="Payload").fill('{"good": true}')
        dialog.get_by_role("button", name="Dry run").click()
        expect(dialog).to_contain_text("2 would be requeued")
        dialog.get_by_role("button", name="Retry with this payload").click()
        for id in ids:
            poll_until(lambda: site.get(f"/api/v2/tasks/{id}")["state"] == "succeeded")  # noqa: B023


def test_a_group_of_dead_letters_is_mended_by_a_patch(site: Site) -> None:
    site.start_worker()
    ids = [site.submit("picky", {"n": n}, max_retries=0) for n in range(2)]
    with site.page("/dead-letters") as page:
        group = page.locator("li .card", has_text="this is not good")
        expect(group).to_contain_text("first")
        group.get_by_role("button", name="Retry", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Change some fields").click()
        dialog.get_by_label("Merge patch").fill('{"good": true}')
        dialog.get_by_role("button", name="Dry run").click()
        changes = dialog.get_by_role("region", name="Changes")
        expect(changes).to_have_count(2)
        expect(changes.first.locator(".diff-new").last).to_contain_text('"good": true')
        dialog.get_by_role("button", name="Retry with these changes").click()
        for n, id in enumerate(ids):
            poll_until(lambda: site.get(f"/api/v2/tasks/{id}")["state"] == "succeeded")  # noqa: B023
            assert site.get(f"/api/v2/tasks/{id}")["payload"] == {"n": n, "good": True}


def test_what_is_copied_from_a_masked_task_is_the_task_itself(site: Site, task: str) -> None:
    with site.page(f"/tasks/{task}") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        for name in ("curl", "Python"):
            page.reload()
            page.get_by_role("button", name=name).click()
            expect(page.locator(".toast").last).to_contain_text("Copied a")
            text = page.evaluate("navigator.clipboard.readText()")
            assert SECRET in text
            assert "•••" not in text


def test_a_payload_that_was_edited_is_shown_as_it_is_now(site: Site, task: str) -> None:
    with site.page(f"/tasks/{task}") as page:
        page.get_by_role("button", name="Retry").click()
        field = page.get_by_role("dialog").get_by_label("Payload")
        field.fill(field.input_value().replace("7", "8"))
        page.get_by_role("button", name="Retry with this payload").click()
        payload = page.get_by_role("region", name="payload")
        expect(payload).to_contain_text("8")
        expect(payload).not_to_contain_text("7")


def test_who_approves_sees_what_is_masked_if_they_ask_and_edits_that(site: Site) -> None:
    body = {"name": "pay", "task_types": ["pay"], "sensitive": ["card"], "requires_approval": True}
    site.post("/api/v2/services", body)
    id = site.submit("pay", {"card": SECRET, "amount": 7})
    with site.page("/approvals") as page:
        page.get_by_label("deciding as").fill("ann")
        payload = page.get_by_role("region", name="payload of pay")
        expect(payload).to_contain_text("•••")
        page.get_by_role("button", name="Reveal hidden values").click()
        expect(payload).to_contain_text(SECRET)
        page.get_by_role("button", name="Edit payload").click()
        field = page.get_by_label("Payload")
        field.fill(field.input_value().replace("7", "8"))
        page.get_by_role("button", name="Approve as edited").click()
        poll_until(lambda: site.get(f"/api/v2/tasks/{id}")["state"] == "queued")
    assert site.get(f"/api/v2/tasks/{id}")["payload"] == {"card": SECRET, "amount": 8}
