"""A real browser against a real server. Whatever a page complains of fails its test."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.processes import HTTP, Process, Server

WAIT_MS = 60_000
WIDE: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
LOOKS: dict[str, tuple[ViewportSize, Literal["light", "dark"]]] = {
    "wide, light": (WIDE, "light"),
    "wide, dark": (WIDE, "dark"),
    "phone, dark": (PHONE, "dark"),
    "phone, light": (PHONE, "light"),
}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
# The headless shell has no window to draw: it takes half the processor time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Of a module, not of the session: its event loop would be in the way of other modules' tests.
    found = os.environ.get("ONWARD_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(
            "no Chromium here (apt-get install chromium-headless-shell, or set ONWARD_CHROMIUM)"
        )
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield opened
        opened.close()


class Site:
    """A server with a worker beside it, and pages of it."""

    def __init__(self, folder: Path, browser: Browser) -> None:
        self._folder = folder
        self._browser = browser
        self.server = Server(folder, up=True, ONWARD_DRAIN_MS=500)
        self._worker: Process | None = None
        self.complaints: list[str] = []
        self.server.wait_ready()
        self.url = self.server.url

    def start_worker(self) -> None:
        self._worker = Process(
            *(sys.executable, "-m", "onward.cli", "worker", "tests.browser.services:worker"),
            env={"ONWARD_URL": self.url},
            log=self._folder / "worker.log",
        )

    def restart(self, **settings: str) -> None:
        port = self.server.port
        self.server = Server(self._folder, up=True, port=port, ONWARD_DRAIN_MS=500, **settings)
        self.server.wait_ready()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self.server.kill()

    def post(self, path: str, body: Any) -> Any:
        answer = HTTP.post(f"{self.url}{path}", json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def get(self, path: str) -> Any:
        return HTTP.get(f"{self.url}{path}").json()

    def submit(self, type_: str, payload: Any = None, **more: Any) -> str:
        id: str = self.post("/api/v2/tasks", {"type": type_, "payload": payload, **more})["id"]
        return id

    @contextmanager
    def page(
        self, path: str = "/", *, size: ViewportSize = WIDE, dark: bool = False
    ) -> Iterator[Page]:
        context = self._browser.new_context(
            viewport=size, color_scheme="dark" if dark else "light", reduced_motion="reduce"
        )
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("console", self._console)
        page.goto(f"{self.url}/ui{path}")
        try:
            yield page
        finally:
            context.close()

    def _console(self, message: ConsoleMessage) -> None:
        # A server that is away is not the page's fault, nor is what Chrome tries where `fill`
        # replaces marked text in the flow editor: a style that keeps its colour, which is refused.
        # Everything else in red is.
        editing = message.page is not None and "/ui/flows" in message.page.url
        if editing and message.text.startswith("Applying inline style violates"):
            return
        if message.type == "error" and "net::ERR_" not in message.text:
            self.complaints.append(message.text)


def code(editor: Locator) -> str:
    """What is written in a code editor."""
    return "\n".join(editor.locator(".cm-line").all_text_contents())


@pytest.fixture
def site(tmp_path: Path, browser: Browser) -> Iterator[Site]:
    opened = Site(tmp_path, browser)
    try:
        yield opened
    finally:
        opened.close()
    assert opened.complaints == []


@pytest.fixture
def axe() -> Callable[[Page], list[str]]:
    """What axe finds on a page, in every size and colour, each with the elements it is about."""
    found = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
    if not found.exists():
        pytest.skip("axe is not installed (cd web && npm ci)")
    source = found.read_text()

    def look(page: Page) -> list[str]:
        page.evaluate(source)  # not as a script element: the policy would refuse it
        found = []
        for name, (size, colours) in LOOKS.items():
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=colours, reduced_motion="reduce")
            report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            found += [
                f"{name}: {one['id']}: {', '.join(node['html'] for node in one['nodes'][:3])}"
                for one in report["violations"]
            ]
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.append(f"{name}: wider than the screen")
        return found

    return look
