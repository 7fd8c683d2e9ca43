"""Whether a Redis keeps what is written to it, and what it has lost or refused already."""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import ResponseError

from onward.ledgers.redis.client import Functions


async def weaknesses(functions: Functions) -> Sequence[str]:
    """What makes a Redis lose accepted tasks without a word."""
    info = await _info(functions, "persistence") | await _info(functions, "memory")
    found: list[str] = []
    # None: reading the setting is forbidden, as hosted Redis has it, which does take snapshots.
    if info.get("aof_enabled") == "0" and await _setting(functions, "save") == "":
        found.append("Redis keeps nothing on disk: a restart loses every task")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.append(f"Redis evicts ({policy}): it deletes tasks when its memory is full")
    return found


async def damages(functions: Functions) -> Sequence[str]:
    """What has gone wrong already, and needs an operator."""
    refused = await functions.command("LLEN", f"{functions.prefix}onward:faults")
    aside = await functions.command("ZCARD", f"{functions.prefix}onward:aside")
    found: list[str] = []
    if refused:
        found.append(f"Redis refused {refused} writes of the ledger: run onward doctor")
    if aside:
        found.append(f"{aside} tasks cannot be read, and were set aside: run onward doctor")
    return found


async def _info(functions: Functions, section: str) -> dict[str, str]:
    text: bytes = await functions.command("INFO", section)
    lines = [line.partition(":") for line in text.decode().splitlines() if ":" in line]
    return {name: value for name, _, value in lines}


async def _setting(functions: Functions, name: str) -> str | None:
    if functions.hides_settings:
        return None
    try:
        found = await functions.command("CONFIG", "GET", name)
    except Exception as error:  # forbidden, renamed away, or unknown
        if not isinstance(error.__cause__ or error, ResponseError):
            raise
        functions.hides_settings = True
        return None
    return found[1].decode() if found else None
