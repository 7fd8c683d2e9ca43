"""Which URLs a worker may be at: nobody uses the server to knock where it should not (S4-4)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from onward.core.errors import Invalid
from onward.settings import Settings
from onward.workers.http.address import Hosts
from tests.push.conftest import Hire, register, run
from tests.running_app import App

DEFAULT = Settings.model_fields["worker_hosts"].default

NAMES = {
    "localhost": ["::1", "127.0.0.1"],
    "loopback.example": ["127.0.0.1"],
    "inside.example": ["10.1.2.3"],
    "both.example": ["127.0.0.1", "10.1.2.3"],
    "metadata.example": ["169.254.169.254"],
    "mapped.example": ["::ffff:10.1.2.3"],
    "nat64.example": ["64:ff9b::7f00:1"],
    "scoped.example": ["fe80::1%eth0"],
    "cloud4.example": ["100.100.100.200"],
    "cloud6.example": ["fd00:ec2::254"],
}


async def resolve(host: str) -> Sequence[str]:
    if host not in NAMES:
        raise OSError("unknown")
    return NAMES[host]


def hosts(*allowed: str) -> Hosts:
    return Hosts(allowed or DEFAULT, resolve=resolve)


@pytest.mark.contract("S4-4")
@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("http://127.0.0.1:8080", ["127.0.0.1"]),
        ("http://127.8.9.1:8080/base/", ["127.8.9.1"]),
        ("http://[::1]:8080", ["::1"]),
        ("HTTP://LOCALHOST:8080", ["127.0.0.1", "::1"]),
        ("http://localhost.:8080", ["127.0.0.1", "::1"]),
        ("https://localhost", ["127.0.0.1", "::1"]),
        ("http://[::ffff:127.0.0.1]:8080", ["127.0.0.1"]),
        ("http://[::ffff:7f00:1]:8080", ["127.0.0.1"]),
        ("http://loopback.example:8080", ["127.0.0.1"]),
    ],
)
async def test_loopback_in_any_honest_spelling_is_allowed_and_pinned(
    url: str, addresses: list[str]
) -> None:
    place = await hosts().pin(url)
    assert list(place.addresses) == addresses


REFUSED = [
    # Elsewhere.
    "http://10.1.2.3:8080",
    "http://169.254.169.254/latest/meta-data",
    "http://192.168.0.1",
    "http://8.8.8.8",
    "http://0.0.0.0:8080",
    "http://[::]:8080",
    "http://[::2]:8080",
    "http://[fe80::1]:8080",
    "http://[fd00::1]:8080",
    "http://[::ffff:10.1.2.3]:8080",
    "http://[::ffff:169.254.169.254]",
    "http://inside.example",
    "http://both.example",
    "http://metadata.example",
    "http://mapped.example",
    "http://nowhere.example",
    "http://scoped.example",
    # An address within an address.
    "http://[::127.0.0.1]:8080",
    "http://[64:ff9b::7f00:1]:8080",
    "http://[64:ff9b:1::7f00:1]:8080",
    "http://[2002:7f00:1::]:8080",
    "http://[2001:0:7f00:1::]:8080",
    "http://nat64.example",
    # Spellings that some resolver takes for 127.0.0.1.
    "http://2130706433:8080",
    "http://017700000001",
    "http://0177.0.0.1",
    "http://127.1",
    "http://127.0.1",
    "http://0x7f.0.0.1",
    "http://0x7f000001",
    "http://127.0.0.0x1",
    "http://127.0.0.01",
    "http://①②⑦.0.0.1",
    "http://127。0。0。1",
    "http://[::1%25lo]:8080",
    # Not a bare http URL.
    "ftp://127.0.0.1",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_PING",
    "javascript:alert(1)",
    "//127.0.0.1:8080",
    "127.0.0.1:8080",
    "http:127.0.0.1",
    "http://",
    "http:///exec",
    "",
    "http://user@127.0.0.1:8080",
    "http://user:secret@127.0.0.1:8080",
    "http://127.0.0.1:8080@10.1.2.3",
    "http://10.1.2.3#@127.0.0.1",
    "http://127.0.0.1:8080#fragment",
    "http://127.0.0.1:8080?x=1",
    "http://127.0.0.1:8080/a?b=",
    "http://127.0.0.1:8080/../admin",
    "http://127.0.0.1:8080/a/./b",
    "http://127.0.0.1:8080/%2e%2e/admin",
    "http://127.0.0.1\\@10.1.2.3",
    "http://127.0.0.1:8080/a b",
    " http://127.0.0.1:8080",
    "http://127.0.0.1:8080\r\nX-Evil: 1",
    "http://127.0.0.1\t:8080",
    "http://127.0.0.1:0",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:http",
    "http://127.0.0.1:80:80",
    "http://[::1]evil:80",
    "http://[::1",
    "http://[127.0.0.1]:80",
    "http://[v1.x]:80",
    "http://-evil.example",
    "http://loopback..example",
    "http://" + "a" * 600,
]


@pytest.mark.contract("S4-4")
@pytest.mark.parametrize("url", REFUSED)
async def test_every_other_url_is_refused(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        await hosts().pin(url)
    assert str(refused.value).startswith("url: ")


@pytest.mark.contract("S4-4")
async def test_the_refusal_at_the_door_says_what_to_do(app: App) -> None:
    body = {"url": "http://10.1.2.3:8080", "services": ["sum"]}
    answer = await app.post("/workers/register", body)
    assert answer.status_code == 400
    assert "ONWARD_WORKER_HOSTS" in answer.json()["error"]
    assert (await app.get("/list")).json() == []


@pytest.mark.parametrize(
    ("allowed", "url", "let_in"),
    [
        ("10.0.0.0/8", "http://10.1.2.3", True),
        ("10.0.0.0/8", "http://inside.example", True),
        ("10.0.0.0/8", "http://mapped.example", True),
        ("10.0.0.0/8", "http://both.example", False),  # one of its addresses is not
        ("10.0.0.0/8", "http://127.0.0.1", False),
        ("10.1.2.3", "http://10.1.2.3", True),
        ("10.1.2.3", "http://10.1.2.4", False),
        ("inside.example", "http://inside.example", True),
        ("Inside.Example", "http://INSIDE.example", True),
        ("inside.example", "http://10.1.2.3", False),  # by its name only
        ("metadata.example", "http://metadata.example", False),  # where no worker can be
        ("cloud4.example", "http://cloud4.example", False),
        ("cloud6.example", "http://cloud6.example", False),
        ("nat64.example", "http://nat64.example", False),
        ("::/0", "http://[64:ff9b::7f00:1]", False),
        ("169.254.169.254", "http://169.254.169.254", True),  # said in so many words
    ],
)
async def test_the_list_takes_names_addresses_and_networks(
    allowed: str, url: str, let_in: bool
) -> None:
    if let_in:
        assert (await hosts(allowed).pin(url)).addresses
    else:
        with pytest.raises(Invalid):
            await hosts(allowed).pin(url)


async def test_a_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pointed elsewhere after it registered, it is still called where it was then."""
    list_ = hosts("inside.example")
    place = await list_.pin("http://inside.example:8080")
    monkeypatch.setitem(NAMES, "inside.example", ["127.0.0.1"])
    assert place.addresses == ("10.1.2.3",)
    assert list_.admit(place.host, place.addresses)


@pytest.mark.contract("S4-4", "S4-5")
async def test_the_pinned_address_is_called_and_the_name_only_said(
    app: App, hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = hire()
    monkeypatch.setattr(app.onward.registry, "_hosts", hosts())
    await register(app, f"http://loopback.example:{worker.port}/base")
    assert (await run(app, 1))["state"] == "succeeded"
    (call,) = worker.calls
    assert call.headers["host"] == f"loopback.example:{worker.port}"
    assert call.path == "/base/exec/echo"


@pytest.mark.contract("R-9")
@pytest.mark.parametrize("entry", ["10.0.0.0/33", "1.2.3", "a b", "http://x", "0x7f.1"])
def test_a_list_that_cannot_be_read_stops_the_start(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONWARD_WORKER_HOSTS", f"localhost,{entry}")
    with pytest.raises(ValidationError, match="ONWARD_WORKER_HOSTS"):
        Settings()
