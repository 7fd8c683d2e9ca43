"""Where people are, and how they get back there; and what the page says when things are bad."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PHONE, Site
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]


def test_a_step_back_leads_to_the_same_place(site: Site) -> None:
    for n in range(120):
        site.submit("heap", {"n": n})
    with site.page("/tasks") as page:
        told = page.locator("main p[aria-live]")
        expect(told).to_contain_text("loaded, more")
        page.evaluate("scrollTo(0, 3000)")
        expect(told).to_contain_text("120 tasks")
        row = page.locator(".virtual .list-row[aria-rowindex='80'] a")
        row.click()
        expect(page.locator("h1 .badge")).to_be_visible()
        page.go_back()
        expect(row).to_be_in_viewport()
        assert page.evaluate("scrollY") == 3000


def test_a_step_back_takes_off_one_filter(site: Site) -> None:
    site.submit("heap")
    with site.page("/") as page:
        page.get_by_role("link", name="Tasks", exact=True).click()
        page.get_by_role("button", name="queued").click()
        page.get_by_role("button", name="running").click()
        expect(page).to_have_url(re.compile("queued%2Crunning"))
        page.go_back()
        expect(page).to_have_url(re.compile("q=state%3Aqueued$"))
        page.go_back()
        expect(page).to_have_url(re.compile("/ui/tasks$"))


def test_a_view_that_could_not_be_loaded_comes_with_the_server(site: Site) -> None:
    with site.page("/tasks") as page:
        expect(page.get_by_text("No tasks yet")).to_be_visible()
        page.route(re.compile("assets/Queues-"), lambda route: route.abort())
        page.reload()
        expect(page.get_by_text("No tasks yet")).to_be_visible()
        site.server.kill()
        page.get_by_role("link", name="Queues").click()
        expect(page.get_by_text("as soon as the server is back")).to_be_visible()
        page.unroute_all()
        site.restart()
        expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    site.complaints.clear()  # the import that failed


def test_a_long_error_breaks_no_page(site: Site) -> None:
    site.start_worker()
    id = site.submit("picky", {"message": "x" * 8000}, max_retries=0)
    poll_until(lambda: site.get(f"/api/v2/tasks/{id}")["state"] == "dead")
    for path in (f"/tasks/{id}", "/tasks", "/dead-letters"):
        with site.page(path, size=PHONE) as page:
            expect(page.get_by_text("xxxx").first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            assert page.evaluate("document.documentElement.scrollHeight") < 4500


def test_tabs_are_told_apart(site: Site) -> None:
    id = site.submit("nobody-does-this")
    with site.page(f"/tasks/{id}") as page:
        expect(page).to_have_title("nobody-does-this queued · Onward")
        page.get_by_role("link", name="Queues").click()
        expect(page).to_have_title("Queues · Onward")


def test_work_that_nobody_does_needs_attention(site: Site) -> None:
    with site.page("/") as page:
        expect(page.get_by_text("Nothing needs attention")).to_be_visible()
        site.submit("nobody-does-this")
        attention = page.locator(".card", has_text="Needs attention")
        expect(attention).to_contain_text("nobody-does-this: 1 task waits and no worker serves")
        site.post("/api/v2/queues/echo/pause", {"by": "ann", "reason": "new codec"})
        site.submit("echo")
        expect(attention).to_contain_text("echo: paused by ann: new codec (1 task queued)")
        attention.locator("li", has_text="nobody-does-this").get_by_role("link").click()
        expect(page.get_by_role("link", name="nobody-does-this").first).to_be_visible()


def test_an_empty_server_shows_the_first_steps(site: Site) -> None:
    with site.page("/") as page:
        steps = page.locator(".card", has_text="First steps")
        expect(steps.locator("li", has_text="A worker is connected")).to_contain_text("done")
        expect(steps.locator("code")).to_contain_text("onward submit countdown")
        site.submit("echo")
        expect(steps).to_have_count(0)  # it has succeeded


def test_commands_reach_this_server(site: Site) -> None:
    with site.page("/tasks") as page:
        expect(page.locator(".command code")).to_contain_text(f"--server {site.url}")


def test_the_palette_finds_whatever_has_a_name(site: Site) -> None:
    body = {"name": "nightly", "type": "echo", "cron": "0 3 * * *"}
    site.post("/api/v2/schedules", body)
    with site.page("/") as page:
        expect(page.locator("h1")).to_be_visible()
        page.keyboard.press("Control+k")
        page.get_by_role("combobox").fill("nightl")
        page.get_by_role("option", name="Schedule: nightly").click()
        expect(page.locator("h1")).to_contain_text("nightly")


def test_the_approval_of_one_task_is_shown_as_such(site: Site) -> None:
    ids = [site.submit("echo", {"n": n}, requires_approval=True) for n in range(2)]
    with site.page(f"/approvals?task={ids[0]}") as page:
        expect(page.locator("li .card")).to_have_count(1)
        page.get_by_role("button", name="Show all").click()
        expect(page.locator("li .card")).to_have_count(2)
