"""What must hold among the keys of a Redis ledger, whatever was done to its processes."""

from __future__ import annotations

import fnmatch
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

from onward.core.task import FINAL_EVENTS
from tests.faults.invariants import OVER

SEP = "\x1f"
FOREVER = 9e15
QUEUE, RING, OUT = "onward:queue:", "onward:ring:", "onward:out:"
PASSED, BACK, USE = "onward:passed:", "onward:back:", "onward:occupied:"
TASK, PARTS = "onward:task:", ("onward:payload:", "onward:output:", "onward:mail:")

# Keys that stay when every task is forgotten; each is one, however many tasks there were.
PERMANENT = (
    "onward:place",
    "onward:layout",
    "onward:events",
    "onward:doc:*",
    "onward:epoch",
    "onward:view:writer",
    "metrics:*",  # the view of the counts
    "onward:ends",  # of documents
    "stream:task",  # the stream workers' own three, with their groups
    "stream:result",
    "stream:dlq",
    "agent:stream:task.*",  # the agents', which are cleared by age
)


class Snapshot:
    """All keys of a ledger that is at rest."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.keys: list[str] = sorted(key.decode() for key in client.scan_iter(count=1000))
        self.tasks: dict[str, dict[str, str]] = {}
        for key in self.keys:
            if key.startswith(TASK):
                fields = client.hgetall(key)
                self.tasks[key.removeprefix(TASK)] = {
                    name.decode(): value.decode() for name, value in fields.items()
                }

    def state(self, id: str) -> str:
        return self.tasks[id].get("state", "queued")

    def scores(self, key: str) -> dict[str, float]:
        return {member.decode(): score for member, score in self.client.zscan_iter(key)}

    def log(self) -> list[tuple[str, str, int, int]]:
        """Task, type, number and generation of every event, in the order of the log."""
        return [
            (fields[b"t"].decode(), said[2], int(said[0]), int(said[1]))
            for _, fields in self.client.xrange("onward:events")
            for said in [fields[b"e"].decode().split(SEP, 4)]
        ]


def check_redis_invariants(
    client: Any, accepted: Collection[str] = (), *, all_over: bool = True
) -> None:
    """Every accepted task is there and over, each generation ended once, counts count."""
    found = Snapshot(client)
    lost = [task for task in accepted if task not in found.tasks]
    assert not lost, f"{len(lost)} accepted tasks are gone, {lost[0]} first"
    if all_over:
        open_ = [(id, found.state(id)) for id in found.tasks if found.state(id) not in OVER]
        assert not open_, f"{len(open_)} tasks never ended: {open_[:3]}"
    _check_parts(found)
    _check_index(found)
    _check_counts(found)
    _check_queues(found)
    _check_rings(found)
    _check_use(found)
    _check_alarms(found)
    _check_events(found)


def check_nothing_was_refused(client: Any) -> None:
    assert client.lrange("onward:faults", 0, -1) == []


def check_only_permanent_keys(client: Any) -> None:
    left = [
        key
        for key in Snapshot(client).keys
        if not any(fnmatch.fnmatchcase(key, known) for known in PERMANENT)
        and client.pttl(key) == -1  # what expires by itself is no leak
    ]
    assert not left, f"{len(left)} keys outlived their tasks: {left[:5]}"
    assert client.xlen("onward:events") == 0


def _check_parts(found: Snapshot) -> None:
    orphans = [
        key
        for key in found.keys
        if key.startswith(PARTS) and key.split(":", 2)[2] not in found.tasks
    ]
    assert not orphans, f"parts of tasks that are not there: {orphans[:3]}"


def _check_index(found: Snapshot) -> None:
    assert found.scores("onward:index").keys() == found.tasks.keys(), "the index is not the tasks"


def _check_counts(found: Snapshot) -> None:
    by_queue: Counter[str] = Counter()
    for id, task in found.tasks.items():
        queue, state = task["queue"], found.state(id)
        in_lane = f"{queue}:{task.get('lane', 'primary')}"
        by_queue[f"{in_lane}:queued" if state == "queued" else f"{queue}:{state}"] += 1
        if state == "running" and "lease_until" not in task:
            by_queue[f"{in_lane}:offered"] += 1
    depths = {
        name.decode(): int(count)
        for name, count in found.client.hgetall("onward:counts").items()
        if int(count)
    }
    assert depths == by_queue, "onward:counts is not what a count gives"


def _check_queues(found: Snapshot) -> None:
    lists = [key for key in found.keys if key.startswith(QUEUE)]
    standing = {
        (_line_of(found, member.decode(), key), member.decode())
        for key in lists
        for member in found.client.lrange(key, 0, -1)
    }
    queued = {(_line_of(found, id), id) for id in found.tasks if found.state(id) == "queued"}
    held = sum(found.client.llen(key) for key in lists)
    assert held == len(queued), "a task stands in its queue twice"
    assert standing == queued, "the queues do not hold exactly the queued"
    scheduled = {id for id in found.tasks if found.state(id) == "scheduled"}
    assert found.scores("onward:scheduled").keys() == scheduled
    running = {id for id in found.tasks if found.state(id) == "running"}
    assert found.scores("onward:running").keys() == running, "onward:running is not what runs"
    dead = {id for id in found.tasks if found.state(id) == "dead"}
    assert found.scores("onward:dead").keys() == dead, "onward:dead is not what is dead"
    waiting = {id for id in found.tasks if found.state(id) == "waiting"}
    asked = {id for id in waiting if found.tasks[id].get("waiting_for") == "approval"}
    assert found.scores("onward:approvals").keys() == asked, "onward:approvals is not what waits"


def _line_of(found: Snapshot, id: str, key: str = "") -> str:
    """The list that it belongs to; it may stand in the one of its type, if that was passed over."""
    task = found.tasks.get(id)
    if task is None:
        return f"{key} has what is no task"
    parts = (task.get("priority", "1"), task.get("lane", "primary"), task["queue"])
    partition = task.get("partition", "")
    lane = QUEUE + ":".join(parts)
    line = f"{lane}{SEP}{partition}" if partition else lane
    right = key in ("", line, SEP.join((lane, partition, task["type"])))
    return line if right else f"{key} by mistake"


def _check_rings(found: Snapshot) -> None:
    """Each partition that something is queued in has turns, or comes back."""
    turns: set[tuple[str, str]] = set()
    outs: set[tuple[str, str]] = set()
    waits: set[tuple[str, str]] = set()
    lines: set[tuple[str, str]] = set()
    passed: set[str] = set()
    for key in found.keys:
        if key.startswith(RING):
            turns |= {(key.removeprefix(RING), name) for name in found.scores(key)}
        elif key.startswith(OUT):
            for name, until in found.scores(key).items():
                outs.add((key.removeprefix(OUT), name))
                if until == FOREVER:
                    waits.add((key.removeprefix(OUT), name))
        elif key.startswith(QUEUE):
            lane, *rest = key.removeprefix(QUEUE).split(SEP)
            partition, type_ = (*rest, "", "")[:2]
            lines.add((f"{lane}{SEP}{type_}" if type_ else lane, partition))
        elif key.startswith(PASSED):
            lane = key.removeprefix(PASSED)
            passed |= {f"{lane}{SEP}{name.decode()}" for name in found.client.smembers(key)}
    named = {(lane, partition) for lane, partition in lines if partition}
    assert turns - lines <= {(lane, "") for lane, _ in lines}, "an empty partition has turns"
    assert outs <= named, "an empty partition is out"
    assert not turns & outs, "a partition has turns and is out"
    assert named <= turns | outs, "a partition that no claim finds"
    assert {lane for lane, _ in lines if SEP in lane} == passed, "not the types passed over"
    back = {
        (lane.decode(), key.removeprefix(BACK))
        for key in found.keys
        if key.startswith(BACK)
        for lane in found.client.smembers(key)
    }
    assert back == waits, "who is out until an end is not who comes back at one"
    rings = {name.decode() for name in found.client.hkeys("onward:rings")}
    needed = {lane for lane, _ in named} | passed | {lane.split(SEP)[0] for lane in passed}
    assert rings == needed, "onward:rings is not the lanes with rings"


def _check_use(found: Snapshot) -> None:
    use: Counter[tuple[str, str]] = Counter()
    for id, task in found.tasks.items():
        state, queue, partition = found.state(id), task["queue"], task.get("partition", "")
        again = state == "scheduled" and "strict" in task and "started_at" in task
        if state != "running" and not again:
            continue
        inside = queue + SEP if partition else queue
        use[f"type:{task['type']}", inside] += 1
        use["more", queue] += again
        if partition:
            use[f"in:{queue}{SEP}{partition}", task["type"]] += 1
            use["more", inside] += 1
    kept = {
        (key.removeprefix(USE), name.decode()): int(many)
        for key in found.keys
        if key.startswith(USE)
        for name, many in found.client.hgetall(key).items()
        if int(many)
    }
    assert kept == {name: many for name, many in use.items() if many}, "not what occupies"


def _check_alarms(found: Snapshot) -> None:
    alarms, leases = found.scores("onward:alarms"), found.scores("onward:running")
    strangers = alarms.keys() - found.tasks.keys()
    assert not strangers, f"alarms of tasks that are not there: {list(strangers)[:3]}"
    both = alarms.keys() & leases.keys()
    assert not both, f"alarms of tasks that run: {list(both)[:3]}"
    for id, task in found.tasks.items():
        due_at = task.get("due_at")
        rings = (leases if found.state(id) == "running" else alarms).get(id)
        assert rings == (None if due_at is None else float(due_at)), (id, task)


def _check_events(found: Snapshot) -> None:
    numbers: dict[str, list[int]] = defaultdict(list)
    finals: Counter[tuple[str, int]] = Counter()
    for owner, type_, n, generation in found.log():
        numbers[owner].append(n)
        finals[owner, generation] += type_ in FINAL_EVENTS
    assert numbers.keys() == found.tasks.keys(), "the log is not of the tasks"
    for id, seen in numbers.items():
        kept = int(found.tasks[id].get("events", 0))
        assert seen == list(range(1, kept + 1)), f"event numbers of {id}: {seen} of {kept}"
    twice = [key for key, count in finals.items() if count > 1]
    assert not twice, f"generations that ended twice: {twice[:3]}"
    for id, task in found.tasks.items():
        if found.state(id) in OVER:
            assert finals[id, int(task.get("generation", 1))] == 1, f"{id} is over without a word"
