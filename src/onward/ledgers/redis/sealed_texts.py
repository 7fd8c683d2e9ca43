"""The texts at rest of a Redis ledger, for rotation. Its log cannot be written anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.core.contract import Query
from onward.core.errors import Invalid
from onward.ledgers.redis.client import Functions
from onward.ledgers.redis.layout import literal
from onward.ledgers.redis.store import SEP, RedisStore, _pairs
from onward.ledgers.sealed.fields import FIELDS
from onward.ledgers.sealed.texts import (
    CLAIMED,
    CLEAR,
    SealedText,
    document_owner,
    effect_owner,
    event_field,
    owner_of,
)

SCANNED = 1_000  # keys looked at in one go
LONG = {"payload": "onward:payload:", "result": "onward:output:"}  # as in ledger.lua
TASKS, EVENTS, DOCUMENTS, EFFECTS = "tasks", "events", "documents", "effects"
STAGES = (TASKS, EVENTS, DOCUMENTS, EFFECTS)

# ARGV by fives: key, field, the key where a long field is kept, if any, what was read, what to
# write. Each only if it is still as it was read; what has left meanwhile does not come back.
_REWRITE = """
local done = 0
for at = 1, #ARGV, 5 do
  local key, field, long, old, new = unpack(ARGV, at, at + 4)
  local found = redis.call('HGET', key, field)
  if found == '' and long ~= '' then
    if redis.call('GET', long) == old then
      redis.call('SET', long, new, 'KEEPTTL')
      done = done + 1
    end
  elseif found == old then
    redis.call('HSET', key, field, new)
    done = done + 1
  end
end
return done
"""


class RedisSealedTexts:
    def __init__(self, functions: Functions, store: RedisStore) -> None:
        self._functions = functions
        self._store = store

    async def read(self, after: str, limit: int) -> tuple[Sequence[SealedText], str | None]:
        stage, _, at = (after or f"{TASKS}:").partition(":")
        match stage:
            case "tasks":
                texts, last = await self._tasks(at, max(1, limit // len(FIELDS)))
            case "events":
                texts, last = await self._events(at, limit)
            case "documents" | "effects":
                texts, last = await self._scanned(stage, at)
            case _:
                raise Invalid(f"{after!r} is no place to begin at", pointer="/after")
        if last is not None:
            return texts, f"{stage}:{last}"
        later = STAGES[STAGES.index(stage) + 1 :]
        return texts, f"{later[0]}:" if later else None

    async def rewrite(self, changes: Sequence[tuple[SealedText, str]]) -> int:
        flat: list[str] = []
        for one, text in changes:
            key, field, long, head = map(str, one.place)
            flat += [key, field, long, head + one.text, head + text]
        prefix = self._functions.prefix
        return int(await self._functions.command("EVAL", _REWRITE, 1, prefix, *flat))

    async def _tasks(self, after: str, limit: int) -> tuple[Sequence[SealedText], str | None]:
        if after and not after.isdecimal():
            raise Invalid(f"{after!r} is no place to begin at", pointer="/after")
        page = await self._store.find(Query(after=after or None, limit=limit))
        texts = [
            SealedText((self._name(f"onward:task:{task.id}"), field, long, ""), *named, text)
            for task in page.items
            for field in FIELDS
            if (text := getattr(task, field)) is not None
            for named in [(owner_of(task.id), field)]
            for long in [self._name(LONG[field] + task.id) if field in LONG else ""]
        ]
        return texts, page.next

    async def _events(self, after: str, limit: int) -> tuple[Sequence[SealedText], str | None]:
        page = await self._store.events(after=after, limit=limit)
        texts = [
            SealedText((), owner_of(event.task), event_field(event.type), event.data)
            for event in page.items
            if event.data is not None and event.type != CLAIMED
        ]
        return texts, page.next if page.more else None

    async def _scanned(self, stage: str, after: str) -> tuple[Sequence[SealedText], str | None]:
        if after and not after.isdecimal():
            raise Invalid(f"{after!r} is no place to begin at", pointer="/after")
        start = self._name("onward:doc:" if stage == DOCUMENTS else "onward:effect")
        cursor, keys = await self._functions.command(
            "SCAN", after or "0", "MATCH", f"{literal(start)}*", "COUNT", SCANNED
        )
        texts: list[SealedText] = []
        for key in map(bytes.decode, keys):
            kind = key.removeprefix(start)
            if stage == DOCUMENTS and kind in CLEAR:
                continue
            for field, value in _pairs(await self._functions.command("HGETALL", key)):
                texts += _text_of(stage, key, kind, field.decode(), value.decode())
        return texts, None if cursor == b"0" else cursor.decode()

    def _name(self, name: str) -> str:
        return f"{self._functions.prefix}{name}"


def _text_of(stage: str, key: str, kind: str, field: str, value: str) -> Sequence[SealedText]:
    """A document has version and expiry before its body, an effect the fence before its value."""
    owner = document_owner(kind) if stage == DOCUMENTS else effect_owner(_effect_key(kind))
    *head, text = value.split(SEP, 2 if stage == DOCUMENTS else 1)
    before: Any = "".join(f"{part}{SEP}" for part in head)
    return [SealedText((key, field, "", before), owner, field, text)] if text else []


def _effect_key(rest: str) -> str:
    """What follows `onward:effect`; those of before scopes are `s:{key}`. See effects.lua."""
    return rest.removeprefix("s:") if rest.startswith("s:") else rest.partition("|")[2]
