"""`onward redis acl` on real servers: a user of these rules does the whole work of its role, and is
refused everything else (seed 002, section 10).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio
from redis.exceptions import NoPermissionError, ResponseError

from onward.cli.checkup import BAD
from onward.cli.redis_checkup import examine_redis
from onward.client.worker import Worker
from onward.doors.redis_roles import Role
from onward.settings import Settings
from onward.wire.streams import text_of
from tests.agents.agent_app import COMPLETED, CREATE, FAILED, AgentApp, open_agent_app
from tests.e2e.shell import run
from tests.servers import FLAVOURS, RedisServer, shared
from tests.support import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.contract("S2-9")]

PREFIX = "{onward}:"
PASSWORD = "secret"


class Users:
    """A Redis with a user for each role, made of exactly what the command prints."""

    def __init__(self, server: RedisServer, lines: Mapping[str, str]) -> None:
        self.server = server
        self.admin = cast("Any", server.client)
        for role, line in lines.items():
            self.admin.execute_command(*line.split(), f">{PASSWORD}")
            assert line.split()[2] == f"onward-{role}"
        self.admin.execute_command("ACL", "LOG", "RESET")

    def url(self, role: str) -> str:
        return f"unix://onward-{role}:{PASSWORD}@{self.server.socket}"

    @asynccontextmanager
    async def as_(self, role: str) -> AsyncIterator[Any]:
        client = redis.asyncio.Redis.from_url(self.url(role), protocol=2)
        try:
            yield client
        finally:
            await client.aclose()

    def refused(self) -> list[str]:
        """What the roles were refused, as Redis itself counts it."""
        log = self.admin.acl_log()
        return [f"{text_of(entry['username'])} {text_of(entry['object'])}" for entry in log]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    arguments = ("redis", "acl", "--prefix", PREFIX)
    printed = run(*arguments, cwd=tmp_path_factory.mktemp("acl"))
    assert (printed.returncode, printed.stderr) == (0, "")
    return dict(zip(Role, printed.stdout.splitlines(), strict=True))


@pytest.fixture(params=FLAVOURS)
def users(request: pytest.FixtureRequest, lines: Mapping[str, str]) -> Iterator[Users]:
    server = shared(request.param)
    server.client.flushall()
    users = Users(server, lines)
    yield users
    users.admin.execute_command("ACL", "LOG", "RESET")
    for role in lines:
        users.admin.acl_deluser(f"onward-{role}")


@asynccontextmanager
async def served(users: Users, **settings: Any) -> AsyncIterator[AgentApp]:
    """A server whose ledger and streams are in this Redis, with the rights of its role alone."""
    url = users.url("server")
    async with open_agent_app(
        "redis", redis_url=url, redis_prefix=PREFIX, redis_volatile=True, **settings
    ) as app:
        yield app


async def test_a_server_lives_its_whole_life_by_its_rules(users: Users, tmp_path: Path) -> None:
    async with served(users, stream_types=["slow"]) as app:
        # The ledger: work that ends, fails, waits, is canceled, replayed and deleted.
        done, failed = await app.submit(type="a", queue="streams"), await app.submit(type="slow")
        later = await app.submit(type="a", queue="streams", delay_ms=3_600_000)
        held = await app.submit(type="a", requires_approval=True)
        for _ in range(2):
            entry, fields = await app.take()
            answer = {"task_id": fields["task_id"], "fence": fields["fence"], "result": "1"}
            answer["status"] = "succeeded" if fields["task_id"] == done else "failed"
            await app.redis.xadd("stream:result", {**answer, "retryable": "false"})
            await app.redis.xack("stream:task", "cg:workers", entry)
        assert (await app.over(done))["state"] == "succeeded"
        assert (await app.over(failed))["state"] == "dead"
        await app.http.post(f"/api/v2/tasks/{failed}/retry", json={})
        await app.cancel(later)
        await app.http.post(f"/api/v2/approvals/{held}/reject", json={"by": "ada"})
        await app.http.delete(f"/api/v2/tasks/{later}")
        # The views of the tasks door, and what a producer puts there.
        admin, task = users.admin, f"{PREFIX}task:from-outside"
        admin.hset(task, mapping={"content": "a text"})
        admin.rpush(f"{PREFIX}tasks:pending:primary", "from-outside")
        admin.set(f"{PREFIX}dlq:tasks", "of another type")
        await app.known("from-outside")
        await wait_until(lambda: admin.hget(f"{PREFIX}metrics:tasks:by_state", "PENDING"))
        # A session's task, over the agents' streams.
        await app.join()
        asked = await app.ask()
        entry, event = await app.get()
        await app.finish(entry, event["data"]["task_id"], {"pages": 3})
        assert (await app.over(asked))["state"] == "succeeded"
        assert (await app.notices())[0]["data"]["task_id"] == asked
        await wait_until(lambda: admin.exists(f"{PREFIX}task:{asked}:result"))
        for path in ("/health", "/metrics", "/api/v2/queues", "/api/v2/sessions/user-123/tasks"):
            assert (await app.http.get(path)).status_code == 200, path
        settings = Settings(ledger=users.url("server"), redis_prefix=PREFIX)
        unwell = [
            one for one in await asyncio.to_thread(list, examine_redis(settings)) if one.mark == BAD
        ]
        assert {one.about for one in unwell} == {"durability"}, unwell
    copied = run(
        *("db", "backup", str(tmp_path / "backup"), "--ledger", users.url("server")),
        cwd=tmp_path, ONWARD_REDIS_PREFIX=PREFIX,
    )  # fmt: skip
    assert copied.returncode == 0, copied.stderr
    assert set(users.refused()) <= {"onward-server config|get"}


@pytest.mark.parametrize(("role", "queue"), [("worker", "streams"), ("service", "agents")])
async def test_a_worker_over_streams_does_its_work_by_its_rules(
    users: Users, role: str, queue: str
) -> None:
    stopped = asyncio.Event()
    worker = Worker()

    @worker.service
    async def greet(name: str) -> str:
        return f"hello {name}"

    @worker.service
    async def wait_for_cancel() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with served(users) as app:
        serving = asyncio.create_task(worker.serve(redis=users.url(role), agents=role == "service"))
        try:
            await wait_until(lambda: worker.connected)
            done = await app.submit(type="greet", queue=queue, payload={"name": "Ada"})
            assert (await app.over(done))["result"] == "hello Ada"
            wrong = await app.submit(type="greet", queue=queue, payload={"nome": 1})
            assert (await app.over(wrong))["state"] == "dead"
            endless = await app.submit(type="wait_for_cancel", queue=queue)
            await app.phase(endless, "running")
            await app.cancel(endless)
            await asyncio.wait_for(stopped.wait(), 30)
            assert (await app.over(endless))["state"] == "canceled"
            if role == "worker":
                users.admin.xadd("stream:task", {"tool_name": "greet"})  # no task_id: a dead letter
                await wait_until(lambda: users.admin.xlen("stream:dlq") >= 2)
            worker.drain()
            await asyncio.wait_for(serving, 30)
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
    assert [one for one in users.refused() if role in one] == []


async def test_a_service_with_a_stream_of_its_own_may_read_no_other(
    users: Users, tmp_path: Path
) -> None:
    arguments = ("redis", "acl", "service", "--user", "onward-reports", "--service", "report")
    line = run(*arguments, cwd=tmp_path).stdout
    users.admin.execute_command(*line.split(), f">{PASSWORD}")
    own = "agent:stream:task.create:report"
    async with users.as_("reports") as client:
        await client.xgroup_create(own, "report-group", mkstream=True)
        assert await client.xreadgroup("report-group", "w", {own: ">"}) == []
        for other in (CREATE, f"{CREATE}:mail", f"{own}s"):
            with pytest.raises(NoPermissionError):
                await client.xreadgroup("report-group", "w", {other: ">"})
    users.admin.acl_deluser("onward-reports")


async def test_an_agent_and_a_service_do_their_work_by_their_rules(users: Users) -> None:
    async with served(users) as app, users.as_("agent") as agent, users.as_("service") as service:
        group, name, session = "report-service-group", "worker-1", "user-123"
        await service.xgroup_create(CREATE, group, id="0", mkstream=True)
        server, app.redis = app.redis, agent
        first, second = await app.ask(), await app.ask()
        await agent.set(f"{PREFIX}task:{first}", json.dumps({"status": "pending"}), ex=86_400)
        await agent.sadd(f"{PREFIX}session:{session}:tasks", first, second)
        await agent.expire(f"{PREFIX}session:{session}:tasks", 86_400)
        app.redis = service
        for finish in (app.finish, app.fail_with):
            reply = await service.xreadgroup(group, name, {CREATE: ">"}, count=1, block=30_000)
            ((entry, fields),) = reply[0][1]
            task = json.loads(fields[b"data"])["task_id"]
            await service.xclaim(CREATE, group, name, 0, [entry], justid=True)  # a heartbeat
            assert await service.mget(f"onward:cancel:{task}:1") == [None]
            await finish(None, task, "NO_DATA")
            await service.xack(CREATE, group, entry)
        app.redis = agent
        assert (await app.hear(COMPLETED))[0]["data"]["task_id"] in (first, second)
        assert (await app.hear(FAILED))[0]["data"]["error"]["code"] == "NO_DATA"
        notified = await app.notices(session, 2)
        assert {one["event_type"] for one in notified} == {"task_completed", "task_failed"}
        assert await agent.smembers(f"{PREFIX}session:{session}:tasks")
        record = f"{PREFIX}task:{first}"
        await wait_until(lambda: users.admin.type(record) == b"hash")
        assert (await agent.hgetall(record))[b"task_id"].decode() == first
        app.redis = server
    assert [one for one in users.refused() if "server" not in one] == []


EVERYONE_ELSES = (
    *("CONFIG GET *", "FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "DBSIZE", "INFO", "MONITOR"),
    *("FUNCTION LIST", "FUNCTION FLUSH", "FUNCTION DELETE onward4", "SCRIPT FLUSH"),
    *(
        "FCALL onward4_purge 1 {onward}: x",
        "ACL LIST",
        "ACL LOG",
        "CLIENT LIST",
        "CLIENT KILL TYPE normal",
    ),
    *("SHUTDOWN NOSAVE", "SAVE", "REPLICAOF NO ONE", "MODULE LIST", "RANDOMKEY", "SWAPDB 0 1"),
    *("GET {onward}:onward:epoch", "HGETALL {onward}:onward:task:x", "DEL {onward}:onward:epoch"),
    *(
        "HGETALL {onward}:onward:doc:key",
        "SET {onward}:onward:layout 9",
        "GET other",
        "SET other 1",
    ),
    *("PUBLISH {onward}:onward:bell x", "SUBSCRIBE {onward}:onward:bell", "PSUBSCRIBE *"),
    *(
        "SET onward:cancel:x:1 1",
        "SET onward:fed:streams x",
        "DEL onward:told:x",
        "XREAD STREAMS other 0",
    ),
    *("XADD other * a b", "RENAME stream:task other", "COPY stream:task other", "DUMP stream:task"),
    *("XTRIM stream:task MAXLEN 0", "DEL stream:task", "DEL agent:stream:task.create"),
    *("XGROUP DESTROY stream:task cg:workers", "XGROUP DESTROY agent:stream:task.create x-group"),
    *("XGROUP SETID stream:task cg:workers 0", "RPUSH {onward}:tasks:pending:primary x"),
    *("XADD agent:stream:task.dlq * a b", "XADD agent:stream:task.timeout * a b"),
    *("XADD user:stream:notifications:a * a b", "DEL user:stream:notifications:a"),
)
ON = {
    Role.WORKER: (
        *("XADD stream:task * a b", "XDEL stream:task 1-1", "XRANGE stream:result - +"),
        "XREADGROUP GROUP cg:onward x STREAMS stream:result >",
        "XADD agent:stream:task.create * a b",
        *("XACK stream:result cg:onward 1-1", "XDEL stream:dlq 1-1", "GET {onward}:task:x"),
        "XREADGROUP GROUP g x STREAMS agent:stream:task.create >",
        "XRANGE user:stream:notifications:a - +",
        "XADD agent:stream:task.completed * a b",
    ),
    Role.AGENT: (
        "XREADGROUP GROUP g x STREAMS agent:stream:task.create >",
        "XREADGROUP GROUP g x STREAMS agent:stream:task.create:report >",
        "XRANGE agent:stream:task.create - +",
        *("XADD agent:stream:task.completed * a b", "XADD agent:stream:task.failed * a b"),
        *("XADD stream:task * a b", "XADD stream:result * a b", "EVAL return(1) 0", "EVALSHA x 0"),
        *("XDEL agent:stream:task.completed 1-1", "DEL {onward}:task:x", "GET onward:cancel:x:1"),
        *("XREADGROUP GROUP cg:workers x STREAMS stream:task >", "DEL {onward}:session:a:tasks"),
    ),
    Role.SERVICE: (
        *("XADD agent:stream:task.create * a b", "XDEL agent:stream:task.create 1-1"),
        "XREADGROUP GROUP agent-group x STREAMS agent:stream:task.completed >",
        "XREADGROUP GROUP g x STREAMS agent:stream:task.create:other >",
        *("XRANGE agent:stream:task.completed - +", "XRANGE user:stream:notifications:a - +"),
        *("GET {onward}:task:x", "SMEMBERS {onward}:session:a:tasks", "XADD stream:result * a b"),
        "XREADGROUP GROUP cg:workers x STREAMS stream:task >",
    ),
}  # fmt: skip


@pytest.mark.parametrize("role", list(ON))
async def test_a_role_is_refused_everything_else(users: Users, role: Role) -> None:
    async with users.as_(role) as client:
        let_in = []
        for line in (*EVERYONE_ELSES, *ON[role]):
            try:
                await client.execute_command(*line.split())
            except NoPermissionError:
                continue
            except ResponseError as error:
                let_in.append(f"{line}: {error}")
            else:
                let_in.append(line)
        assert let_in == []
        assert users.refused(), "Redis keeps what it refused"


async def test_a_script_of_a_worker_may_do_no_more_than_the_worker(users: Users) -> None:
    async with users.as_("worker") as client:
        for inside in (
            "redis.call('XADD', 'stream:task', '*', 'a', 'b')",
            "redis.call('GET', '{onward}:onward:epoch')",
            "redis.call('DEL', 'stream:task')",
            "redis.call('XDEL', 'stream:task', '1-1')",
        ):
            with pytest.raises(
                ResponseError, match=r"(?i)permission|ACL failure|can't (access|run)"
            ):
                await client.eval(f"return {inside}", 1, "stream:task")
        with pytest.raises(NoPermissionError):
            await client.eval("return 1", 1, "{onward}:onward:epoch")


SERVER_IS_REFUSED = (
    *("CONFIG GET *", "CONFIG SET maxmemory 1", "FLUSHALL", "FLUSHDB", "KEYS *", "MONITOR"),
    *("FUNCTION FLUSH", "SCRIPT FLUSH", "ACL LIST", "ACL SETUSER x on", "SHUTDOWN"),
    *("SAVE", "CLIENT LIST", "MODULE LIST", "REPLICAOF NO ONE", "SWAPDB 0 1", "RANDOMKEY"),
    *("GET other", "SET other 1"),
    *("DEL other", "XADD stream:other * a b", "GET task:without-prefix"),
    *("PUBLISH other x", "SUBSCRIBE other"),
    *("HGETALL {other}:onward:doc:key", "SORT {onward}:dlq:tasks"),
)  # fmt: skip


async def test_a_server_is_refused_what_is_not_its_own(users: Users) -> None:
    async with users.as_("server") as client:
        for line in SERVER_IS_REFUSED:
            with pytest.raises(NoPermissionError):
                await client.execute_command(*line.split())


async def test_an_agent_reads_the_notifications_of_its_own_sessions(
    users: Users, tmp_path: Path
) -> None:
    arguments = ("redis", "acl", "agent", "--session", "bot-*", "--prefix", PREFIX)
    line = run(*arguments, cwd=tmp_path).stdout
    users.admin.execute_command(*line.split())  # without a password: it keeps the one that it has
    async with users.as_("agent") as client:
        assert await client.xrange("user:stream:notifications:bot-1") == []
        assert await client.smembers(f"{PREFIX}session:bot-1:tasks") == set()
        with pytest.raises(NoPermissionError):
            await client.xrange("user:stream:notifications:user-123")
        with pytest.raises(NoPermissionError):
            await client.smembers(f"{PREFIX}session:user-123:tasks")


def test_the_command_makes_a_password_and_refuses_what_cannot_be_a_rule(
    users: Users, tmp_path: Path
) -> None:
    made = run("redis", "acl", "worker", "--user", "gpu1", "--new-password", cwd=tmp_path)
    password = made.stderr.split()[3].rstrip(";")
    assert len(password) == 64
    assert password not in made.stdout
    users.admin.execute_command(*made.stdout.split())
    assert users.admin.execute_command("AUTH", "gpu1", password)
    users.admin.execute_command("AUTH", "default", "")
    users.admin.acl_deluser("gpu1")
    for wrong in (
        ["wurker"],
        ["--user", "x"],
        ["agent", "--session", "a ~*"],
        ["agent", "--user", "a\nb"],
    ):
        refused = run("redis", "acl", *wrong, cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, ""), wrong
