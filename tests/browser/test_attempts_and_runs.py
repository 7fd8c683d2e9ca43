"""Why an attempt failed and where a run differs from a good one are seen on the page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Site
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]

FLOW = {
    "start": "each",
    "nodes": {
        "each": {
            "kind": "foreach",
            "service": "talker",
            "prep": {"input_key": "$params.items"},
            "post": {"output_key": "seen"},
        },
        "end": {"kind": "timer", "params": {"delay_ms": 1}},
    },
    "edges": [{"from": "each", "to": "end"}],
}


def over(site: Site, id: str) -> Any:
    return poll_until(lambda: site.get(f"/api/v2/tasks/{id}"), holds=lambda one: one["finished_at"])


def test_logs_are_followed_while_a_task_runs(site: Site) -> None:
    site.start_worker()
    id = site.submit("talker", {"lines": 3, "hold": True})
    with site.page(f"/tasks/{id}") as page:
        lines = page.get_by_role("list", name="Log lines")
        expect(lines).to_contain_text("line 2")
        expect(page.get_by_text("following")).to_be_visible()
        site.submit("release", {})
        expect(lines).to_contain_text("released")
        expect(page.get_by_text("following")).to_have_count(0)
        page.get_by_label("from level").select_option("ERROR")
        expect(lines).to_contain_text("No line of this level")


def test_each_attempt_has_its_traceback_and_what_differs(site: Site) -> None:
    site.start_worker()
    id = site.submit("talker", {"fail": True}, max_retries=1, backoff_ms=[1])
    over(site, id)
    with site.page(f"/tasks/{id}") as page:
        attempts = page.get_by_role("region", name="Attempts")
        expect(attempts.locator("tbody tr")).to_have_count(2)
        first = attempts.locator("tbody tr").last
        first.locator("summary", has_text="Traceback").click()
        expect(first).to_contain_text("attempt 1 breaks")
        last = attempts.locator("tbody tr").first
        last.get_by_text("Differs from attempt 1").click()
        error = last.locator("li", has_text="error")
        expect(error.locator("del")).to_contain_text("attempt 1 breaks")
        expect(error.locator("ins")).to_contain_text("attempt 2 breaks")


def test_a_payload_is_compared_with_the_last_success(site: Site) -> None:
    site.start_worker()
    over(site, site.submit("picky", {"good": True, "size": 1}))
    id = site.submit("picky", {"good": False, "size": 1}, max_retries=0)
    over(site, id)
    with site.page(f"/tasks/{id}") as page:
        page.get_by_role("button", name="Compare with the last success").click()
        expect(page.locator(".diff-old")).to_contain_text('"good": true')
        expect(page.locator(".diff-new")).to_contain_text('"good": false')
        page.get_by_role("button", name="Retry").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Payload").fill('{"good": true, "size": 1}')
        expect(dialog.locator(".diff-new")).to_contain_text('"good": true')


def start(site: Site, *items: Any) -> str:
    id: str = site.post("/api/v2/runs", {"flow": "talks", "params": {"items": list(items)}})["id"]
    return id


def test_a_run_is_unfolded_to_calls_and_attempts(site: Site) -> None:
    site.start_worker()
    site.post("/api/v2/flows", {"name": "talks", "definition": FLOW})
    run = start(site, {"lines": 1}, {"lines": 1})
    over(site, run)
    with site.page(f"/runs/{run}") as page:
        page.get_by_role("button", name="Show calls and attempts").click()
        calls = page.locator(".waterfall").get_by_role("link", name=re.compile("call"))
        expect(calls).to_have_count(2)
        calls.first.click()
        expect(page.locator("h1")).to_contain_text("talker")


def test_a_run_is_compared_and_run_again(site: Site) -> None:
    site.start_worker()
    site.post("/api/v2/flows", {"name": "talks", "definition": FLOW})
    over(site, start(site, {"lines": 1}))
    bad = start(site, {"fail": True})
    over(site, bad)
    with site.page(f"/runs/{bad}") as page:
        page.get_by_role("button", name="Compare", exact=True).click()
        nodes = page.get_by_role("region", name="Nodes of both runs")
        expect(nodes.locator("tr", has_text="each")).to_contain_text("differs")
        expect(page.locator(".diff-new").first).to_contain_text("fail")
        page.get_by_role("button", name="Run again").click()
        dialog = page.get_by_role("dialog")
        items = dialog.get_by_label("items")
        expect(items).to_have_value('[{"fail":true}]')
        items.fill('[{"lines": 1}]')
        dialog.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator("h1 .badge")).to_contain_text("succeeded")
        expect(page).not_to_have_url(re.compile(bad))
