"""The overview shows how it stands and what was done; what it shows leads to the tasks."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Site
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]


def some_work(site: Site) -> None:
    site.start_worker()
    ids = [site.submit("echo", {"n": n}) for n in range(3)]
    ids.append(site.submit("picky", {"good": False}, max_retries=0))
    poll_until(lambda: all(site.get(f"/api/v2/tasks/{id}")["finished_at"] for id in ids))


def test_figures_stand_at_two_levels(site: Site) -> None:
    some_work(site)
    site.submit("nobody-does-this")
    with site.page() as page:
        hour = page.get_by_role("region", name="last hour")
        expect(hour.get_by_role("link", name="succeeded")).to_contain_text("3")
        expect(hour.get_by_role("link", name="failed")).to_contain_text("1")
        expect(hour.get_by_role("link", name="failure share")).to_contain_text("25 %")
        now = page.get_by_role("region", name="Now")
        expect(now.get_by_role("link", name="queued")).to_contain_text("1")
        expect(now.get_by_role("link", name="dead")).to_contain_text("1")
        hour.get_by_role("link", name="failed").click()
        expect(page.locator(".virtual .list-row")).to_have_count(1)


def test_a_range_and_a_service_are_chosen_and_stay_in_the_address(site: Site) -> None:
    some_work(site)
    with site.page() as page:
        page.get_by_role("group", name="Range").get_by_role("button", name="24 h").click()
        expect(page).to_have_url(re.compile("range=24h"))
        expect(page.get_by_role("heading", name="Services, last 24 h")).to_be_visible()
        page.get_by_role("combobox", name="service").select_option("picky")
        expect(page).to_have_url(re.compile("service=picky"))
        ran = page.locator("figure.chart", has_text="Run time, by duration")
        expect(ran).to_contain_text("1 attempt")
        page.reload()
        expect(ran).to_contain_text("1 attempt")
        page.get_by_role("button", name="15 min").click()
        expect(page.get_by_text("Throughput (per minute)")).to_be_visible()
        page.get_by_role("combobox", name="service").select_option("")
        expect(page.get_by_text("Throughput (per second)")).to_be_visible()  # live


def test_a_failing_service_is_one_click_away(site: Site) -> None:
    some_work(site)
    with site.page() as page:
        row = page.get_by_role("region", name="Services").locator("tr", has_text="picky")
        expect(row).to_contain_text("100 %")
        row.get_by_role("link", name="1").click()
        expect(page.locator(".virtual .list-row")).to_contain_text("picky")


def test_a_spike_leads_to_its_tasks(site: Site) -> None:
    some_work(site)
    with site.page("/queues") as page:
        with page.expect_response(re.compile("/api/v2/series")) as response:
            page.get_by_role("navigation").get_by_role("link", name="Overview").click()
        chart = page.locator("figure.chart", has_text="Failures (per minute)")
        expect(chart.locator("path.line").first).to_be_attached()
        series = response.value.json()
        first = series["points"][0]["at"]
        (spike,) = (one["at"] for one in series["points"] if one["dead"] or one["failed"])
        picture = chart.locator("svg")
        box = picture.bounding_box()
        assert box is not None
        at = (spike - first) / (series["until"] - first) * box["width"]
        picture.click(position={"x": min(at, box["width"] - 2), "y": box["height"] / 2})
        expect(page).to_have_url(re.compile("finished"))
        expect(page.locator(".virtual .list-row")).to_have_count(1)
        expect(page.locator(".virtual .list-row")).to_contain_text("picky")
        quiet = "finished:2020-01-01..2020-01-02"
        page.get_by_role("searchbox").fill(f"state:failed,dead {quiet}")
        expect(page.get_by_text("No matching tasks")).to_be_visible()


def test_what_was_done_is_known_after_a_restart(site: Site) -> None:
    some_work(site)
    with site.page() as page:
        hour = page.get_by_role("region", name="last hour")
        expect(hour.get_by_role("link", name="succeeded")).to_contain_text("3")
        site.server.stop()
        site.restart()
        page.reload()
        expect(hour.get_by_role("link", name="succeeded")).to_contain_text("3")
        expect(hour.get_by_role("link", name="failed")).to_contain_text("1")
