"""Log-in, who one is, and the pages of an administrator, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Site
from tests.processes import HTTP

pytestmark = [pytest.mark.slow, pytest.mark.contract("N-8")]


def make(site: Site, name: str, *scopes: str, by: str = "") -> str:
    """The token of a new key; the first one must be an administrator's and closes the server."""
    answer = HTTP.post(
        f"{site.url}/api/v2/keys",
        json={"name": name, "scopes": list(scopes)},
        headers={"authorization": f"Bearer {by}"} if by else {},
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def get(site: Site, path: str, token: str) -> Any:
    return HTTP.get(f"{site.url}{path}", headers={"authorization": f"Bearer {token}"}).json()


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Key", exact=True).fill(token)
    with page.expect_response("**/api/v2/login"):  # a page left before has no cookie yet
        page.get_by_role("button", name="Log in").click()


@pytest.fixture(autouse=True)
def _refusals_are_wanted(site: Site) -> Any:
    yield
    site.complaints[:] = [one for one in site.complaints if not re.search("40[13]", one)]


@pytest.mark.contract("K-3")
def test_a_closed_server_asks_for_a_key_and_leads_back(site: Site) -> None:
    id = site.submit("nobody-does-this")
    admin = make(site, "root", "admin")
    with site.page(f"/tasks/{id}?x=1") as page:
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        log_in(page, "onward_wrong_wrong")
        expect(page.get_by_role("alert")).to_be_visible()
        log_in(page, admin)
        expect(page).to_have_url(re.compile(f"/ui/tasks/{id}"))
        expect(page.locator("h1 .badge")).to_contain_text("queued")
        expect(page.locator(".who")).to_contain_text("root")
        expect(page.locator(".live")).to_contain_text("Live")
        page.locator(".who").click()
        expect(page.locator(".card", has_text="Your key")).to_contain_text("admin")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()


@pytest.mark.contract("K-9")
def test_a_revoked_key_is_led_to_the_log_in(site: Site) -> None:
    admin = make(site, "root", "admin")
    token = make(site, "guest", "read", by=admin)
    with site.page("/tasks") as page:
        log_in(page, token)
        expect(page.get_by_role("heading", name="Tasks")).to_be_visible()
        id = token.split("_")[1]
        HTTP.delete(
            f"{site.url}/api/v2/keys/{id}", headers={"authorization": f"Bearer {admin}"}
        ).raise_for_status()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        expect(page).to_have_url(re.compile(r"next=%2Ftasks"))


@pytest.mark.contract("K-4")
def test_what_a_key_may_not_do_is_disabled_with_the_reason(site: Site) -> None:
    id = site.submit("nobody-does-this")
    admin = make(site, "root", "admin")
    token = make(site, "guest", "read", by=admin)
    with site.page(f"/tasks/{id}") as page:
        log_in(page, token)
        cancel = page.get_by_role("button", name="Cancel")
        expect(cancel).to_be_disabled()
        reason = "Your key guest does not have the scope operate"
        expect(cancel).to_have_attribute("title", reason)
        expect(page.get_by_role("link", name="Keys")).to_have_count(0)
        page.goto(f"{site.url}/ui/keys")
        expect(page.get_by_role("alert")).to_contain_text("this needs the scope admin")


@pytest.mark.contract("K-1", "K-8")
def test_keys_are_made_and_revoked_on_their_page(site: Site) -> None:
    with site.page("/keys") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        expect(page.get_by_text("No key exists yet")).to_be_visible()
        page.get_by_role("button", name="New key").click()
        page.get_by_label("Name").fill("root")
        page.get_by_role("button", name="Create key").click()
        page.get_by_role("button", name="Copy key").click()
        expect(page.locator(".toast")).to_contain_text("Copied")
        admin = page.evaluate("navigator.clipboard.readText()")
        assert get(site, "/api/v2/me", admin)["key"]["name"] == "root"
        page.get_by_role("button", name="Done").click()
        expect(page.get_by_text("Copy it now")).to_have_count(0)
        row = page.get_by_role("row").filter(has_text="root")
        expect(row).to_contain_text("yours")  # not locked out by the key that it made
        page.get_by_role("button", name="New key").click()
        page.get_by_label("Name").fill("gpu box")
        page.get_by_label("read everything").uncheck()
        page.get_by_label("Worker of these").fill("report, gpu")
        page.get_by_label("Expires").select_option("in 30 days")
        page.get_by_role("button", name="Create key").click()
        page.get_by_role("button", name="Done").click()
        row = page.get_by_role("row").filter(has_text="gpu box")
        expect(row).to_contain_text("work:report, work:gpu")
        row.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke key").click()
        expect(row).to_contain_text("revoked")
        # The last administrator is not locked out, and the form says so.
        page.get_by_role("row").filter(has_text="root").get_by_role("button", name="Revoke").click()
        dialog = page.get_by_role("dialog", name="Revoke root?")
        dialog.get_by_role("button", name="Revoke key").click()
        expect(dialog.get_by_role("alert")).to_be_visible()
        dialog.get_by_role("button", name="Keep").click()
        site.complaints[:] = [one for one in site.complaints if "409" not in one]
        page.get_by_role("link", name="Audit log").click()
        table = page.get_by_role("region", name="Audit log")
        expect(table).to_contain_text("key.revoke")
        page.get_by_label("Action").select_option("login")
        expect(table).not_to_contain_text("key.revoke")
        expect(table).to_contain_text("root")


def test_axe_finds_nothing_on_the_pages_of_keys(
    site: Site, axe: Callable[[Page], list[str]]
) -> None:
    admin = make(site, "root", "admin")
    found: dict[str, list[str]] = {}
    with site.page("/keys") as page:
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        found["login"] = axe(page)
        log_in(page, admin)
        for path in ("/keys", "/audit", "/settings"):
            page.goto(f"{site.url}/ui{path}")
            expect(page.locator("h1")).to_be_visible()
            expect(page.locator(".skeleton")).to_have_count(0)
            found[path] = axe(page)
        page.goto(f"{site.url}/ui/keys")
        page.get_by_role("button", name="New key").click()
        expect(page.get_by_label("Name")).to_be_visible()
        found["new key"] = axe(page)
    assert {name: one for name, one in found.items() if one} == {}
