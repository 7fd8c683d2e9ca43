"""A queue, a service and a worker each have a page, and the server has a name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Site
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]


def test_a_queue_has_a_page_and_is_paused_there(
    site: Site, axe: Callable[[Page], list[str]]
) -> None:
    site.submit("nobody-does-this")
    with site.page("/queues") as page:
        page.get_by_role("link", name="nobody-does-this").first.click()
        expect(page.locator("h1")).to_contain_text("nobody-does-this")
        expect(page.get_by_text("no worker").first).to_be_visible()
        expect(page.locator("figure.chart")).to_have_count(6)
        expect(page.locator(".virtual .list-row")).to_have_count(1)
        page.get_by_role("button", name="Pause nobody-does-this").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Resume nobody-does-this")).to_be_visible()
        assert axe(page) == []
    assert site.get("/api/v2/queues/nobody-does-this")["paused"] is not None


def test_a_service_shows_its_schema_and_its_failures(
    site: Site, axe: Callable[[Page], list[str]]
) -> None:
    site.start_worker()
    id = site.submit("picky", {"good": False}, max_retries=0)
    poll_until(lambda: site.get(f"/api/v2/tasks/{id}")["state"] == "dead")
    with site.page() as page:
        services = page.get_by_role("region", name="Services")
        services.get_by_role("link", name="picky").click()
        expect(page.locator("h1")).to_contain_text("picky")
        expect(page.get_by_role("link", name="tester")).to_be_visible()
        expect(page.locator(".virtual .list-row")).to_contain_text("this is not good")
        page.goto(f"{site.url}/ui/services/countdown")
        expect(page.get_by_role("region", name="schema")).to_contain_text("seconds")
        assert axe(page) == []


def test_a_worker_shows_what_it_runs(site: Site, axe: Callable[[Page], list[str]]) -> None:
    site.start_worker()
    id = site.submit("talker", {"hold": True})
    poll_until(lambda: site.get(f"/api/v2/tasks/{id}")["state"] == "running")
    with site.page("/workers") as page:
        page.get_by_role("link", name="tester").click()
        expect(page.get_by_role("region", name="Running tasks")).to_contain_text("talker")
        assert axe(page) == []
        page.goto(f"{site.url}/ui/workers/nobody")
        expect(page.get_by_text("nobody is not connected")).to_be_visible()


def test_the_environment_is_named(site: Site, axe: Callable[[Page], list[str]]) -> None:
    site.server.stop()
    site.restart(ONWARD_ENVIRONMENT="production", ONWARD_ENVIRONMENT_COLOR="red")
    with site.page() as page:
        expect(page.locator(".environment")).to_have_text("production")
        expect(page.locator("h1")).to_be_visible()
        assert axe(page) == []
