"""The page in a real browser: what people do with it all day."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import PHONE, Site
from tests.processes import Server
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8", "S3-15")]


def _scrolled(page: Page) -> int:
    """To the end of what there is so far; how many rows that is."""
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    told = page.locator("main p[aria-live]").inner_text()
    return int(told.split()[0].replace(",", ""))


def badge(page: Page, word: str) -> None:
    expect(page.locator("h1 .badge")).to_contain_text(word)


def test_a_task_is_handed_in_watched_and_done(site: Site) -> None:
    with site.page("/playground?door=native") as page:
        page.get_by_label("Body").fill('{"type": "countdown", "payload": {"seconds": 4}}')
        page.get_by_role("button", name="Send").click()
        page.locator(".card", has_text="Response").locator("p a.mono").click()
        expect(page).to_have_url(re.compile("/ui/tasks/"))
        badge(page, "running")
        badge(page, "succeeded")  # without anybody loading the page anew
        expect(page.locator(".log")).to_contain_text("task.succeeded")
        expect(page.locator(".waterfall")).to_contain_text("attempt 1")
        expect(page.get_by_role("region", name="result")).to_contain_text("seconds")


def test_a_text_is_summarised_at_the_tasks_door(site: Site) -> None:
    with site.page("/playground") as page:
        page.get_by_label("Text to summarize").fill("Whales sing. They sing for hours in the dark.")
        page.get_by_role("button", name="Summarize", exact=True).last.click()
        expect(page.locator("blockquote")).to_contain_text("sing")
        assert site.get("/api/v1/tasks/?status=COMPLETED")[0]["content"]


def test_a_dead_letter_is_mended_and_replayed(site: Site) -> None:
    site.start_worker()
    id = site.submit("picky", {"good": False}, max_retries=0)
    with site.page("/dead-letters") as page:
        group = page.locator("li .card", has_text="this is not good")
        group.get_by_role("button", name="Show the tasks").click()
        group.get_by_role("button", name=f"Edit and retry {id}").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Payload").fill('{"good": tru')
        expect(dialog.get_by_role("button", name="Retry with this payload")).to_be_disabled()
        dialog.get_by_label("Payload").fill('{"good": true}')
        dialog.get_by_role("button", name="Dry run").click()
        expect(dialog).to_contain_text("1 would be requeued")
        assert site.get(f"/api/v2/tasks/{id}")["state"] == "dead"
        dialog.get_by_role("button", name="Retry with this payload").click()
        expect(page.get_by_text("No dead letters")).to_be_visible()
    poll_until(lambda: site.get(f"/api/v2/tasks/{id}")["state"] == "succeeded")
    with site.page(f"/tasks/{id}") as page:
        badge(page, "succeeded")
        expect(page.locator(".waterfall")).to_contain_text("attempt 1 (retry 1)")


def test_a_failed_task_is_retried_with_another_payload_from_its_own_page(site: Site) -> None:
    site.start_worker()
    id = site.submit("picky", {"good": False, "big": 9007199254740993}, max_retries=0)
    with site.page(f"/tasks/{id}") as page:
        badge(page, "dead")
        # A number that no double can hold is shown, and sent back, as it was written.
        expect(page.get_by_role("region", name="payload")).to_contain_text("9007199254740993")
        page.get_by_role("button", name="Retry").click()
        field = page.get_by_role("dialog").get_by_label("Payload")
        field.fill(field.input_value().replace("false", "true"))
        page.get_by_role("button", name="Retry with this payload").click()
        badge(page, "succeeded")
    assert site.get(f"/api/v2/tasks/{id}")["payload"] == {"good": True, "big": 9007199254740993}


def test_what_is_copied_from_a_task_hands_it_in_again(site: Site) -> None:
    payload = {"it's": 'a "quoted" $HOME `thing`', "n": 9007199254740993, "none": None, "ok": True}
    id = site.submit("echo", payload)
    with site.page(f"/tasks/{id}") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        for name, command in (("curl", ["bash", "-c"]), ("Python", [sys.executable, "-c"])):
            page.get_by_role("button", name=name).click()
            expect(page.locator(".toast").last).to_contain_text("Copied a")
            program = page.evaluate("navigator.clipboard.readText()")
            subprocess.run([*command, program], check=True, timeout=30, stdout=subprocess.DEVNULL)
    made = site.get("/api/v2/tasks?type=echo")["items"]
    assert [task["result"] for task in made] == [payload] * 3


def test_a_list_of_a_hundred_thousand_scrolls(tmp_path: Path, browser: Browser) -> None:
    heap = [sys.executable, "-m", "tests.browser.heap", str(tmp_path / "ledger.db"), "100000"]
    subprocess.run(heap, check=True, timeout=60)
    site = Site(tmp_path, browser)
    try:
        with site.page("/tasks") as page:
            expect(page.get_by_role("button", name="queued 100,000")).to_be_visible()
            for wanted in (1_000, 5_000, 20_000):
                poll_until(lambda: _scrolled(page) >= wanted, timeout=60)  # noqa: B023
                assert page.locator(".virtual .list-row").count() < 120
            page.evaluate("scrollTo(0, 0)")
            expect(page.locator(".virtual .list-row[aria-rowindex='1']")).to_be_visible()
    finally:
        site.close()
    assert site.complaints == []


def test_who_reaches_the_end_while_the_list_is_read_again_gets_more(site: Site) -> None:
    for n in range(150):
        site.submit("heap", {"n": n})
    held: list[Route] = []
    with site.page("/tasks") as page:
        told = page.locator("main p[aria-live]")
        expect(told).to_contain_text("loaded, more")
        page.route(re.compile(r"/api/v2/tasks\?(?!.*cursor)"), lambda route: held.append(route))
        site.submit("heap", {"n": "last"})
        while not held:
            page.wait_for_timeout(50)
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_timeout(500)
        for route in held:
            route.continue_()
        page.unroute_all()
        expect(told).to_contain_text("150 tasks")  # the newest one is told of at the top


def test_many_tasks_are_canceled_at_once(site: Site) -> None:
    ids = [site.submit("nobody-does-this", {"n": n}) for n in range(12)]
    other = site.submit("nor-this")
    with site.page("/tasks?q=type%3Anobody-does-this") as page:
        rows = page.locator(".virtual .list-row")
        expect(rows).to_have_count(12)
        page.get_by_role("checkbox", name="Select all loaded tasks").check()
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("button", name="Cancel 12 tasks").click()
        expect(page.locator(".bulk")).to_contain_text("12 of 12 canceled")
        expect(rows.locator(".badge", has_text="canceled")).to_have_count(12)
    assert {site.get(f"/api/v2/tasks/{id}")["state"] for id in ids} == {"canceled"}
    assert site.get(f"/api/v2/tasks/{other}")["state"] == "queued"


def test_all_that_match_means_also_those_not_loaded(site: Site) -> None:
    for n in range(230):
        site.submit("heap", {"n": n})
    with site.page("/tasks?q=type%3Aheap") as page:
        page.locator(".virtual .list-row").first.get_by_role("checkbox").check()
        page.get_by_role("button", name="Select all matching").click()
        page.get_by_role("button", name="Cancel", exact=True).click()
        question = page.get_by_role("dialog", name="Cancel 230 tasks?")
        expect(question).to_contain_text("type:heap")
        expect(question.locator(".sample .badge")).to_have_count(5)
        expect(question).to_contain_text("and 225 more")
        question.get_by_role("button", name="Cancel 230 tasks").click()
        expect(page.locator(".bulk")).to_contain_text("230 of 230 canceled")
    assert not site.get("/api/v2/tasks?state=queued")["items"]


def test_lists_and_numbers_change_by_themselves(site: Site) -> None:
    with site.page("/tasks") as page:
        expect(page.get_by_text("No tasks yet")).to_be_visible()
        expect(page.get_by_text("onward submit")).to_be_visible()
        site.submit("countdown", {"seconds": 3})
        row = page.locator(".virtual .list-row")
        expect(row.locator(".badge")).to_contain_text("running")
        expect(row.locator(".badge")).to_contain_text("succeeded")
        expect(page.get_by_role("button", name="succeeded 1")).to_be_visible()
        page.get_by_role("button", name="pause live updates").click()
        site.submit("echo")
        poll_until(lambda: len(site.get("/api/v2/tasks?state=succeeded")["items"]) == 2)
        expect(row).to_have_count(1)
        page.get_by_role("button", name="resume live updates").click()
        expect(row).to_have_count(2)


def test_what_changes_while_it_is_read_is_read_again(site: Site) -> None:
    task = site.submit("countdown", {"seconds": 2})
    held: list[str] = []

    def hold(route: Route) -> None:
        answer = route.fetch()
        if not held:  # until what it says is no longer true, and others have been told
            held.append(answer.json()["state"])
            poll_until(lambda: site.get(f"/api/v2/tasks/{task}")["state"] == "succeeded")
            time.sleep(1.5)
        route.fulfill(response=answer)

    with site.page() as page:
        page.route(re.compile(rf"/api/v2/tasks/{task}\?"), hold)
        page.goto(f"{site.url}/ui/tasks/{task}")
        badge(page, "succeeded")
    assert held == ["running"]


def test_a_server_that_goes_away_is_noticed_and_its_return_too(site: Site) -> None:
    with site.page("/tasks") as page:
        site.submit("echo", {"before": True})
        expect(page.locator(".virtual .list-row")).to_have_count(1)
        site.server.kill()
        expect(page.get_by_role("alert")).to_contain_text("unreachable")
        expect(page.locator(".virtual .list-row")).to_have_count(1)  # what was there stays
        site.restart()
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.get_by_text("The server was restarted")).to_be_visible()
        site.submit("echo", {"after": True})
        expect(page.locator(".virtual .list-row")).to_have_count(2)


def test_the_health_of_a_server_that_is_unwell_is_shown(site: Site, tmp_path: Path) -> None:
    site.server.kill()
    (tmp_path / "new").mkdir()  # the ledger of the first one still knows its worker
    site.server = Server(tmp_path / "new", port=site.server.port, ONWARD_DRAIN_MS=500)
    site.server.wait_ready()
    with site.page("/settings") as page:
        parts = page.get_by_role("region", name="Components")
        expect(parts).to_contain_text("no worker is connected")
    assert all("503" in one for one in site.complaints)  # the browser's own line on the status
    site.complaints.clear()


def test_an_approval_is_given_by_key(site: Site) -> None:
    ids = [site.submit("echo", {"n": n}, requires_approval=True) for n in range(2)]
    with site.page("/approvals") as page:
        cards = page.locator("li .card")
        expect(cards).to_have_count(2)
        page.get_by_label("deciding as").fill("ann")
        page.keyboard.press("Tab")
        page.keyboard.press("j")
        page.keyboard.press("a")
        expect(cards.first).to_contain_text("Approving as ann")
        cards.last.get_by_role("textbox", name="Comment").fill("not this one")
        cards.last.get_by_role("button", name="Reject", exact=True).click()
        expect(cards.first).to_contain_text("approved by ann")  # each in its place
        expect(cards.last).to_contain_text("rejected by ann")
        page.reload()
        expect(page.get_by_text("No open approvals")).to_be_visible()
    # The newest stands first.
    poll_until(lambda: site.get(f"/api/v2/tasks/{ids[1]}")["state"] == "succeeded")
    assert site.get(f"/api/v2/tasks/{ids[0]}")["state"] == "failed"


def test_a_queue_is_paused_and_resumed(site: Site) -> None:
    site.submit("echo")
    with site.page("/queues") as page:
        row = page.locator("tbody tr", has=page.get_by_role("link", name="echo", exact=True))
        row.get_by_role("button", name="Pause").click()
        page.get_by_label("Reason").fill("new codec")
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(row).to_contain_text("new codec")
        id = site.submit("echo", {"waits": True})
        expect(row).to_contain_text("1")
        assert site.get(f"/api/v2/tasks/{id}")["state"] == "queued"
        row.get_by_role("button", name="Resume").click()
        poll_until(lambda: site.get(f"/api/v2/tasks/{id}")["state"] == "succeeded")
        expect(row).not_to_contain_text("new codec")


def test_the_keyboard_is_enough(site: Site) -> None:
    ids = [site.submit("echo", {"n": n}) for n in range(3)]
    with site.page("/") as page:
        expect(page.locator(".tile").first).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("t")
        expect(page.get_by_role("heading", name="Tasks")).to_be_visible()
        expect(page.locator(".virtual .list-row")).to_have_count(3)
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("x")
        expect(page.locator(".bulk")).to_contain_text("1 selected")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(ids[1]))
        page.keyboard.press("Control+k")
        expect(page.get_by_role("combobox")).to_be_focused()
        page.keyboard.type("dead let")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("select the row")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.keyboard.press("g")
        page.keyboard.press("t")
        expect(page.get_by_role("searchbox")).to_be_visible()
        page.keyboard.press("/")
        expect(page.get_by_role("searchbox")).to_be_focused()
        page.keyboard.type("state:dead")
        expect(page).to_have_url(re.compile(r"q=state%3Adead"))
        expect(page.get_by_text("No matching tasks")).to_be_visible()


def test_the_address_holds_the_view(site: Site) -> None:
    site.submit("echo")
    with site.page("/tasks") as page:
        page.get_by_role("button", name="succeeded").click()
        expect(page).to_have_url(re.compile(r"q=state%3Asucceeded"))
        page.reload()
        expect(page.get_by_role("button", name="succeeded")).to_have_attribute(
            "aria-pressed", "true"
        )
        page.locator(".list-what a").click()
        badge(page, "succeeded")
        page.go_back()
        expect(page).to_have_url(re.compile(r"q=state%3Asucceeded"))


def test_a_phone_has_all_of_it(site: Site) -> None:
    site.submit("echo")
    with site.page("/tasks", size=PHONE) as page:
        expect(page.locator(".virtual .list-row")).to_have_count(1)
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("link", name="Queues").click()
        expect(page.get_by_role("heading", name="Queues")).to_be_visible()
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0
