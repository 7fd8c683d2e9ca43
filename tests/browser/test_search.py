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
        expect(offered.get_by_role("option")).to_have_count(9)
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


def test_what_is_left_out_and_when_it_was_are_searched(site: Site) -> None:
    site.submit("nobody-does-this", tags=["night"])
    other = site.submit("nor-this")
    with site.page("/tasks") as page:
        rows = page.locator(".virtual .list-row")
        box = page.get_by_role("searchbox")
        box.fill("-type:nobody-does-this created:<1h")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("nor-this")
        box.fill("-tag:night -queue:elsewhere")
        expect(rows).to_contain_text("nor-this")
        box.fill("created:>1h")
        expect(page.get_by_text("No matching tasks")).to_be_visible()
        box.fill("created:yesterday")
        expect(page.locator("#search-help")).to_contain_text("is no time")
        expect(page.get_by_text("No matching tasks")).to_be_visible()
        box.fill("-type:nobody-does-this created:<1h")
        page.get_by_role("checkbox", name="Select all loaded tasks").check()
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("button", name="Cancel 1 task").click()
        expect(page.locator(".bulk").first).to_contain_text("1 of 1 canceled")
    assert [one["id"] for one in site.get("/api/v2/tasks?state=canceled")["items"]] == [other]


def test_an_operation_is_about_what_the_list_shows(site: Site) -> None:
    """What is left out of the list, and the time it shows, hold for the question as well."""
    for n in range(230):
        site.submit("heap", {"n": n}, tags=["spared"] if n % 2 else [])
    with site.page("/tasks?q=type%3Aheap+-tag%3Aspared+created%3A%3C1h") as page:
        page.locator(".virtual .list-row").first.get_by_role("checkbox").check()
        page.get_by_role("button", name="Select all matching").click()
        page.get_by_role("button", name="Cancel", exact=True).click()
        question = page.get_by_role("dialog", name="Cancel 115 tasks?")
        expect(question).to_contain_text("-tag:spared")
        question.get_by_role("button", name="Cancel 115 tasks").click()
        expect(page.locator(".bulk")).to_contain_text("115 of 115 canceled")
        page.goto(f"{site.url}/ui/operations")
        page.get_by_role("link", name=re.compile("-tag:spared")).click()
        expect(page.get_by_role("searchbox")).to_have_value(re.compile("-tag:spared created:20"))
    assert len(site.get("/api/v2/tasks?state=queued&limit=1000")["items"]) == 115
