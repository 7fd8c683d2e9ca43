"""`make interop`: servers and workers of this tree, and clients that others wrote against them.

The clients are installed into build/interop, apart from what Onward itself needs. ONLY="mcp celery"
leaves the others out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.processes import HTTP, Process, Server, free_port, serving
from tests.servers import RedisServer
from tests.support import poll_until

HERE = Path(__file__).parent
ROOT = HERE.parent
PLACE = ROOT / "build" / "interop"
OPENAI = ("langchain-openai", "litellm", "openai", "openai-agents", "pydantic-ai-slim[openai]")
FLOWER = ("flower", "-e", f"{ROOT}[celery,server]")  # it looks at our workers by our settings
# Node itself too: the conformance suite needs a newer one than the page does.
NODE = (
    "@modelcontextprotocol/conformance@0.1.16",
    "@modelcontextprotocol/inspector@2.12.0",
    "@modelcontextprotocol/sdk@1.32.2",
    "node@22",
)


def packages(name: str, *wanted: str) -> Path:
    """The Python of an environment that has them."""
    place = PLACE / name
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *wanted], check=True)
    return python


def node() -> Path:
    place = PLACE / "node"
    place.mkdir(parents=True, exist_ok=True)
    quiet = ("--silent", "--no-fund", "--no-audit")
    subprocess.run(["npm", "install", *quiet, "--prefix", place, *NODE], check=True)
    return place


@contextmanager
def working(folder: Path, server: Server) -> Iterator[None]:
    command = (sys.executable, "-m", "onward.cli", "worker", f"{HERE}/worker.py:worker")
    worker = Process(*command, "--server", server.url, log=folder / "worker.log")
    try:
        poll_until(lambda: HTTP.get(f"{server.url}/v1/models").json()["data"])
        yield
    finally:
        worker.kill()


def run(script: str, python: Path | str, *arguments: str | Path, **env: str) -> None:
    command = [python, HERE / script, *arguments]
    subprocess.run(command, env={**os.environ, **env}, check=True, timeout=600)


def openai(folder: Path) -> None:
    python = packages("openai", *OPENAI)
    with serving(folder) as server, working(folder, server):
        # It would load prices from somewhere.
        run("openai_clients.py", python, server.url, LITELLM_LOCAL_MODEL_COST_MAP="True")


def mcp(folder: Path) -> None:
    place = node()
    with serving(folder) as server, working(folder, server):
        run("mcp_clients.py", sys.executable, server.url, place)


def celery(folder: Path) -> None:
    python = packages("celery", *FLOWER)
    port = free_port()
    redis = RedisServer("valkey", "--save", "", "--port", str(port), "--bind", "127.0.0.1")
    broker = f"redis://127.0.0.1:{port}/1"
    env = {
        "ONWARD_LEDGER": f"redis://127.0.0.1:{port}/0",
        "ONWARD_REDIS_VOLATILE": "yes",
        "CELERY_BROKER_URL": broker,
        "CELERY_RESULT_BACKEND": broker,
        "XDG_STATE_HOME": str(folder),
    }
    command = (sys.executable, "-m", "celery", "-A", "onward.workers.celery", "worker")
    worker = Process(*command, "-B", "-c", "2", "-E", env=env, log=folder / "celery.log")
    try:
        run("celery_clients.py", python, str(free_port()), **env)
    finally:
        worker.stop()
        redis.close()


PARTS: Mapping[str, Callable[[Path], None]] = {"openai": openai, "mcp": mcp, "celery": celery}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parts = parser.parse_args().parts or [*PARTS]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    failed = []
    for name in parts:
        with tempfile.TemporaryDirectory() as folder:
            try:
                PARTS[name](Path(folder))
            except subprocess.SubprocessError as error:
                failed.append(name)
                print(f"FAILED  {name}: {error}")
                for log in sorted(Path(folder).glob("*.log")):
                    print(f"--- {log.name}\n{log.read_text()[-3_000:]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
