"""A worker process of the SDK that answers one group and does nothing else."""

from __future__ import annotations

import sys
from typing import Any

from onward import Worker


def main() -> None:
    worker = Worker(sys.argv[1], concurrency=128)

    @worker.group()
    async def answer(payload: Any) -> str:
        return "Because blue light scatters most."

    @worker.service
    async def noop(
        user: int, action: str, image: str, sizes: list[int], notify: bool, n: int
    ) -> int:
        return n

    worker.run()


if __name__ == "__main__":
    main()
