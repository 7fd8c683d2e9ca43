"""`onward worker --processes N` and `--reload`: a child is a whole worker with a name of its own.

With `--reload` all are started anew when a Python file below this folder changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from onward.cli.processes import Processes, tell

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


class WorkerProcesses(Processes):
    def __init__(self, count: int, *, reload: bool) -> None:
        super().__init__(count)
        self._reload = reload
        self._files = _files() if reload else {}

    def _look(self) -> None:
        if self._reload and (now := _files()) != self._files:
            self._files = now
            self._restart()
        else:
            super()._look()

    def _ended(self, number: int, code: int) -> None:
        if self._reload and code:
            tell(f"process {number} ended with {code}; it is started anew after a change")
            self._again_at[number] = float("inf")
        elif code in (0, 2, 4):  # drained by the server, cannot be loaded, or not let in
            self._codes.add(code)
        else:
            super()._ended(number, code)

    def _restart(self) -> None:
        tell("files have changed; starting anew")
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            child.wait()
        self._begin()


def _files() -> Mapping[str, float]:
    return {str(path): path.stat().st_mtime for path in _python_files(Path.cwd())}


def _python_files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each not in SKIPPED and not each.startswith(".")]
        for name in names:
            if name.endswith(".py") and (path := Path(root, name)).exists():
                yield path
