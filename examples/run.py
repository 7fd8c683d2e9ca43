"""Starts an example with everything it needs: python examples/run.py fastapi

That is `onward up`, unless a server answers already, and each line of the example's Procfile.
Ctrl-C ends all of them; so does the end of any.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from onward import OnwardError, SyncClient

HERE = Path(__file__).resolve().parent


def start(name: str, command: str, folder: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"exec {command}"],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a Ctrl-C is for this program, which passes it on
    )

    def tell() -> None:
        for line in process.stdout or ():
            print(f"{name:8} | {line.rstrip()}", flush=True)

    threading.Thread(target=tell, daemon=True).start()
    return process


def answers(client: SyncClient) -> bool:
    try:
        client.health()
    except OnwardError:
        return False
    return True


def run(folder: Path, running: list[subprocess.Popen[str]]) -> int:
    # The programs of this environment, also if it is not activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {"PORT": "8000", "PYTHONUNBUFFERED": "1", **os.environ, "PATH": path}
    with SyncClient() as client:
        if not answers(client):
            running.append(start("onward", "onward up", Path.cwd(), env))
        while not answers(client):
            time.sleep(0.1)
        for line in (folder / "Procfile").read_text().splitlines():
            name, _, command = line.partition(": ")
            before = len(client.workers())
            running.append(start(name, command, folder, env))
            # The next line may start a flow, which asks what the services take.
            while command.startswith("onward worker") and running[-1].poll() is None:
                if len(client.workers()) > before:
                    break
                time.sleep(0.1)
    while all(process.poll() is None for process in running):
        time.sleep(0.1)
    return max(process.returncode or 0 for process in running)


def main() -> int:
    known = sorted(path.parent.name for path in HERE.glob("*/Procfile"))
    if len(sys.argv) != 2 or sys.argv[1] not in known:
        print(f"python {sys.argv[0]} {'|'.join(known)}")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    running: list[subprocess.Popen[str]] = []
    try:
        return run(HERE / sys.argv[1], running)
    except KeyboardInterrupt:
        return 0
    finally:
        for again in (signal.SIGINT, signal.SIGTERM):  # all of them are being ended already
            signal.signal(again, signal.SIG_IGN)
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
