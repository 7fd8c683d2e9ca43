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
SEP = "\x1f"
FOREVER = 9e15  # as in ledger.lua
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
        counts, expected, use = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
        for ids in self._tasks():
            found, answer = self._run("tasks", *ids)
            yield from found
            more, lists, occupied = map(dict, json.loads(answer))
            counts.update(more)
            expected.update(lists)
            for name, fields in occupied.items():
                use.update({(name, field): many for field, many in fields.items()})
        yield from self._lists(expected)
        if self._quiet:
            yield from self._hash("counts", {("", name): many for name, many in counts.items()})
            yield from self._hash("occupied:", use)
            yield from RingRepair(self._client, self._prefix, mends=self._mends).faults()

    def _lists(self, expected: Counter[str]) -> Iterator[Fault]:
        """A list, and those of types that were passed over there, have the tasks of one line."""
        lines: dict[str, list[str]] = {name: [] for name in expected}
        for name in set(scan(self._client, f"{self._prefix}onward:queue:")):
            lane, *rest = name.split(SEP)
            line = SEP.join((lane, *filter(None, rest[:1])))
            lines.setdefault(line, []).append(name)
        short: dict[str, bool] = {}
        for line, names in lines.items():
            there = yield from self._line(names)
            if self._quiet and there > expected[line]:
                there = yield from self._line(names, twice="yes")
            if self._quiet and there < expected[line]:
                yield "queued, and not in its list", f"{expected[line] - there} of {line}"
                short[line] = True
        if short and self._mends:
            for line in short:
                for name in lines[line]:
                    self._client.delete(f"{self._prefix}onward:queue:{name}")
            self._fill(short)

    def _fill(self, short: Mapping[str, bool]) -> None:
        """These lists anew. Who is killed meanwhile finds them short again."""
        for ids in self._tasks():
            self._run("sort", json.dumps(short), *ids)
        for line in short:
            while self._run("refill", line, STEP)[1]:
                pass

    def _line(self, names: Sequence[str], twice: str = "no") -> Generator[Fault, None, int]:
        belong = 0
        for name in names:
            belong += yield from self._list(name, twice)
        return belong

    def _list(self, name: str, twice: str = "no") -> Generator[Fault, None, int]:
        """Returns how many of those that stand there belong there."""
        at = belong = 0
        while at < self._client.llen(f"{self._prefix}onward:queue:{name}"):
            found, kept = self._run("list", name, at, STEP, twice)
            yield from found
            belong += kept
            at += kept if self._mends else STEP
        return belong

    def _hash(self, kind: str, counts: Mapping[tuple[str, str], int]) -> Iterator[Fault]:
        """The hashes whose keys begin so, by the rest of the key and the field."""
        start = f"{self._prefix}onward:{kind}"
        kept = {
            (name, field): int(many)
            for name in {"", *scan(self._client, start), *(name for name, _ in counts)}
            for field, many in self._client.hgetall(f"{start}{name}").items()
        }
        for name, field in sorted({*kept, *counts}):
            many = counts.get((name, field), 0)
            if kept.get((name, field), 0) != many:
                where = f"{name}:{field}" if name else field
                yield f"counted {many}, kept {kept.get((name, field), 0)}", where
                if self._mends and many:
                    self._client.hset(f"{start}{name}", field, many)
                elif self._mends:
                    self._client.hdel(f"{start}{name}", field)

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


class RingRepair:
    """Whether each partition that something is queued in has turns, or comes back (ring.lua).

    Known only while no server writes; keeps the names of all partitions that have something queued.
    """

    def __init__(self, client: Any, prefix: str, *, mends: bool) -> None:
        self._client = client
        self._prefix = prefix
        self._mends = mends

    def faults(self) -> Iterator[Fault]:
        lines = self._lines()
        named = {at for at in lines if at[1]}
        turns, outs = self._scores("ring"), self._scores("out")
        for lane, name in sorted(turns.keys() - lines - {(lane, "") for lane, _ in lines}):
            yield self._mend("has turns, and nothing is queued", "ZREM", f"ring:{lane}", name)
        for lane, name in sorted(outs.keys() - named):
            yield self._mend("is out, and nothing is queued", "ZREM", f"out:{lane}", name)
        for lane, name in sorted(named & turns.keys() & outs.keys()):
            yield self._mend("has turns, and is out", "ZREM", f"out:{lane}", name)
        for lane, name in sorted(named - turns.keys() - outs.keys()):
            yield self._mend("queued, and has no turn", "ZADD", f"ring:{lane}", 0, name)
        waits = {at for at in named - turns.keys() if outs.get(at) == FOREVER}
        back = {(lane, name) for name, lane in self._members("back")}
        for lane, name in sorted(waits - back):
            yield self._mend("out, and would not come back", "SADD", f"back:{name}", lane)
        for lane, name in sorted(back - waits):
            yield self._mend("is not out", "SREM", f"back:{name}", lane)
        yield from self._lanes({lane for lane, _ in lines if SEP in lane}, named)

    def _lanes(self, typed: set[str], named: set[tuple[str, str]]) -> Iterator[Fault]:
        passed = {(lane, type_) for lane, _, type_ in (name.partition(SEP) for name in typed)}
        found = self._members("passed")
        for lane, type_ in sorted(passed - found):
            yield self._mend("was passed over, and is not noted", "SADD", f"passed:{lane}", type_)
        for lane, type_ in sorted(found - passed):
            yield self._mend("was not passed over", "SREM", f"passed:{lane}", type_)
        needed = {lane for lane, _ in named} | typed | {lane for lane, _ in passed}
        rings = set(self._client.hkeys(f"{self._prefix}onward:rings"))
        for lane in sorted(needed - rings):
            yield self._mend("has a ring, and is not noted", "HSET", "rings", lane, "")
        for lane in sorted(rings - needed):
            yield self._mend("has no ring", "HDEL", "rings", lane)

    def _mend(self, wrong: str, command: str, key: str, *values: Any) -> Fault:
        if self._mends:
            self._client.execute_command(command, f"{self._prefix}onward:{key}", *values)
        return wrong, " ".join((*(str(value) for value in values if value not in (0, "")), key))

    def _lines(self) -> set[tuple[str, str]]:
        found: set[tuple[str, str]] = set()
        for name in scan(self._client, f"{self._prefix}onward:queue:"):
            lane, *rest = name.split(SEP)
            partition, type_ = (*rest, "", "")[:2]
            found.add((f"{lane}{SEP}{type_}" if type_ else lane, partition))
        return found

    def _scores(self, kind: str) -> dict[tuple[str, str], float]:
        start = f"{self._prefix}onward:{kind}:"
        return {
            (lane, member): score
            for lane in scan(self._client, start)
            for member, score in self._client.zscan_iter(f"{start}{lane}", count=STEP)
        }

    def _members(self, kind: str) -> set[tuple[str, str]]:
        start = f"{self._prefix}onward:{kind}:"
        return {
            (name, member)
            for name in scan(self._client, start)
            for member in self._client.smembers(f"{start}{name}")
        }


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
