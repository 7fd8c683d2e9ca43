"""Sessions, and workers that are told to drain, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE, Site
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]

READY = "Your echo is ready."


def hand_in(site: Site, session: str = "ann") -> str:
    """A task of this session, done and told of."""
    before = len(told(site, session))
    task = site.submit("echo", {"value": 1}, session_id=session)
    poll_until(lambda: len(told(site, session)) > before)
    return task


def told(site: Site, session: str = "ann") -> list[dict[str, object]]:
    items: list[dict[str, object]] = site.get(
        f"/api/v2/sessions/{session}/notifications?peek=true"
    )["items"]
    return items


def tab(page: Page, name: str) -> None:
    page.get_by_role("group", name="Shown").get_by_role("button", name=name).click()


def test_a_session_comes_into_the_list_by_itself(site: Site) -> None:
    with site.page("/sessions") as page:
        expect(page.locator(".empty")).to_contain_text("No sessions yet")
        expect(page.locator(".empty code")).to_contain_text("--session ann")
        hand_in(site)
        row = page.get_by_role("row").filter(has_text="ann")
        expect(row).to_contain_text("1 succeeded")
        expect(row).to_contain_text("1 unread")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/ui/sessions/ann$"))
        expect(page.get_by_role("table", name="Tasks")).to_contain_text("echo")


def test_a_notice_arrives_as_it_is_told_and_is_acknowledged(site: Site) -> None:
    hand_in(site)
    with site.page("/sessions/ann?tab=notices") as page:
        notices = page.get_by_role("list", name="Notices").get_by_role("listitem")
        expect(notices).to_have_count(1)
        expect(notices.first).to_contain_text("not delivered yet, not acknowledged")
        hand_in(site)
        expect(notices).to_have_count(2)
        notices.first.get_by_role("button", name=f"Acknowledge {READY}").click()
        expect(notices.first).to_contain_text("acknowledged now")
        expect(notices.first.get_by_role("button")).to_have_count(0)
        expect(page.locator(".facts")).to_contain_text("unread notices1")
    assert [one["read"] for one in told(site)] == [True, False]


def test_how_a_notice_was_delivered_is_shown(site: Site) -> None:
    hand_in(site)
    site.get("/api/v2/sessions/ann/notifications")  # as the session itself would ask
    with site.page("/sessions/ann?tab=notices") as page:
        expect(page.get_by_role("list", name="Notices")).to_contain_text("fetched after")


def test_what_is_pushed_to_a_session_is_chosen_by_hand(site: Site) -> None:
    hand_in(site)
    with site.page("/sessions/ann", size=PHONE) as page:
        tab(page, "Preferences")
        page.get_by_label("overdue").uncheck()
        poll_until(
            lambda: (
                set(site.get("/api/v2/sessions/ann/preferences")["types"])
                == {"task_completed", "task_failed", "approval_requested"}
            )
        )
        expect(page.get_by_label("overdue")).not_to_be_checked()


def test_a_session_that_is_not_there_says_so(site: Site) -> None:
    with site.page("/sessions/nobody") as page:
        expect(page.get_by_role("alert")).to_contain_text("no such session")
        page.get_by_role("link", name="All sessions").click()
        expect(page.locator("h1")).to_have_text("Sessions")
    site.complaints.clear()  # a 404 is red in the console


def test_a_drained_worker_finishes_and_goes(site: Site) -> None:
    site.start_worker()
    poll_until(lambda: len(site.get("/api/v2/workers")["items"]) == 2)
    with site.page("/workers") as page:
        row = page.get_by_role("row").filter(has_text="tester")
        row.get_by_role("button", name="Drain tester").click()
        expect(row).to_be_visible()  # it only asked
        page.get_by_role("button", name="Drain worker").click()
        expect(row).to_have_count(0)
    assert len(site.get("/api/v2/workers")["items"]) == 1


def test_the_builtin_worker_rests_and_takes_work_again(site: Site) -> None:
    with site.page("/workers") as page:
        row = page.get_by_role("row").filter(has_text="builtin")
        row.get_by_role("button", name="Drain").click()
        page.get_by_role("button", name="Drain worker").click()
        expect(row).to_contain_text("drained")
        task = site.submit("echo", {"value": 1})
        assert site.get(f"/api/v2/tasks/{task}/explain")["reason"] == "no_worker"
        row.get_by_role("button", name="Resume").click()
        expect(row).not_to_contain_text("drained")
    poll_until(lambda: site.get(f"/api/v2/tasks/{task}")["state"] == "succeeded")
