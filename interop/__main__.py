"""`make interop`: a server and a worker of this tree, and clients that others wrote against them.

The clients are installed into build/interop, apart from what Onward itself needs. `--with PYTHON`
takes an environment that has them already.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.processes import HTTP, Process, serving
from tests.support import poll_until

HERE = Path(__file__).parent
PLACE = HERE.parent / "build" / "interop"
CLIENTS = ("langchain-openai", "litellm", "openai", "pydantic-ai-slim[openai]")


def installed() -> Path:
    python = PLACE / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PLACE)], check=True)
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *CLIENTS], check=True)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with", dest="python", type=Path)
    python = parser.parse_args().python or installed()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        command = (sys.executable, "-m", "onward.cli", "worker", f"{HERE}/worker.py:worker")
        worker = Process(*command, "--server", server.url, log=Path(folder) / "worker.log")
        try:
            poll_until(lambda: HTTP.get(f"{server.url}/v1/models").json()["data"])
            asked = [python, HERE / "clients.py", server.url]
            env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # it would load prices
            return subprocess.run(asked, env=env, check=False, timeout=300).returncode
        finally:
            worker.kill()


if __name__ == "__main__":
    sys.exit(main())
