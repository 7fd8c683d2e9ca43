"""Takes the pictures of the README anew: `make screenshots`. Needs Chromium, and nothing else here.

`onward demo` fills a server of its own; after a while its page is photographed, light and dark.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SIZE = {"width": 1280, "height": 860}
LARGEST = 200_000  # bytes: a README should not be slow
FILLED_S = 150  # until the charts have something to tell: an outage, and its end


def main() -> None:
    found = os.environ.get("ONWARD_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        sys.exit("no Chromium here (apt-get install chromium, or set ONWARD_CHROMIUM)")
    port = _free_port()
    demo = subprocess.Popen([sys.executable, "-m", "onward.cli", "demo", "--port", str(port)])
    try:
        print(f"pictures in {FILLED_S} s …")
        time.sleep(FILLED_S)
        if demo.poll() is not None:
            sys.exit("the demo has ended; see above")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
            for name, scheme in (("overview", "light"), ("overview-dark", "dark")):
                _take(browser, f"http://127.0.0.1:{port}/ui/", FOLDER / f"{name}.png", scheme)
            browser.close()
    finally:
        demo.terminate()
        demo.wait(60)


def _take(browser: Browser, url: str, file: Path, scheme: str) -> None:
    context = browser.new_context(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("figure.chart path.line", state="attached")
    page.wait_for_timeout(1_500)  # the first change after the snapshot
    page.screenshot(path=file)
    context.close()
    size = file.stat().st_size
    print(f"{file.name}: {size // 1000} kB")
    if size > LARGEST:
        sys.exit(f"{file.name} is larger than {LARGEST // 1000} kB")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
