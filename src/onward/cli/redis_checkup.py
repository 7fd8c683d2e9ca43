"""What `onward doctor` looks at when the ledger is a Redis: can it keep what it is given?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onward.cli.checkup import BAD, GOOD, ODD, Finding, clock
from onward.cli.terminal import plain
from onward.urls import shown

if TYPE_CHECKING:
    from onward.settings import Settings

OLDEST = (7, 0)
ANSWER_S = 5.0
TIGHT, FULL = 0.75, 0.9
BEHIND_S = 60
MOST_REFUSALS = 100
EXAMPLES = 3

# What a crash takes with it, by appendfsync.
LOSSES = {
    "always": (GOOD, "a crash loses nothing that was answered"),
    "everysec": (ODD, "a crash loses up to two seconds of accepted tasks"),
    "no": (BAD, "a power cut loses whatever the kernel has not written, often half a minute"),
}


def examine_redis(settings: Settings, *, repair: bool = False) -> Iterator[Finding]:
    for found in _examine(settings, repair=repair):
        found.todo = found.todo.replace("redis-cli", _shell(settings.ledger))
        yield found


def _shell(url: str) -> str:
    """The command that speaks to this very Redis; a password is to be filled in."""
    if url.startswith("unix:"):
        return f"redis-cli -s {urlsplit(url).path}"
    return f"redis-cli -u {shown(url)}"


def _examine(settings: Settings, *, repair: bool) -> Iterator[Finding]:
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ModuleNotFoundError:
        yield Finding(BAD, "ledger", "redis-py is missing", "pip install 'onward[redis]'")
        return
    from onward.cli.redis_tasks import examine_tasks

    url = settings.ledger
    client: Any = redis.Redis.from_url(
        url,
        socket_timeout=ANSWER_S,
        socket_connect_timeout=ANSWER_S,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )
    try:
        info: dict[str, Any] = client.info()
        yield _version(url, info)
        for look in (_eviction, _durability, _memory):
            yield look(client, info)
        yield _role(info)
        yield _functions(client)
        yield _clock(client)
        yield _prefix(client, settings.redis_prefix, info)
        yield from _layout(client, settings.redis_prefix)
        yield from _channels(client, settings.redis_prefix)
        yield from _refusals(client)
        yield from _readers(client, settings.redis_prefix)
        yield from examine_tasks(client, settings.redis_prefix, repair=repair)
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        # Without any password Redis answers with a text about HELLO.
        why = "a password is needed" if str(error).startswith("HELLO") else error
        yield Finding(
            BAD,
            "ledger",
            f"{shown(url)}: {why}",
            "correct user and password, or what that user may do (ACL)",
        )
    except redis.RedisError as error:
        todo = "start Redis (or see why it does not answer), or correct --ledger"
        yield Finding(BAD, "ledger", f"{shown(url)}: {error}", todo)
    finally:
        client.close()


def _version(url: str, info: Mapping[str, Any]) -> Finding:
    version = str(info["redis_version"])
    name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {version}"
    found = f"{shown(url)} is {name}"
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return Finding(BAD, "ledger", found, "upgrade: functions came with Redis 7.0")
    return Finding(GOOD, "ledger", found)


def _role(info: Mapping[str, Any]) -> Finding:
    if info.get("role") == "slave":
        where = f"{info.get('master_host')}:{info.get('master_port')}"
        return Finding(BAD, "role", "a replica: it takes no writes", f"use its primary, {where}")
    return Finding(GOOD, "role", "primary")


def _layout(client: Any, prefix: str) -> Iterator[Finding]:
    from onward.ledgers.redis.layout import LAYOUT, STAGES

    written = client.exists(f"{prefix}onward:index")
    found = client.get(f"{prefix}onward:layout") or ("1" if written else None)
    if found in STAGES:
        about = f"its ledger has layout {found}: the next start brings it to {LAYOUT}"
        yield Finding(ODD, "layout", about, "stop the servers of the older version, then onward up")
    elif found not in (None, LAYOUT):
        about = f"its ledger has layout {found}, and this Onward knows {LAYOUT}"
        todo = "use the Onward that wrote it, another database number, or ONWARD_REDIS_PREFIX"
        yield Finding(BAD, "layout", about, todo)


def _setting(client: Any, name: str, fallback: Any = None) -> str | None:
    """A configuration value; some hosts forbid CONFIG."""
    import redis

    try:
        value = client.config_get(name).get(name, fallback)
    except redis.ResponseError:
        value = fallback
    return None if value is None else str(value)


def _eviction(client: Any, info: Mapping[str, Any]) -> Finding:
    policy = _setting(client, "maxmemory-policy", info.get("maxmemory_policy"))
    if policy == "noeviction":
        return Finding(GOOD, "eviction", "noeviction: when it is full it says so")
    found = f"{policy}: when memory is full, Redis deletes tasks without a word"
    todo = "redis-cli config set maxmemory-policy noeviction, and so in redis.conf"
    return Finding(BAD if info.get("maxmemory") else ODD, "eviction", found, todo)


def _durability(client: Any, info: Mapping[str, Any]) -> Finding:
    if not info.get("aof_enabled"):
        found = "no append-only file: a crash loses every task since the last snapshot, if any"
        todo = "redis-cli config set appendonly yes, and so in redis.conf"
        return Finding(BAD, "durability", found, todo)
    if info.get("aof_last_write_status") != "ok":
        found = "the last write to the append-only file failed: Redis takes no writes"
        return Finding(BAD, "durability", found, "free or mend its disk")
    fsync = _setting(client, "appendfsync")
    if fsync not in LOSSES:
        return Finding(ODD, "durability", "append-only file; how often it is synced is not shown")
    mark, loss = LOSSES[fsync]
    todo = "" if mark is GOOD else "redis-cli config set appendfsync always, if that is too much"
    return Finding(mark, "durability", f"appendfsync {fsync}: {loss}", todo)


def _memory(_: Any, info: Mapping[str, Any]) -> Finding:
    used, limit = int(info["used_memory"]), int(info.get("maxmemory") or 0)
    most = limit or int(info.get("total_system_memory") or 0)
    found = f"{_mib(used)} used of {_mib(most)}" if most else f"{_mib(used)} used"
    if not limit:
        found += " in the machine, no maxmemory"
    share = used / most if most else 0.0
    todo = "raise maxmemory, or lower ONWARD_REDIS_KEEP_MS: a full Redis refuses new tasks"
    if share > FULL:
        return Finding(BAD, "memory", found, todo)
    return Finding(ODD if share > TIGHT else GOOD, "memory", found, todo if share > TIGHT else "")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def _functions(client: Any) -> Finding:
    import redis

    from onward.ledgers.redis.client import LIBRARY, NAME

    try:
        loaded = client.execute_command("FUNCTION LIST", "LIBRARYNAME", NAME, "WITHCODE")
        if not loaded:
            client.function_load(LIBRARY)
            client.function_delete(NAME)
            return Finding(GOOD, "functions", "can be loaded")
    except redis.ResponseError as error:
        todo = "give Onward's user its rights (ACL): onward redis acl server; on a primary"
        return Finding(BAD, "functions", str(error), todo)
    if LIBRARY not in str(_code(loaded[0])):
        found = "another version of Onward has loaded its own"
        return Finding(ODD, "functions", found, "run one version on all servers")
    return Finding(GOOD, "functions", "loaded")


def _code(library: Any) -> Any:
    """The code in one entry of FUNCTION LIST, under either protocol."""
    if isinstance(library, Mapping):
        return library["library_code"]
    return dict(zip(library[::2], library[1::2], strict=True))["library_code"]


def _clock(client: Any) -> Finding:
    asked = time.time()
    seconds, micros = client.time()
    return clock("redis clock", "Redis's", seconds + micros / 1e6 - (asked + time.time()) / 2)


def _prefix(client: Any, prefix: str, info: Mapping[str, Any]) -> Finding:
    if info.get("redis_mode") == "cluster" and not ("{" in prefix and "}" in prefix):
        found = "a cluster: all keys must share a slot"
        return Finding(BAD, "prefix", found, "ONWARD_REDIS_PREFIX='{onward}:'")
    if client.exists(f"{prefix}onward:place"):
        return Finding(GOOD, "prefix", f"{prefix!r}: a ledger is there")
    others = int(client.dbsize())
    if others and not prefix:
        found = f"none, and {others:,} keys of another program are in this database"
        todo = "use another database number; a prefix keeps keys apart, but not the streams"
        return Finding(ODD, "prefix", found, todo)
    return Finding(GOOD, "prefix", f"{prefix!r}: a ledger will be made")


def _channels(client: Any, prefix: str) -> Iterator[Finding]:
    """Servers hear of each other's work on channels, and do without them, later."""
    import redis

    try:
        client.publish(f"{prefix}onward:bell:doctor", "")
    except redis.exceptions.NoPermissionError as error:
        todo = f"ACL SETUSER {client.acl_whoami()} '&{prefix}onward:bell*'"
        yield Finding(ODD, "channels", f"servers find each other's work late: {error}", todo)


