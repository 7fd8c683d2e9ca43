"""The Postgres ledger on one private Postgres 15: against bare statements, and against peers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench.peers import APART, OWN, Figures, Peer, idle, idle_name, throughput
from bench.postgres_server import Postgres, serving
from bench.processes import call
from bench.report import Goal, Measured
from bench.rounds import Bench

TASKS = 20_000
SLOTS = 512  # graphile-worker and pgqueuer take 500 at a time
RUNS, STEPS = 200, 10
FEW, SECONDS, PIECE = 1_000, 2.0, 50_000
OF_RAW, IDLE_MS, OF_DBOS, GROWTH = 0.7, 3.0, 10.0, 1.3
ONWARD, RAW = "Onward", "raw statements, batches of 100"
PEERS = {  # module, how many tasks, which rows are not done yet
    ONWARD: ("ledger_engine", TASKS, "onward.task WHERE state <> 'succeeded'"),
    "graphile-worker": ("graphile_peer", TASKS, "graphile_worker._private_jobs"),
    "pgqueuer": ("pgqueuer_peer", TASKS, "pgqueuer"),
    "procrastinate": (
        "procrastinate_peer",
        1_000,
        "procrastinate_jobs WHERE status <> 'succeeded'",
    ),
    "DBOS": ("dbos_peer", 1_000, "dbos.workflow_status WHERE status <> 'SUCCESS'"),
}
FLOW, DBOS_FLOW = "Onward, flow", "DBOS, flow, ten at a time"


def measure(bench: Bench) -> Measured:
    with serving(bench.scratch / "postgres") as server:
        peers = {
            name: Peer(
                module,
                tasks,
                _rows(left),
                server,
                own=name == ONWARD,
                bulk=name != "DBOS",
                given={"slots": SLOTS} if name == ONWARD else {},
            )
            for name, (module, tasks, left) in PEERS.items()
        }
        notes = _NOTES.copy()
        if reason := call("graphile_peer:install"):
            notes.append(f"graphile-worker is not measured: {reason}")
            del peers["graphile-worker"]
        figures = Figures()
        for turn in range(bench.rounds):
            tell = partial(_tell, bench, turn)
            tell(RAW)
            server.empty()
            said = call("raw_postgres:cycle", url=server.url, tasks=TASKS)
            figures.add(f"{RAW}, submitting", "tasks/s", said["submit_rate"])
            figures.add(RAW, "tasks/s", said["drain_rate"])
            for name, peer in peers.items():
                tell(name)
                throughput(name, peer, figures)
            tell("idle")
            idle(ONWARD, peers[ONWARD], figures)
            tell("flows")
            _flows(server, figures)
        many = 1_000_000 if bench.full else 100_000
        churned = 2_000_000 if bench.full else 200_000
        _crowded(bench, server, figures, {"queued": many, "churned": churned})
        goals = _goals(figures, peers, many, churned)
        return Measured("postgres", figures.all(), goals, notes)


_NOTES = [
    "Postgres 15 as it comes: every commit is on the disk before it is confirmed",
    "tasks/s: draining a full queue with one worker, seen in the store, from the first to the last",
    f"Onward with {SLOTS} slots; graphile-worker and pgqueuer take 500 at a time",
    "graphile-worker and pgqueuer delete what is done; none of the peers but DBOS keeps results",
    "raw knows no counts, caps, keys or letters",
    "a step of Onward is a task, done by the worker of a queue; a step of DBOS is a call",
]


def _tell(bench: Bench, turn: int, what: str) -> None:
    bench.tell(f"round {turn + 1}/{bench.rounds}  {what}")


def _rows(what: str) -> Callable[[Postgres, int], int]:
    return lambda server, _: server.count(what)


def _flows(server: Postgres, figures: Figures) -> None:
    line = {"path": server.url, "steps": STEPS}
    server.empty()
    said = call("flow_engine:linear", **line, runs=RUNS, synchronous="full")
    figures.add(FLOW, "steps/s", said["rate"])
    server.empty()
    figures.add(DBOS_FLOW, "steps/s", call("dbos_peer:linear", **line, runs=60, at_once=10)["rate"])


def _crowded(bench: Bench, server: Postgres, figures: Figures, crowd: dict[str, int]) -> None:
    """What a task costs with few others, behind many, and where many have been before."""
    steady = {"path": server.url, "synchronous": "full", "seconds": SECONDS}

    def cost(what: str, backlog: int) -> None:
        for turn in range(bench.rounds):
            _tell(bench, turn, f"a task, {what}")
            said = call("engine:steady", **steady, backlog=backlog)
            figures.add(f"a task, {what}", "µs/task", said["cost_us"])

    server.empty()
    call("engine:preload", path=server.url, synchronous="full", backlog=FEW)
    cost(f"{FEW:,} queued", FEW)
    for done in range(0, crowd["churned"], PIECE):
        bench.tell(f"{done:,} of {crowd['churned']:,} tasks of churn")
        call("engine:churn", path=server.url, tasks=PIECE)
    cost(f"after {crowd['churned']:,}", FEW)
    server.empty()
    for queued in range(PIECE, crowd["queued"] + 1, PIECE):
        bench.tell(f"queueing {queued:,} of {crowd['queued']:,}")
        call("engine:preload", path=server.url, synchronous="full", backlog=queued)
    cost(f"{crowd['queued']:,} queued", crowd["queued"])


def _goals(figures: Figures, peers: dict[str, Peer], many: int, churned: int) -> list[Goal]:
    rate, median = figures.median(ONWARD), figures.median
    few = median(f"a task, {FEW:,} queued")
    return [
        *(
            Goal(f"{ONWARD} / {name}", rate / median(name), 1)
            for name, peer in peers.items()
            if not peer.own
        ),
        Goal(f"{ONWARD} / raw, draining", rate / median(RAW), OF_RAW),
        *(
            Goal(f"idle, {where}, p50", median(idle_name(ONWARD, where)), IDLE_MS, True, "ms")
            for where in (OWN, APART)
        ),
        Goal("flow steps, Onward / DBOS", median(FLOW) / median(DBOS_FLOW), OF_DBOS),
        Goal(
            f"a task, {many:,} / {FEW:,} queued",
            median(f"a task, {many:,} queued") / few,
            GROWTH,
            True,
        ),
        Goal(
            f"a task, after {churned:,} / on an empty table",
            median(f"a task, after {churned:,}") / few,
            GROWTH,
            True,
        ),
    ]
