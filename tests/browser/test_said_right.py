"""What the page says of a thing is true, and the same wherever it says it."""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import quote

import pytest
from playwright.sync_api import ViewportSize, expect

from tests.browser.conftest import Site
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]

HUGE: ViewportSize = {"width": 2560, "height": 1300}
SIGNAL = {
    "start": "wait",
    "nodes": {
        "wait": {"kind": "wait_event", "params": {"event": "paid", "timeout_ms": 3_600_000}},
        "nap": {"kind": "timer", "params": {"delay_ms": 1_500}},
    },
    "edges": [{"from": "wait", "to": "nap"}],
}


def start(site: Site) -> str:
    site.post("/api/v2/flows", {"name": "paying", "definition": SIGNAL})
    id: str = site.post("/api/v2/runs", {"flow": "paying"})["id"]
    poll_until(lambda: site.get(f"/api/v2/runs/{id}")["phase"] == "parked")
    return id


def test_a_run_took_as_long_in_one_list_as_in_the_other(site: Site) -> None:
    id = start(site)
    poll_until(lambda: site.get(f"/api/v2/runs/{id}")["current_node"] == "wait")
    site.post(f"/api/v2/runs/{id}/signal", {"name": "wait"})
    poll_until(lambda: site.get(f"/api/v2/runs/{id}")["state"] == "succeeded")
    with site.page("/runs") as page:
        took = page.locator(".list-row:not(.list-head) .list-low").first.inner_text()
        page.goto(f"{site.url}/ui/tasks?q=queue:flow:runs")
        expect(page.locator(".list-row:not(.list-head) .list-low").first).to_have_text(took)


def test_an_instant_is_named_for_what_it_is(site: Site) -> None:
    id = start(site)
    with site.page(f"/runs/{id}") as page:
        expect(page.locator(".notice")).to_contain_text(
            re.compile(r"Waiting for a signal\. \(expires in \d+ min\)")
        )
        page.goto(f"{site.url}/ui/tasks/{id}")
        expect(page.locator(".notice")).to_contain_text(re.compile(r"gives up in \d+ min"))


def test_the_icon_of_a_tab_shows_the_state(site: Site) -> None:
    id = site.submit("nobody-does-this")
    icon = "document.querySelector('link[rel=icon]').href"
    with site.page(f"/tasks/{id}") as page:
        expect(page.locator("h1 .badge")).to_contain_text("queued")
        assert page.evaluate(icon).endswith("/ui/favicon-wait.svg")
        assert page.request.get(page.evaluate(icon)).headers["content-type"] == "image/svg+xml"
        site.post(f"/api/v2/tasks/{id}/cancel", None)
        expect(page.locator("h1 .badge")).to_contain_text("canceled")
        page.wait_for_function(f"{icon}.endsWith('/ui/favicon.svg')")


def test_a_schedule_shows_its_next_times_before_it_is_saved(site: Site) -> None:
    with site.page("/schedules?new=1") as page:
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Cron").fill("30 6 * * *")
        times = dialog.get_by_role("status", name="Next times")
        expect(times).to_contain_text("06:30")
        assert times.inner_text().count("6:30") >= 5
        dialog.get_by_label("Cron").fill("61 6 * * *")
        expect(times).to_contain_text("bad minute")
        dialog.get_by_label("Cron").fill("45 6 * * *")
        expect(times).to_contain_text("06:45")
    assert site.get("/api/v2/schedules")["items"] == []


def test_an_id_is_shortened_the_same_way_everywhere(site: Site) -> None:
    site.start_worker()
    id = site.submit("picky", {}, max_retries=0)
    poll_until(lambda: site.get(f"/api/v2/tasks/{id}")["state"] == "dead")
    with site.page("/tasks") as page:
        short = page.locator(".list-what .mono").first.inner_text()
        assert short == f"…{id[-12:]}"
        page.goto(f"{site.url}/ui/dead-letters")
        page.get_by_role("button", name="Show the tasks").click()
        expect(page.get_by_role("region", name="Tasks of this group")).to_contain_text(short)


def test_a_wide_screen_is_filled(site: Site) -> None:
    site.submit("echo")
    with site.page("/", size=HUGE) as page:
        charts = page.locator("figure.chart")
        expect(charts).to_have_count(6)
        boxes = [chart.bounding_box() for chart in charts.all()]
        rows = Counter(round(box["y"]) for box in boxes if box)
        assert set(rows.values()) == {3}  # none of them is left over
        last = boxes[-1]
        assert last is not None
        assert last["x"] + last["width"] > 1900


def test_a_paced_retry_is_still_shown_after_a_reload(site: Site) -> None:
    site.start_worker()
    for n in range(3):
        site.submit("picky", {"n": n}, max_retries=0)
    poll_until(lambda: len(site.get("/api/v2/tasks?state=dead")["items"]) == 3)
    with site.page("/dead-letters") as page:
        page.get_by_role("button", name="Retry", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Rate limit per second").fill("0.01")
        expect(dialog).to_contain_text("The last one starts after 3 min")
        dialog.get_by_role("button", name="Retry", exact=True).click()
        started = page.get_by_text("Retrying 3 tasks: 1 of 3 started")
        expect(started).to_be_visible()
        page.reload()
        expect(started).to_be_visible()
        ends = max(one["run_at"] for one in site.get("/api/v2/tasks?state=scheduled")["items"])
        kept = page.evaluate("JSON.parse(localStorage['onward.paced'])[0].until")
        assert kept == ends  # the server's instant


def test_a_session_with_a_slash_has_its_page(site: Site) -> None:
    name = "team a/ann"
    site.submit("echo", {"n": 1}, session_id=name)
    session = f"/api/v2/sessions/{quote(name, safe='')}"
    poll_until(lambda: site.get(f"{session}/notifications?peek=true")["items"])
    with site.page("/sessions") as page:
        page.get_by_role("link", name=name).first.click()
        expect(page.locator("h1")).to_contain_text(name)
        page.get_by_role("button", name="Notices").click()
        page.get_by_role("button", name="Acknowledge").click()
        expect(page.get_by_text("acknowledged").first).to_be_visible()
        page.reload()
        expect(page.locator("h1")).to_contain_text(name)


def test_the_open_approvals_are_counted_beyond_a_hundred(site: Site) -> None:
    for n in range(101):
        site.submit("echo", {"n": n}, requires_approval=True)
    asked: list[str] = []
    with site.page("/queues") as page:
        page.on("request", lambda request: asked.append(request.url))
        count = page.get_by_role("navigation").get_by_role("link", name="Approvals")
        expect(count).to_contain_text("101")
        site.submit("echo", {"n": 101}, requires_approval=True)
        expect(count).to_contain_text("102")
    assert not [url for url in asked if "/approvals" in url]  # the number comes by itself
