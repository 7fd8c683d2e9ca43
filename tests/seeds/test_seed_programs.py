"""Programs that know one seed each, in plain redis-py, against a real server in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.processes import HTTP, Process, Server, serving
from tests.servers import fresh_url
from tests.support import poll_until

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"
OVER = ("succeeded", "failed", "dead", "canceled")


class Seeds:
    def __init__(self, server: Server, redis_url: str, folder: Path) -> None:
        self.server = server
        self.url = redis_url
        self.redis: Any = redis.Redis.from_url(redis_url, decode_responses=True)
        self._folder = folder
        self.started: list[Process] = []

    def start(self, program: str, *arguments: str) -> Process:
        log = self._folder / f"{program}-{len(self.started)}.log"
        path = str(PROGRAMS / f"{program}.py")
        self.started.append(Process(sys.executable, path, self.url, *arguments, log=log))
        return self.started[-1]

    def printed(self, program: str, *arguments: str) -> Any:
        command = [sys.executable, str(PROGRAMS / f"{program}.py"), self.url, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, **body: Any) -> str:
        response = HTTP.post(f"{self.server.url}/api/v2/tasks", json=body)
        assert response.status_code in (200, 202), response.text
        return str(response.json()["id"])

    def read(self, path: str) -> Any:
        return HTTP.get(f"{self.server.url}{path}").json()

    def over(self, task: str) -> Any:
        return poll_until(
            lambda: self.read(f"/api/v2/tasks/{task}"), holds=lambda it: it["state"] in OVER
        )

    def types(self, task: str) -> list[str]:
        return [one["type"] for one in self.read(f"/api/v2/tasks/{task}/events")["items"]]


Open = Callable[..., Seeds]


@pytest.fixture
def seeds(tmp_path: Path) -> Iterator[Open]:
    opened: list[Seeds] = []
    servers: list[Any] = []

    def open_(**env: Any) -> Seeds:
        url = fresh_url("valkey")
        context = serving(tmp_path, ledger=url, ONWARD_ARCHIVE="", **env)
        servers.append(context)
        opened.append(Seeds(context.__enter__(), url, tmp_path))
        return opened[-1]

    try:
        yield open_
    finally:
        for one in opened:
            for process in one.started:
                process.kill()
            one.redis.close()
        for context in servers:
            context.__exit__(None, None, None)


@pytest.mark.contract("S1-2", "S1-4", "S1-6", "S1-7", "S1-8", "S1-9", "S1-12")
def test_a_worker_of_the_first_seed_passes_its_acceptance_criteria(seeds: Open) -> None:
    # The lease is long: nobody is reclaimed for a slow machine. The one that is killed is made
    # silent by hand.
    here = seeds(
        VISIBILITY_TIMEOUT_S=60, ONWARD_RETRY_SCHEDULES='{"protocol": [0.05]}', MAX_RETRIES=3
    )
    first = here.start("worker_001", "w-1", "60")
    done = here.submit(type="double", queue="streams", payload={"n": 21})
    assert here.over(done)["result"] == {"doubled": 42}
    life = ["task.created", "task.claimed", "task.delivered", "task.succeeded"]
    assert here.types(done)[:4] == life
    flaky = here.submit(type="flaky", queue="streams", payload={"n": 1})
    assert here.over(flaky)["failures"] == 2
    hopeless = here.submit(type="hopeless", queue="streams", payload={"n": 1})
    assert here.over(hopeless)["state"] == "dead"
    types = here.types(hopeless)
    assert (types.count("task.retrying"), types.count("task.dlq")) == (3, 1)
    ((_, letter),) = poll_until(lambda: here.redis.xrange("stream:dlq"))
    wanted = {"task_id": hopeless, "tool_name": "hopeless", "error": "hopeless failed"}
    assert letter.items() >= {**wanted, "retry_count": "4", "payload": '{"n":1}'}.items()

    stuck = here.submit(type="stuck", queue="streams", payload={"n": 3}, idempotency_key="once")
    again = here.submit(type="stuck", queue="streams", payload={"n": 3}, idempotency_key="once")
    assert again == stuck, "one key, one task"
    poll_until(lambda: here.redis.exists("stuck-once"))
    poll_until(lambda: "task.delivered" in here.types(stuck))  # the server knows who has it
    first.kill()
    ((entry, _),) = here.redis.xrange("stream:task")
    here.redis.xclaim("stream:task", "cg:workers", "w-1", 0, [entry], idle=60_000, justid=True)
    here.start("worker_001", "w-2", "60")
    assert here.over(stuck)["result"] == {"doubled": 6}
    assert "task.reclaimed" in here.types(stuck)
    assert here.redis.hgetall("effects") == {"double": "1", "flaky": "1", "stuck": "1"}
    poll_until(lambda: here.redis.xlen("stream:task") == 0)
    assert here.redis.xpending("stream:task", "cg:workers")["pending"] == 0


@pytest.mark.contract("S2-2", "S2-3", "S2-5", "S2-6")
def test_an_agent_and_a_service_of_the_second_seed_work_together(seeds: Open) -> None:
    here = seeds()
    here.start("service_002", "report-service-worker-1")
    seen = here.printed("agent_002", "user-123")
    assert seen["good"] == {
        "end": "success", "told": "task_completed", "status": "completed", "error": None,
        "cached": {"file_url": "https://storage/report.pdf", "summary": "Q4"}, "lives_a_day": True,
    }  # fmt: skip
    error = {"code": "INSUFFICIENT_DATA", "message": "Not enough data", "details": {}}
    assert seen["bad"] == {
        "end": "failed", "told": "task_failed", "status": "failed", "error": error,
        "cached": None, "lives_a_day": True,
    }  # fmt: skip
    tasks = here.read("/api/v2/sessions/user-123/tasks")["items"]
    assert sorted(task["state"] for task in tasks) == ["dead", "succeeded"]


@pytest.mark.contract("S2-3")
def test_a_service_of_the_second_seed_does_what_our_tools_hand_off(seeds: Open) -> None:
    here = seeds()
    declared = {"name": "report", "task_types": ["report.generate"], "via": "agent-stream"}
    HTTP.post(f"{here.server.url}/api/v2/services", json=declared)
    here.start("service_002", "report-service-worker-1")
    asked = {"task_type": "report.generate", "parameters": {"quarter": "Q1"}, "session_id": "s"}
    tool = HTTP.post(f"{here.server.url}/api/v2/tools/report_task_tool", json=asked).json()
    assert here.over(tool["task_id"])["result"]["summary"] == "Q1"


@pytest.mark.contract("S2-3", "S2-12")
def test_a_consumer_group_that_grows_does_each_task_once(seeds: Open) -> None:
    here = seeds()
    names = [f"report-service-worker-{n}" for n in range(1, 5)]
    body = {"type": "report.generate", "queue": "agents", "payload": {"quarter": "Q2"}}
    first = [here.submit(**body) for _ in range(20)]
    for name in names[:2]:
        here.start("service_002", name)
    for task in first:
        assert here.over(task)["attempt"] == 1
    for name in names[2:]:
        here.start("service_002", name)
    create, group = "agent:stream:task.create", "report-service-group"

    def consumers() -> set[str]:
        return {one["name"] for one in here.redis.xinfo_consumers(create, group)}

    poll_until(lambda: consumers() >= set(names))
    second = [here.submit(**body) for _ in range(100)]
    for task in second:
        assert here.over(task)["attempt"] == 1
    ends = here.redis.xrange("agent:stream:task.completed")
    done = [json.loads(event["data"])["task_id"] for _, event in ends]
    assert sorted(done) == sorted(first + second), "each once"


@pytest.mark.contract("S3-14", "R-4")
def test_a_reader_of_the_third_seed_finds_every_field_and_number(seeds: Open) -> None:
    here = seeds()

    def submitted(text: str) -> str:
        body = {"content": text}
        response = HTTP.post(f"{here.server.url}/api/v1/tasks/summarize/", json=body)
        return str(response.json()["task_id"])

    tasks = [submitted(f"text {n}") for n in range(3)]
    poll_until(lambda: here.redis.lrange("tasks:pending:primary", 0, -1) == tasks)
    poll_until(lambda: here.redis.hget("metrics:tasks:by_state", "PENDING") == "3")
    seen = here.printed("reader_003", tasks[1])
    assert (seen["detail"]["state"], seen["detail"]["content"]) == ("PENDING", "text 1")
    assert seen["history"] == []
    assert seen["queues"] == {"primary": 3, "retry": 0, "scheduled": 0, "dlq": 0}
    assert seen["depths"] == {name: str(count) for name, count in seen["queues"].items()}
    assert seen["states"] == {"PENDING": 3}
    assert {name: int(count) for name, count in seen["by_state"].items() if count != "0"} == {
        "PENDING": 3
    }
    status = here.read("/api/v1/queues/status")
    assert status["queues"] == seen["queues"]
