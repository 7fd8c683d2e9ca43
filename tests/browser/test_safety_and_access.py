"""Nothing that people send becomes part of the page, and everybody can read it."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Site
from tests.support import poll_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
LINK = "javascript:alert(3)"
PATHS = (
    "/",
    "/tasks",
    "/sessions",
    "/workers",
    "/queues",
    "/approvals",
    "/approvals?status=all",
    "/dead-letters",
    "/playground",
    "/playground?door=native",
    "/settings",
)


def fill(site: Site, text: str = "plain") -> list[str]:
    """Something on every page; `text` wherever somebody may write something."""
    site.start_worker()
    name = text[:100]
    echo = site.submit(
        "echo",
        {text: text, "link": LINK, "list": [text, 1, None]},
        session_id=name.replace("/", ""),
        idempotency_key=name,
    )
    dead = site.submit("picky", {"message": text}, max_retries=0)
    stuck = site.submit(name, text, queue=name)
    asked = site.submit("echo", {text: text}, approval={"reason": text})
    decided = site.submit("echo", text, requires_approval=True)
    word = {"by": name, "comment": text}
    site.post(f"/api/v2/approvals/{decided}/reject", word)
    queue = f"/api/v2/queues/{name.replace('/', '%2F')}/pause"
    site.post(
        queue if "/" not in name else "/api/v2/queues/echo/pause", {"by": name, "reason": text}
    )
    site.post("/api/v2/services", {"name": name, "task_types": [name]})
    poll_until(lambda: site.get(f"/api/v2/tasks/{dead}")["state"] == "dead")
    session = f"/sessions/{quote(name.replace('/', ''))}"
    notices = f"/api/v2{session}/notifications?peek=true"
    poll_until(lambda: site.get(notices)["items"])
    tabs = [session, f"{session}?tab=notices", f"{session}?tab=preferences"]
    return [*[f"/tasks/{id}" for id in (echo, dead, stuck, asked, decided)], *tabs]


def test_whatever_is_sent_is_shown_as_text(site: Site) -> None:
    tasks = fill(site, EVIL)
    for path in (*PATHS, *tasks, "/tasks?q=%3Cscript%3Ealert(4)%3C%2Fscript%3E"):
        with site.page(path) as page:
            expect(page.locator("h1")).to_be_visible()
            expect(page.locator(".skeleton")).to_have_count(0)
            assert page.locator("main img, main script, main iframe").count() == 0
            assert page.locator("a[href^='javascript:']").count() == 0
    with site.page(tasks[0]) as page:
        expect(page.get_by_role("region", name="payload")).to_contain_text("<img src=x onerror")
    with site.page("/dead-letters") as page:
        expect(page.locator("main")).to_contain_text("<script>alert(2)</script>")


def test_the_policy_stops_what_would_get_through(site: Site) -> None:
    """Were markup to slip in, the browser would not run it: the policy is not for show."""
    with site.page("/") as page:
        expect(page.locator("h1")).to_be_visible()
        ran = page.evaluate(
            """async () => {
                const script = document.createElement('script');
                try { script.text = 'window.ran = true'; document.body.append(script); } catch {}
                const style = document.createElement('style');
                style.textContent = 'body { --got-in: 1 }';
                document.body.append(style);
                await new Promise((done) => setTimeout(done, 50));
                const styled = getComputedStyle(document.body).getPropertyValue('--got-in');
                return [window.ran === true, styled];
            }"""
        )
        assert ran == [False, ""]
    assert len(site.complaints) >= 1
    site.complaints.clear()


def test_axe_finds_nothing_serious(site: Site, axe: Callable[[Page], list[str]]) -> None:
    found: dict[str, list[str]] = {}
    tasks = fill(site)
    for path in (*PATHS, *tasks):
        with site.page(path) as page:
            expect(page.locator("h1")).to_be_visible()
            expect(page.locator(".skeleton")).to_have_count(0)
            if path == "/dead-letters":
                page.get_by_role("button", name="Show the tasks").click()
                expect(page.get_by_role("region", name="Tasks of this group")).to_be_visible()
            if findings := axe(page):
                found[path] = findings
    with site.page("/tasks") as page:
        expect(page.locator("h1")).to_be_visible()
        page.keyboard.press("Control+k")
        expect(page.get_by_role("combobox")).to_be_visible()
        if findings := axe(page):
            found["palette"] = findings
    assert found == {}


def test_axe_sees_an_empty_house_too(site: Site, axe: Callable[[Page], list[str]]) -> None:
    found: dict[str, list[str]] = {}
    for path in PATHS:
        with site.page(path) as page:
            expect(page.locator("h1")).to_be_visible()
            expect(page.locator(".skeleton")).to_have_count(0)
            if findings := axe(page):
                found[path] = findings
    assert found == {}
