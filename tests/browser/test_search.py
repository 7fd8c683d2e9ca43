"""Tasks are found by what one types, and the way there is kept."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Site

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]


def test_what_may_be_meant_is_offered(site: Site) -> None:
    site.submit("nobody-does-this")
    with site.page("/tasks") as page:
        box = page.get_by_role("searchbox")
        box.click()
        offered = page.get_by_role("listbox", name="Suggestions")
        expect(offered.get_by_role("option")).to_have_count(7)
        page.keyboard.type("ty")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(box).to_have_value("type:")
        page.keyboard.type("nobody")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(box).to_have_value("type:nobody-does-this ")
        expect(page.locator(".virtual .list-row")).to_have_count(1)
        page.keyboard.type("-state:que")
        offered.get_by_role("option", name="-state:queued").click()
        expect(page.get_by_text("No matching tasks")).to_be_visible()


def test_letters_typed_at_once_stand_after_what_was_chosen(site: Site) -> None:
    slow = "const draw = requestAnimationFrame; "
    slow += "window.requestAnimationFrame = (done) => setTimeout(() => draw(done), 300)"
    with site.page("/queues") as page:
        page.add_init_script(slow)  # a machine whose frames come late
        page.goto(f"{site.url}/ui/tasks")
        box = page.get_by_role("searchbox")
        box.click()
        page.keyboard.type("ty")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        for letter in "report":
            page.keyboard.type(letter)
            page.wait_for_timeout(100)
        page.keyboard.press("Enter")
        expect(box).to_have_value("type:report")
        expect(page).to_have_url(re.compile("q=type%3Areport$"))


def test_a_view_is_saved_and_found_again(site: Site) -> None:
    site.submit("nobody-does-this")
    with site.page("/tasks?q=state%3Aqueued") as page:
        page.get_by_role("button", name="Save this view").click()
        page.get_by_role("dialog").get_by_label("Name").fill("Still waiting")
        page.get_by_role("button", name="Save", exact=True).click()
        page.goto(f"{site.url}/ui/tasks")
        page.get_by_role("button", name="Still waiting", exact=True).click()
        expect(page).to_have_url(re.compile("q=state%3Aqueued"))
        page.get_by_role("button", name="Remove the view Still waiting").click()
        expect(page.get_by_role("button", name="Still waiting", exact=True)).to_have_count(0)


def test_columns_are_chosen_and_rows_are_sorted(site: Site) -> None:
    for queue in ("bb", "cc", "aa"):
        site.submit("nobody-does-this", queue=queue, session_id=f"of-{queue}")
    with site.page("/tasks") as page:
        rows = page.locator(".virtual .list-row")
        expect(rows).to_have_count(3)
        page.get_by_role("button", name="Queue", exact=True).click()
        expect(rows.first).to_contain_text("cc")
        page.get_by_role("button", name=re.compile("^Queue")).click()
        expect(rows.first).to_contain_text("aa")
        expect(page).to_have_url(re.compile("sort=queue"))
        page.get_by_text("Columns").click()
        page.get_by_role("checkbox", name="Session").check()
        expect(rows.first).to_contain_text("of-aa")
        page.reload()
        expect(rows.first).to_contain_text("of-aa")
