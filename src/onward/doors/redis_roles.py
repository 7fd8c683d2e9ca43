"""What a Redis user needs for its role, as rules of `ACL SETUSER`, and nothing else.

Names come from the modules that read and write them. Redis checks the commands inside a script as
it checks all others, so a role that runs scripts may do no more in them. It knows keys, no groups:
two consumers of one stream are not protected from each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from onward.doors.agents.streams import NOTIFICATIONS
from onward.doors.redis_views.writer import SEEDS_KEYS, SESSION, TASK
from onward.ledgers.redis.layout import literal
from onward.wire.streams import (
    CANCEL,
    COMPLETED,
    CREATE,
    DEAD,
    DEAD_LETTERS,
    FAILED,
    RESULTS,
    TASKS,
    own_stream,
)
from onward.workers.streams.agent_dialect import AGENT_STREAMS, AGENTS_GROUP
from onward.workers.streams.dialects import WORKER_STREAMS, StreamDialect


class Role(StrEnum):
    SERVER = "server"
    WORKER = "worker"  # onward worker --via streams, or any program of the task queue protocol
    AGENT = "agent"
    SERVICE = "service"  # does what agents hand off


# What a user had before is taken away, but for its password. Then: log in and choose a database.
_ANEW = (
    *("on", "clearselectors", "resetkeys", "resetchannels", "-@all"),
    *("+@connection", "-@dangerous", "+@transaction"),
)
# The ledger's own keys are the server's alone, so any command on their types is allowed. CONFIG is
# not: it shows passwords. ACL LOG shows `onward doctor` which users were refused.
_ON_THE_LEDGER = (
    *("+@hash", "+@list", "+@set", "+@sortedset", "+@stream", "+@string", "-@dangerous"),
    *("+del", "+unlink", "+exists", "+type", "+rename", "+expire", "+pexpire", "+persist", "+pttl"),
    *("+eval", "+evalsha", "+script|load", "+fcall", "+function|load", "+function|delete"),
    *("+function|list", "+publish", "+subscribe", "+unsubscribe", "+pubsub|numsub"),
    *("+time", "+info", "+scan", "+dbsize", "+acl|whoami", "+acl|log"),
)
_READ_IN_A_GROUP = (
    *("+xreadgroup", "+xack", "+xpending", "+xclaim", "+xautoclaim", "+xlen", "+xinfo|groups"),
    *("+xinfo|consumers", "+xgroup|create", "+xgroup|createconsumer", "+xgroup|delconsumer"),
)
_READ = ("+xread", "+xrange", "+xrevrange", "+xlen")


def rules(
    role: Role, *, prefix: str, session: str = "*", services: Sequence[str] = ()
) -> Sequence[str]:
    """`session` is a pattern: whose sessions an agent reads. `services`: whose own streams a
    service reads; without any, the common one."""
    start = literal(prefix)
    match role:
        case Role.SERVER:
            return [*_ANEW, *_server(start)]
        case Role.WORKER:
            answers = (RESULTS, DEAD_LETTERS)
            return [
                *_ANEW,
                _may(_READ_IN_A_GROUP, [TASKS]),
                _may(["+xadd"], answers, "%W~"),
                _may(["+exists", "+get", "+mget"], [f"{CANCEL}*"], "%R~"),
                # The SDK's worker answers and acknowledges in one step, if it still has the entry.
                _may(["+eval"], [TASKS, *answers, f"{CANCEL}*"]),
            ]
        case Role.SERVICE:
            tasks = [literal(own_stream(name)) for name in services] or [CREATE]
            answers = (COMPLETED, FAILED)
            return [
                *_ANEW,
                _may([*_READ_IN_A_GROUP, "+xread", "+xinfo|stream"], tasks),
                _may(["+xadd"], answers, "%W~"),
                _may(["+exists", "+get", "+mget"], [f"{CANCEL}*"], "%R~"),
                _may(["+eval"], [*tasks, *answers, f"{CANCEL}*"]),  # as a worker
            ]
        case Role.AGENT:
            ends = [stream for stream, group in AGENT_STREAMS.groups if group == AGENTS_GROUP]
            notifications = f"{NOTIFICATIONS}:{session}"
            return [
                *_ANEW,
                _may(["+xadd"], [CREATE, own_stream("*")], "%W~"),
                _may(_READ_IN_A_GROUP, ends),
                _may(_READ, [*ends, DEAD, notifications], "%R~"),
                # Its own record of a task, which gives way to the server's (streams.md).
                _may(
                    ["+set", "+get", "+hset", "+hget", "+hmget", "+hgetall", "+expire", "+ttl"],
                    [start + TASK],
                ),
                _may(
                    ["+sadd", "+srem", "+smembers", "+sismember", "+scard", "+expire", "+ttl"],
                    [start + SESSION.replace("*", session)],
                ),
            ]


def _server(start: str) -> Sequence[str]:
    """Scripts and functions are called with the prefix as their key, which may be empty."""
    keys = [
        start,
        f"{start}onward:*",
        *(start + name for name in SEEDS_KEYS),
        *_streams(WORKER_STREAMS, AGENT_STREAMS),
        own_stream("*"),
        f"{NOTIFICATIONS}:*",
        "onward:*",  # what belongs to the streams has no prefix, as they have none
    ]
    named = [f"~{key}" for key in dict.fromkeys(keys)]
    return [*_ON_THE_LEDGER, *named, f"&{start}onward:bell*"]


def _streams(*dialects: StreamDialect) -> Iterable[str]:
    return dict.fromkeys(
        name
        for one in dialects
        for name in (one.tasks, *one.read, *one.kept_ms, *(stream for stream, _ in one.groups))
    )


def _may(commands: Iterable[str], keys: Iterable[str], how: str = "~") -> str:
    """These commands on these keys, apart from all other rules."""
    return f"({' '.join([*commands, *(how + key for key in keys)])})"
