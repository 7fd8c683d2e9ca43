"""What `onward doctor` finds in the tasks of a Redis ledger: rows and places that disagree."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from time import monotonic
from typing import Any

from onward.cli.checkup import BAD, GOOD, ODD, Finding
from onward.ledgers.redis.layout import LAYOUT, living
from onward.ledgers.redis.repair import RowRepair

EXAMPLES = 3
TELL_EVERY_S = 1.0
UNREADABLE = "its row cannot be read"


def examine_tasks(client: Any, prefix: str, *, repair: bool) -> Iterator[Finding]:
    if client.get(f"{prefix}onward:layout") != LAYOUT:
        return
    if client.exists(f"{prefix}onward:migrating"):
        found = "its tasks are on their way to a new layout"
        yield Finding(ODD, "tasks", found, "start a server: it goes on where it was stopped")
        return
    alive = living(client.hgetall(f"{prefix}onward:doc:server"), int(client.time()[0]))
    if repair and alive:
        servers = "1 server runs" if len(alive) == 1 else f"{len(alive)} servers run"
        found = f"nothing was repaired: {servers} with this ledger"
        yield Finding(ODD, "repair", found, "stop all, wait 10 s, then onward doctor --repair")
        repair = False
    yield from _compare(client, prefix, repair=repair, quiet=not alive)
    yield from _refused(client, prefix, repair=repair)


def _compare(client: Any, prefix: str, *, repair: bool, quiet: bool) -> Iterator[Finding]:
    kinds, examples = Counter[str](), dict[str, list[str]]()
    mending = RowRepair(client, prefix, mends=repair, quiet=quiet, progress=_progress())
    for wrong, where in mending.faults():
        kinds[wrong] += 1
        if kinds[wrong] <= EXAMPLES:
            examples.setdefault(wrong, []).append(where)
    for wrong, many in sorted(kinds.items()):
        found = (
            f"{many:,} × {wrong}: {', '.join(examples[wrong])}{', …' if many > EXAMPLES else ''}"
        )
        if wrong == UNREADABLE:
            todo = f"look at it: redis-cli hgetall {prefix}onward:task:{examples[wrong][0]}"
            yield Finding(BAD, "tasks", found, todo)
        elif repair:
            yield Finding(GOOD, "tasks", f"repaired: {found}")
        else:
            yield Finding(BAD, "tasks", found, "stop all servers, then onward doctor --repair")
    if not kinds:
        apart = "" if quiet else "; counts were not compared, a server is running"
        many = client.zcard(f"{prefix}onward:index")
        yield Finding(GOOD, "tasks", f"{many:,}, each where its row says{apart}")


def _refused(client: Any, prefix: str, *, repair: bool) -> Iterator[Finding]:
    key = f"{prefix}onward:faults"
    faults = client.lrange(key, 0, 0)
    if faults:
        found = f"Redis refused {client.llen(key)} writes, lately {faults[0]}"
        yield Finding(
            ODD, "writes", found, "" if repair else "see why, then onward doctor --repair"
        )
    if repair:
        client.delete(key)


def _progress() -> Any:
    due = monotonic() + TELL_EVERY_S

    def tell(looked: int) -> None:
        nonlocal due
        if monotonic() >= due:
            due = monotonic() + TELL_EVERY_S
            print(f"looked at {looked:,} tasks", file=sys.stderr)

    return tell
