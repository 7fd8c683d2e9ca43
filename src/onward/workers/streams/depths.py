"""How long the streams are and how far each group has read, for /metrics and /health (S2-10, S3-7).

Two round trips each, however long the streams are. Reads the streams that the dialects name, and
those of declared services: the number of series is bounded, and no session's own is among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from onward.services.catalog import Declared
from onward.wire.streams import text_of
from onward.workers.streams.channel import OURSELVES, StreamConnections
from onward.workers.streams.dialects import StreamDialect, own_streams

MOST_GROUPS = 64  # of one stream; of more, those furthest behind
FAR = 1_000  # a lag is counted up to here
OLDEST = 100  # pending entries of a group that are looked at for a sign of life

# Redis cannot compute a group's lag once an entry was deleted, and the feed deletes what is done.
_BEHIND = """
return #redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
"""


class Group(msgspec.Struct):
    stream: str
    name: str
    pending: int  # given to a consumer and not acknowledged
    last: str
    lag: int | None  # not given to a consumer yet
    silent_ms: int | None = None  # since the last sign of life for any of the pending ones


async def read(
    connections: StreamConnections, dialects: Sequence[StreamDialect], services: Sequence[Declared]
) -> Depths:
    streams = list(
        dict.fromkeys(
            name
            for one in dialects
            for name in (*_task_streams(one, services), *one.read, *one.kept_ms)
        )
    )
    pipe = connections.calls.pipeline(transaction=False)
    for stream in streams:
        _ = pipe.xlen(stream)
        _ = pipe.xinfo_groups(stream)
    replies = await pipe.execute(raise_on_error=False)
    lengths: dict[str, int] = {}
    groups: list[Group] = []
    for stream, length, infos in zip(streams, replies[::2], replies[1::2], strict=True):
        if isinstance(length, Exception):
            raise length
        lengths[stream] = int(length)
        if not isinstance(infos, Exception):  # no such stream yet
            groups += _furthest([_group(stream, info) for info in infos])
    await _look_closer(connections, groups)
    return Depths(lengths, groups, connections.tally)


async def _look_closer(connections: StreamConnections, groups: Sequence[Group]) -> None:
    """What a group's own line does not say: how far it is behind, how long it has been silent."""
    lost = [group for group in groups if group.lag is None]
    held = [group for group in groups if group.pending]
    pipe = connections.calls.pipeline(transaction=False)
    for group in lost:
        _ = pipe.eval(_BEHIND, 1, group.stream, group.last, str(FAR))
    for group in held:
        _ = pipe.xpending_range(group.stream, group.name, "-", "+", OLDEST)
    replies = await pipe.execute(raise_on_error=False) if lost or held else []
    for group, behind in zip(lost, replies, strict=False):
        group.lag = behind if isinstance(behind, int) else None
    for group, entries in zip(held, replies[len(lost) :], strict=True):
        if not isinstance(entries, Exception):
            idle = [int(entry["time_since_delivered"]) for entry in entries]
            group.silent_ms = max(idle, default=None)


async def consumers(
    connections: StreamConnections, dialects: Sequence[StreamDialect], services: Sequence[Declared]
) -> int:
    """How many workers read tasks from the streams. One that is gone counts until its name is
    deleted: a worker that is busy for long, or blocks without a limit, looks the same in Redis.
    """
    pipe = connections.calls.pipeline(transaction=False)
    streams = [(one, name) for one in dialects for name in _task_streams(one, services)]
    for _, stream in streams:
        _ = pipe.xinfo_groups(stream)
    replies = await pipe.execute(raise_on_error=False)
    pipe = connections.calls.pipeline(transaction=False)
    for (dialect, stream), infos in zip(streams, replies, strict=True):
        there = () if isinstance(infos, Exception) else infos  # no such stream yet
        for name in [text_of(info["name"]) for info in there]:
            if dialect.serves(name):
                _ = pipe.xinfo_consumers(stream, name)
    names = [text_of(one["name"]) for reply in await pipe.execute() for one in reply]
    return len(names) - names.count(OURSELVES)


def _task_streams(dialect: StreamDialect, services: Sequence[Declared]) -> Sequence[str]:
    alone, others = own_streams(dialect, services)
    return list(dict.fromkeys([dialect.tasks, *alone, *others]))


def _group(stream: str, info: Mapping[str, Any]) -> Group:
    lag = info.get("lag")
    return Group(
        stream,
        text_of(info["name"]),
        int(info["pending"]),
        text_of(info["last-delivered-id"]),
        None if lag is None else int(lag),
    )


def _furthest(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (group.lag or 0) + group.pending)[-MOST_GROUPS:]


class Depths(msgspec.Struct, eq=False):  # the registry keeps it by identity
    """One reading, as Prometheus collects it."""

    lengths: Mapping[str, int]
    groups: Sequence[Group]
    tally: Mapping[tuple[str, str], int]

    def collect(self) -> Iterable[Metric]:
        depth = GaugeMetricFamily("onward_stream_depth", "Entries on a stream", labels=["stream"])
        for stream, length in self.lengths.items():
            depth.add_metric([stream], length)
        labels = ["stream", "group"]
        lag = GaugeMetricFamily(
            "onward_stream_lag", "Entries that a group has not been given yet", labels=labels
        )
        pending = GaugeMetricFamily(
            "onward_stream_pending",
            "Entries that a group was given and has not acknowledged",
            labels=labels,
        )
        silent = GaugeMetricFamily(
            "onward_stream_heartbeat_age_seconds",
            "Since the last heartbeat, of the pending entry that has had none for longest",
            labels=labels,
        )
        for group in self.groups:
            if group.silent_ms is not None:
                silent.add_metric([group.stream, group.name], group.silent_ms / 1000)
            pending.add_metric([group.stream, group.name], group.pending)
            if group.lag is not None:
                lag.add_metric([group.stream, group.name], group.lag)
        entries = CounterMetricFamily(
            "onward_stream_entries",
            "Entries published, consumed and acknowledged by this server",
            labels=["stream", "step"],
        )
        for (stream, step), count in sorted(self.tally.items()):
            entries.add_metric([stream, step], count)
        return [depth, lag, pending, silent, entries]