def _refusals(client: Any) -> Iterator[Finding]:
    """Which users Redis refused lately, and what: attempts on the streams show here."""
    import redis

    try:
        entries: list[dict[str, Any]] = client.acl_log(MOST_REFUSALS)
    except redis.ResponseError:  # this user may not read it, or it is an older Redis
        return
    found: Counter[str] = Counter()
    for entry in entries:
        # Asked for by this very command, and by servers: whether Redis keeps what is written.
        if entry["object"] != "config|get":
            found[f"{entry['username']}: {entry['reason']} {entry['object']}"] += int(
                entry["count"]
            )
    if found:
        most = ", ".join(f"{plain(what)} × {many:,}" for what, many in found.most_common(EXAMPLES))
        todo = "if it is a program of yours: onward redis acl; then redis-cli acl log reset"
        yield Finding(ODD, "refused users", f"Redis refused {most}", todo)


def _readers(client: Any, prefix: str) -> Iterator[Finding]:
    """A reader that is far behind in the log keeps finished tasks in Redis."""
    import msgspec

    cursors = f"{prefix}onward:doc:cursor"
    for name, value in sorted(client.hgetall(cursors).items()):
        cursor = msgspec.json.decode(value.split("\x1f", 2)[2], type=str) or "0-0"
        unread = client.xrange(f"{prefix}onward:events", min=f"({cursor}", count=1)
        late_s = time.time() - int(unread[0][0].partition("-")[0]) / 1000 if unread else 0.0
        if late_s > BEHIND_S:
            yield Finding(
                ODD,
                "archive" if name.startswith("archive:") else "log",
                f"{name} has read nothing for {late_s:,.0f} s: finished tasks stay in Redis",
                f"start it again; if it is gone for good: onward log forget {name}",
            )
