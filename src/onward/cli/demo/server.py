"""A server for as long as the demo lives: it ends when its parent does, killed or not.

`python -m onward.cli.demo.server PORT LEDGER`; its standard input is the lifeline.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from onward.server import run
from onward.settings import Settings


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # nothing is ever sent: it returns when the other end is gone
    os.kill(os.getpid(), signal.SIGTERM)


def main(port: str, ledger: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run(Settings(host="127.0.0.1", port=int(port), ledger=ledger), builtin_worker=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
