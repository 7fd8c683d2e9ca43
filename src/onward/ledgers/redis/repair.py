"""Tasks of a Redis ledger whose row and place disagree: found, and mended (see repair.lua).

Walks everything in small steps and keeps only counts by queue: a ledger of any size can be looked
at. What takes more than one step to know (counts, and who is missing in a list) is known only while
no server writes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, TypeVar

from onward.ledgers.redis.layout import literal

T = TypeVar("T")

_MEND = (files("onward.ledgers.redis") / "repair.lua").read_text()
STEP = 200
ZSETS = ("running", "alarms", "scheduled", "dead", "approvals", "aside")

Fault = tuple[str, str]  # what is wrong, and with which id or key
Progress = Callable[[int], None]  # how many have been looked at


class RowRepair:
    def __init__(
        self, client: Any, prefix: str, *, mends: bool, quiet: bool, progress: Progress
    ) -> None:
        """`quiet`: no server is there. Only then may it mend."""
        if mends and not quiet:
            raise ValueError("servers are running")
        self._client = client
        self._prefix = prefix
        self._mends = mends
        self._quiet = quiet
        self._progress = progress
        self._looked = 0

    def faults(self) -> Iterator[Fault]:
        for ids in parts(scan(self._client, f"{self._prefix}onward:task:")):
            yield from self._look("unlisted", *ids)
        for zset in ZSETS:
            members = self._client.zscan_iter(f"{self._prefix}onward:{zset}", count=STEP)
            for ids in parts(member for member, _ in members):
                yield from self._look("strangers", zset, *ids)
        counts, expected = Counter[str](), Counter[str]()
        for ids in self._tasks():
            found, answer = self._run("tasks", *ids)
            yield from found
            for into, more in zip((counts, expected), json.loads(answer), strict=True):
                into.update(dict(more))
        yield from self._lists(expected)
        if self._quiet:
            yield from self._counts(counts)

    def _lists(self, expected: Counter[str]) -> Iterator[Fault]:
        short: dict[str, bool] = {}
        for name in {*scan(self._client, f"{self._prefix}onward:queue:"), *expected}:
            there = yield from self._list(name)
            if self._quiet and there > expected[name]:
                there = yield from self._list(name, twice="yes")
            if self._quiet and there < expected[name]:
                yield "queued, and not in its list", f"{expected[name] - there} of {name}"
                short[name] = True
        if short and self._mends:
            self._fill(short)

    def _fill(self, short: Mapping[str, bool]) -> None:
        """These lists anew. Who is killed meanwhile finds them short again."""
        for ids in self._tasks():
            self._run("sort", json.dumps(short), *ids)
        for name in short:
            first = "yes"
            while self._run("refill", name, STEP, first)[1]:
                first = "no"

    def _list(self, name: str, twice: str = "no") -> Generator[Fault, None, int]:
        """Returns how many of those that stand there belong there."""
        at = belong = 0
        while at < self._client.llen(f"{self._prefix}onward:queue:{name}"):
            found, kept = self._run("list", name, at, STEP, twice)
            yield from found
            belong += kept
            at += kept if self._mends else STEP
        return belong

    def _counts(self, counts: Counter[str]) -> Iterator[Fault]:
        key = f"{self._prefix}onward:counts"
        kept = {name: int(many) for name, many in self._client.hgetall(key).items()}
        for name in sorted({*kept, *counts}):
            if kept.get(name, 0) != counts[name]:
                yield f"counted {counts[name]}, kept {kept.get(name, 0)}", name
                if self._mends and counts[name]:
                    self._client.hset(key, name, counts[name])
                elif self._mends:
                    self._client.hdel(key, name)

    def _tasks(self) -> Iterator[Sequence[str]]:
        for found in by_birth(self._client, self._prefix):
            yield [id for id, _ in found]
            self._looked += len(found)
            self._progress(self._looked)

    def _look(self, what: str, *arguments: Any) -> Iterator[Fault]:
        yield from self._run(what, *arguments)[0]

    def _run(self, what: str, *arguments: Any) -> tuple[Sequence[Fault], Any]:
        mends = "yes" if self._mends else "no"
        flat, *more = self._client.eval(_MEND, 1, self._prefix, what, mends, *arguments)
        return list(zip(flat[::2], flat[1::2], strict=True)), more[0] if more else None


def by_birth(client: Any, prefix: str) -> Iterator[Sequence[tuple[str, float]]]:
    """All tasks that are in the index, oldest first, each with its place at birth."""
    after = "-inf"
    while found := client.zrangebyscore(
        f"{prefix}onward:index", after, "+inf", start=0, num=STEP, withscores=True
    ):
        yield found
        after = f"({found[-1][1]:.0f}"


def scan(client: Any, start: str) -> Iterator[str]:
    """How the keys that begin so go on. It may meet a key twice."""
    for key in client.scan_iter(match=f"{literal(start)}*", count=1_000):
        yield key.removeprefix(start)


def parts(items: Iterator[T]) -> Iterator[Sequence[T]]:
    part: list[T] = []
    for item in items:
        part.append(item)
        if len(part) == STEP:
            yield part
            part = []
    if part:
        yield part
