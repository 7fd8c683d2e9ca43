"""Which layout the keys of a Redis ledger have, and how those of earlier ones are brought to it.

Nothing is served meanwhile: a server of the old version must have stopped, and its functions are
deleted, so that one that comes back cannot write beside us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING

import structlog
from redis.exceptions import ResponseError

from onward.core.errors import Invalid

if TYPE_CHECKING:
    from onward.ledgers.redis.client import Functions

log = structlog.get_logger("onward.redis")

LAYOUT = "4"  # of the keys that these functions write
STAGES = {"2": "tasks", "3": "use"}  # where the migration of each layout begins; others are left
OLD_LIBRARIES = ("onward3", "onward4", "onward5", "onward6")
STEP = 200  # tasks moved in one call: some milliseconds
LOG_EVERY = 50  # steps
SEP = b"\x1f"

_MIGRATE = (files("onward.ledgers.redis") / "migrate.lua").read_text()
_BEGIN = """
if redis.call('GET', KEYS[1] .. 'onward:layout') == ARGV[1] then
  redis.call('HSET', KEYS[1] .. 'onward:migrating', 'stage', ARGV[3], 'done', 0, 'total',
    redis.call('ZCARD', KEYS[1] .. 'onward:index'))
  redis.call('SET', KEYS[1] .. 'onward:layout', ARGV[2])
end
"""


def literal(text: str) -> str:
    """As a pattern of Redis that only this text fits."""
    return "".join(f"\\{sign}" if sign in "[]*?\\" else sign for sign in text)


async def settle_layout(functions: Functions) -> None:
    """Before anything is written: accept this layout, migrate earlier ones, refuse any other."""
    prefix = functions.prefix
    # Read first: a server writes the layout before its first task, so an index without one is old.
    written = await functions.command("EXISTS", f"{prefix}onward:index")
    found = await functions.command("GET", f"{prefix}onward:layout")
    layout = found.decode() if found else "1" if written else LAYOUT
    if layout in STAGES:
        await _begin(functions, layout)
    elif layout != LAYOUT:
        raise Invalid(
            f"this Redis holds a ledger of layout {layout}, and this Onward knows {LAYOUT}",
            hint="let the version that wrote it finish its tasks, or take another database"
            " or ONWARD_REDIS_PREFIX",
        )
    await functions.command("SET", f"{prefix}onward:layout", LAYOUT, "NX")
    if await functions.command("EXISTS", f"{prefix}onward:migrating"):
        await _migrate(functions)


async def _begin(functions: Functions, layout: str) -> None:
    alive = await _living_servers(functions)
    if alive:
        raise Invalid(
            f"the ledger has layout {layout}, and servers of it still run: {', '.join(alive)}",
            hint="stop all servers and workers of the older version, wait 10 s, and start again",
        )
    stage = STAGES[layout]
    await functions.command("EVAL", _BEGIN, 1, functions.prefix, layout, LAYOUT, stage)


async def _living_servers(functions: Functions) -> Sequence[str]:
    seconds, _ = await functions.command("TIME")
    flat = await functions.command("HGETALL", f"{functions.prefix}onward:doc:server")
    rows = zip(flat[::2], flat[1::2], strict=True)
    return living({name.decode(): value.decode() for name, value in rows}, int(seconds))


def living(servers: Mapping[str, str], now_s: int) -> Sequence[str]:
    """Which of these documents are of servers that run."""
    return [
        name for name, body in servers.items() if int(body.split("\x1f")[1] or 0) > now_s * 1000
    ]


async def _migrate(functions: Functions) -> None:
    for library in OLD_LIBRARIES:
        with suppress(ResponseError):  # it is not there
            await functions.command("FUNCTION", "DELETE", library)
    stage, step = b"tasks", 0
    while stage != b"end":
        stage, done, total = await functions.command("EVAL", _MIGRATE, 1, functions.prefix, STEP)
        if step % LOG_EVERY == 0 or stage == b"end":
            log.info("moving the ledger to a new layout", layout=LAYOUT, tasks=done, of=total)
        step += 1
    await _note_ends(functions)
    old = ("metrics:queue:depths", "metrics:tasks:by_state", "onward:migrating")
    await functions.command("DEL", *(f"{functions.prefix}{name}" for name in old))


async def _note_ends(functions: Functions) -> None:
    """Documents that end, so that they are deleted then."""
    start, cursor = f"{functions.prefix}onward:doc:", b"0"
    pattern = f"{literal(start)}*"
    while True:
        cursor, keys = await functions.command("SCAN", cursor, "MATCH", pattern, "COUNT", 1_000)
        for key in keys:
            flat = await functions.command("HGETALL", key)
            kind = key.removeprefix(start.encode())
            for field, value in zip(flat[::2], flat[1::2], strict=True):
                ends = value.split(SEP, 2)[1]
                if ends:
                    name = kind + SEP + field
                    await functions.command("ZADD", f"{functions.prefix}onward:ends", ends, name)
        if cursor == b"0":
            return
