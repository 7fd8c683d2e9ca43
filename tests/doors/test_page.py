"""The page's files: what is served under /ui, how it may be kept, what it may not do."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from onward.doors.page import files as page
from tests.running_app import App

STATIC = Path(page.__file__).parent / "static"
FIRST_SCREEN = 200_000


@pytest.mark.contract("N-8")
async def test_every_address_under_ui_is_the_page(app: App) -> None:
    home = await app.get("/")
    assert (home.status_code, home.headers["location"]) == (307, "/ui")
    for path in ("/ui", "/ui/", "/ui/tasks", "/ui/tasks/01-x?q=1"):
        answer = await app.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")
        assert "<title>Onward</title>" in answer.text


async def test_the_page_may_load_nothing_but_its_own_files(app: App) -> None:
    policy = (await app.get("/ui")).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    html = (await app.get("/ui")).text
    assert re.search(r"<script(?![^>]*\ssrc=)", html) is None
    assert "<style" not in html
    assert all(url.startswith("/ui/") for url in re.findall(r'(?:src|href)="([^"]+)"', html))


async def test_files_with_a_digest_are_kept_and_the_rest_is_asked_for(app: App) -> None:
    html = (await app.get("/ui")).text
    script = re.search(r'src="(/ui/assets/[^"]+\.js)"', html)
    assert script is not None
    kept = await app.get(script[1])
    assert "immutable" in kept.headers["cache-control"]
    assert kept.headers["content-type"].startswith("text/javascript")
    index = await app.get("/ui")
    assert index.headers["cache-control"] == "no-cache"
    again = await app.get("/ui", headers={"if-none-match": index.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    gone = await app.get("/ui/assets/index-of-yesterday.js")
    assert gone.status_code == 404


async def test_a_cache_or_proxy_on_the_way_may_name_the_file_in_its_own_way(app: App) -> None:
    """Compressed and plain are not the same bytes: the tag is weak. Caches ask for several."""
    tag = (await app.get("/ui")).headers["etag"]
    assert tag.startswith('W/"')
    strong = tag.removeprefix("W/")
    for asked in (tag, strong, f'"older", {tag}', f'W/"older",{strong}', "*"):
        again = await app.get("/ui", headers={"if-none-match": asked})
        assert (again.status_code, again.headers["etag"]) == (304, tag), asked
    for other in ('W/"older"', strong.strip('"'), ""):
        assert (await app.get("/ui", headers={"if-none-match": other})).status_code == 200, other


async def test_files_are_squeezed_for_those_who_can_read_it(app: App) -> None:
    plain = await app.get("/ui", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    squeezed = await app.get("/ui", headers={"accept-encoding": "gzip"})
    assert squeezed.headers["content-encoding"] == "gzip"
    assert squeezed.text == plain.text


def test_the_first_screen_is_small() -> None:
    html = (STATIC / "index.html").read_text()
    first = {STATIC / url for url in re.findall(r'"/ui/([^"]+)"', html)}
    overview = next(STATIC.glob("assets/Overview-*.js"))
    wanted = [overview]
    while wanted:
        file = wanted.pop()
        first.add(file)
        near = re.findall(r'from\s*"\./([^"]+)"', file.read_text())
        wanted += [path for name in near if (path := file.parent / name) not in first]
    sizes = {file.name: len(gzip.compress(file.read_bytes())) for file in first}
    assert sum(sizes.values()) < FIRST_SCREEN, sizes


async def test_the_font_comes_with_the_page_and_its_licence(app: App) -> None:
    html = (await app.get("/ui")).text
    style = re.search(r'href="(/ui/assets/[^"]+\.css)"', html)
    assert style is not None
    font = re.search(r"url\((/ui/assets/[^)]+\.woff2)\)", (await app.get(style[1])).text)
    assert font is not None
    assert (await app.get(font[1])).headers["content-type"] == "font/woff2"
    assert "SIL Open Font License" in (await app.get("/ui/inter-license.txt")).text
