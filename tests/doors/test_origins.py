"""Names and pages of other sites, against a real server: none of them changes or reads anything."""

from __future__ import annotations

from typing import Any

import pytest

from onward.settings import Settings
from tests.doors.guarded_server import Answer, GuardedServer, request

pytestmark = [pytest.mark.contract("S0-9"), pytest.mark.slow]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:9", "localhost", "LOCALHOST:80", "a.localhost", "[::1]", "[::1]:8070",
     "10.1.2.3", "onward.example", "onward.example:99"],
)  # fmt: skip
def test_a_host_that_can_only_be_us_passes(guarded: GuardedServer, host: str) -> None:
    assert guarded.ask(request(host=host)).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8070", "localhost.evil.example", "127.0.0.1.evil.example",
     "notlocalhost", "127.1.evil", "[::1", "a.onward.example", ""],
)  # fmt: skip
def test_a_name_re_pointed_at_loopback_is_refused(guarded: GuardedServer, host: str) -> None:
    for _ in range(2):
        assert guarded.ask(request(host=host)).status == 421


def test_no_host_at_all_is_refused(guarded: GuardedServer) -> None:
    assert guarded.ask(b"GET / HTTP/1.1\r\n\r\n").status == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1.evil.example",
     "https://page.example.evil.example"],
)  # fmt: skip
def test_another_page_may_change_nothing(guarded: GuardedServer, method: str, origin: str) -> None:
    answer = guarded.ask(request(method, "/api/v1/tasks/", host="127.0.0.1:7", origin=origin))
    assert answer.status == 403
    assert answer.json["detail"].startswith("This page may not do that here; ")
    assert "ONWARD_ALLOWED_ORIGINS" in answer.json["detail"]


END = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
# What Chromium sends: of a page on another site, and of one on another port of this machine.
IMAGE: dict[str, Any] = {"sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}
FETCH: dict[str, Any] = {
    "sec_fetch_mode": "cors",
    "sec_fetch_dest": "empty",
    "origin": "http://evil.example",
}
FRAME: dict[str, Any] = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}
LINK: dict[str, Any] = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("how", [IMAGE, FETCH, FRAME])
def test_another_sites_page_may_not_even_read(
    guarded: GuardedServer, method: str, how: dict[str, Any]
) -> None:
    answer = guarded.ask(request(method, sec_fetch_site="cross-site", **how) + END)
    assert answer.status == 403


def test_a_link_from_another_site_is_followed(guarded: GuardedServer) -> None:
    assert guarded.ask(request("GET", sec_fetch_site="cross-site", **LINK)).status == 200
    assert guarded.ask(request("POST", sec_fetch_site="cross-site", **LINK)).status == 403


@pytest.mark.parametrize("site", ["same-origin", "none", "same-site"])
def test_pages_of_our_own_site_may_read(guarded: GuardedServer, site: str) -> None:
    assert guarded.ask(request("GET", sec_fetch_site=site, **IMAGE)).status == 200


def test_our_own_page_may_also_behind_a_proxy_that_drops_the_port(guarded: GuardedServer) -> None:
    page: dict[str, Any] = {"host": "onward.example", "origin": "https://onward.example:8443"}
    assert guarded.ask(request(**page)).status == 403
    assert guarded.ask(request(**page, sec_fetch_site="same-site")).status == 403
    assert guarded.ask(request(**page, sec_fetch_site="same-origin")).status == 200


def test_a_page_that_is_named_may_also_from_another_site(guarded: GuardedServer) -> None:
    page: dict[str, Any] = {"origin": "https://page.example", "sec_fetch_site": "cross-site"}
    assert guarded.ask(request("POST", **page)).status == 200
    assert guarded.ask(request("GET", **page)).status == 200


def test_no_other_sites_page_embeds_an_answer(guarded: GuardedServer) -> None:
    assert guarded.ask(request()).headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("target", "status"),
    [("http://evil.example/x", 421), ("http://evil.example:8070/x", 421),
     ("http://127.0.0.1.evil.example/x", 421), ("http://user@evil.example/x", 421),
     ("http://127.0.0.1:8070/x", 200), ("http://[::1]:8070/x", 200),
     ("http://onward.example/x", 200)],
)  # fmt: skip
def test_the_host_of_an_absolute_target_counts(
    guarded: GuardedServer, target: str, status: int
) -> None:
    assert guarded.ask(request("GET", target)).status == status


def test_the_host_of_an_absolute_target_is_the_pages_own(guarded: GuardedServer) -> None:
    forged = request("POST", "http://127.0.0.1:7/x", host="127.0.0.1", origin="http://127.0.0.1")
    assert guarded.ask(forged).status == 403


@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:7", "https://127.0.0.1:7", "https://page.example"]
)
def test_our_own_page_may(guarded: GuardedServer, origin: str) -> None:
    assert guarded.ask(request(host="127.0.0.1:7", origin=origin)).status == 200


def test_another_page_may_read_what_the_browser_lets_it(guarded: GuardedServer) -> None:
    assert guarded.ask(request("GET", origin="http://evil.example")).status == 200


def _handshake(*, host: str = "127.0.0.1", origin: str = "") -> bytes:
    lines = [
        "GET /ws/worker HTTP/1.1",
        f"host: {host}",
        "connection: Upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        *([f"origin: {origin}"] if origin else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_worker_without_an_origin_may_connect(guarded: GuardedServer) -> None:
    with guarded.connect(_handshake()) as caller:
        answer = Answer(caller.recv(65536))
        assert answer.status == 101
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"origin": "http://evil.example"}, 403), ({"host": "evil.example"}, 421)],
)
def test_another_page_gets_no_socket(
    guarded: GuardedServer, headers: dict[str, str], status: int
) -> None:
    assert guarded.ask(_handshake(**headers)).status == status


@pytest.mark.parametrize("origin", ["onward.example", "ftp://x", "https://", "https://x/path"])
def test_an_allowed_origin_that_is_none_is_named_at_the_start(origin: str) -> None:
    Settings(allowed_origins=("https://page.example:8443/",))
    with pytest.raises(ValueError, match="is no origin like"):
        Settings(allowed_origins=(origin,))
