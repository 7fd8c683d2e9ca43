"""The Redis ledger on one private Valkey: against bare functions, and against peers on the same."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from bench.peers import APART, OWN, Figures, Peer, idle, idle_name, throughput
from bench.processes import call
from bench.report import Goal, Measured
from bench.rounds import Bench
from bench.valkey import Valkey, serving

TASKS = 20_000
RATE, OF_RAW, IDLE_MS, SUBMIT = 10_000, 0.4, 1.8, 20_000
ONWARD, RAW = "Onward", "raw functions, batches of 100"


def measure(bench: Bench) -> Measured:
    with ExitStack() as stack:
        plain = stack.enter_context(serving(bench.scratch / "valkey"))
        everysec = stack.enter_context(serving(bench.scratch / "valkey-aof", "everysec"))
        ours = partial(Peer, "ledger_engine", left=_onward, own=True, bulk=True)
        peers = {
            ONWARD: ours(TASKS, server=plain, idle=True),
            f"{ONWARD}, AOF everysec": ours(TASKS // 2, server=everysec),
            f"{ONWARD} and its archive": ours(TASKS // 2, server=plain, given={"archive": True}),
            "BullMQ": Peer("bullmq_peer", 10_000, _bullmq, plain, idle=True, bulk=True),
            "huey": Peer("huey_redis", 4_000, _huey, plain, idle=True),
            "dramatiq": Peer("dramatiq_peer", 2_500, _dramatiq, plain),
            "Celery": Peer("celery_peer", 600, _celery, plain),
        }
        notes = _NOTES.copy()
        if reason := call("bullmq_peer:install"):
            notes.append(f"BullMQ is not measured: {reason}")
            del peers["BullMQ"]
        figures = Figures()
        for turn in range(bench.rounds):
            bench.tell(f"round {turn + 1}/{bench.rounds}  {RAW}")
            plain.empty()
            said = call("raw_redis:cycle", url=plain.url, tasks=TASKS)
            figures.add(RAW, "tasks/s", said["rate"])
            figures.add(f"{RAW}, submitting", "tasks/s", said["submit_rate"])
            figures.add(f"{RAW}, draining", "tasks/s", said["drain_rate"])
            for name, peer in peers.items():
                bench.tell(f"round {turn + 1}/{bench.rounds}  {name}")
                throughput(name, peer, figures)
                if peer.idle:
                    idle(name, peer, figures)
        return Measured("redis", figures.all(), _goals(figures, peers), notes)


_NOTES = [
    "tasks/s: draining a full queue with one worker, seen in the store, from the first to the last",
    "dramatiq, Celery and huey submit one by one: they know no bulk",
    "raw knows no counts, caps, keys or letters; Onward's cycle is its submitting and its draining",
    "Celery works in 4 child processes, huey in 2, the others in one",
    "bytes: growth of used_memory by task, queued, and done with its result (and events) kept",
]


def _goals(figures: Figures, peers: dict[str, Peer]) -> list[Goal]:
    rate = figures.median(ONWARD)
    best = max((name for name, peer in peers.items() if not peer.own), key=figures.median)
    submitting = figures.median(f"{ONWARD}, bulk")
    cycle = 1 / (1 / rate + 1 / submitting)
    return [
        Goal(ONWARD, rate, RATE, unit="tasks/s"),
        Goal(f"{ONWARD} / {best}, the fastest peer", rate / figures.median(best), 1),
        Goal(f"{ONWARD}, submitting and draining / raw", cycle / figures.median(RAW), OF_RAW),
        Goal(f"{ONWARD}, draining / raw", rate / figures.median(f"{RAW}, draining"), OF_RAW),
        *(
            Goal(
                f"idle, {where}, p50",
                figures.median(idle_name(ONWARD, where)),
                IDLE_MS,
                True,
                "ms",
            )
            for where in (OWN, APART)
        ),
        Goal(f"{ONWARD}, bulk submitting", submitting, SUBMIT, unit="tasks/s"),
    ]


def _onward(server: Valkey, tasks: int) -> int:
    counts = server.client.hgetall("onward:counts").items()
    return tasks - sum(int(many) for name, many in counts if name.endswith(b":succeeded"))


def _bullmq(server: Valkey, tasks: int) -> int:
    return tasks - int(server.client.zcard("bull:noop:completed"))


def _huey(server: Valkey, tasks: int) -> int:
    return tasks - int(server.client.hlen("huey.results.bench"))


def _dramatiq(server: Valkey, tasks: int) -> int:
    """A message stays in this hash until it is acknowledged, after its result was stored."""
    return int(server.client.hlen("dramatiq:default.msgs"))


def _celery(server: Valkey, tasks: int) -> int:
    """A key a result, and a few for the queue: told apart only when it matters."""
    keys = int(server.client.dbsize())
    if keys >= tasks:
        keys = sum(1 for _ in server.client.scan_iter("celery-task-meta-*", count=1_000))
    return tasks - keys
