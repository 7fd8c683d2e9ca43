"""The kit for users' tests, used as they use it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import structlog

from onward import Context, Flow, Refused, Retry, TaskFailed, Worker
from onward.testing import Sandbox, sandbox

worker = Worker()


@worker.service(retry=Retry(max=3, first=timedelta(hours=1), factor=2, limit=timedelta(days=1)))
async def flaky(ctx: Context, until: int) -> int:
    if ctx.attempt < until:
        raise OSError("not yet")
    return ctx.attempt


@pytest.mark.contract("Y-4")
@pytest.mark.parametrize("_", [1, 2])
async def test_a_worker_of_a_module_serves_in_every_test(onward: Sandbox, _: int) -> None:
    await onward.serve(worker)

    assert await onward.client.run(flaky, until=1) == 1


@pytest.mark.contract("Y-4")
async def test_the_clock_jumps_to_what_is_due_next(onward: Sandbox) -> None:
    await onward.serve(worker)
    began = onward.now

    task = await onward.client.submit(flaky, until=3)
    first = await onward.jump()
    second = await onward.jump()

    assert await onward.client.result(task.id) == 3
    assert (first, second) == (began + timedelta(hours=1), began + timedelta(hours=3))
    assert await onward.jump() is None


@pytest.mark.contract("Y-4")
async def test_a_delay_is_over_after_a_jump(onward: Sandbox) -> None:
    await onward.serve(worker)
    later = onward.client.options(delay=timedelta(days=2))

    task = await later.submit(flaky, until=1)
    assert (await onward.client.get(task.id)).state == "scheduled"
    while await onward.jump():
        pass

    assert (await onward.client.get(task.id)).state == "succeeded"


@pytest.mark.contract("Y-4")
async def test_a_schedule_runs_when_the_clock_reaches_it(onward: Sandbox) -> None:
    tick = await onward.fake("tick", "tock")
    await onward.client.schedules.create("hourly", type="tick", every_ms=3_600_000)

    for _ in range(3):
        await onward.jump()
    done = await onward.client.list(type="tick")
    for task in done.items:
        await onward.client.wait(task.id)

    assert len(tick.calls) == 3


@pytest.mark.contract("Y-4")
async def test_a_service_can_be_faked_by_a_function_or_a_value(onward: Sandbox) -> None:
    def charge(amount: int) -> dict[str, Any]:
        if amount > 100:
            raise Refused("too much")
        return {"paid": amount}

    charges = await onward.fake("charge", charge)
    mails = await onward.fake("mail", {"sent": True})

    assert await onward.client.run("charge", {"amount": 7}) == {"paid": 7}
    with pytest.raises(TaskFailed, match="too much"):
        await onward.client.run("charge", {"amount": 700})
    assert await onward.client.run("mail", {"to": "ada"}) == {"sent": True}
    assert charges.calls == [{"amount": 7}, {"amount": 700}]
    assert mails.calls == [{"payload": {"to": "ada"}}]


@pytest.mark.contract("Y-4")
async def test_without_a_fixture_it_is_a_context_manager() -> None:
    async with Sandbox(max_retries=0) as onward:
        await onward.serve(worker)
        assert await onward.client.run(flaky, until=1) == 1


class TestWithOtherSettings:
    @pytest.fixture
    def onward_settings(self) -> dict[str, Any]:
        return {"max_queue_length": 1}

    @pytest.mark.contract("Y-4")
    async def test_a_fixture_names_them(self, onward: Sandbox) -> None:
        assert onward._settings.max_queue_length == 1


@pytest.mark.contract("Y-4")
async def test_a_run_has_gone_as_far_as_it_can_before_the_clock_jumps(onward: Sandbox) -> None:
    flow = Flow("release")
    flow.wait_event("paid") >> flow.approval("sign_off", reason="May it go out?")
    await onward.client.flows.publish(flow)
    for number in range(1, 6):
        run = await onward.client.flows.start("release")
        await onward.client.runs.signal(run.id, "paid")
        assert await onward.jump() is None, "nothing is due: it waits for a person"
        assert len((await onward.client.approvals()).items) == number


@worker.service(timeout=timedelta(minutes=5), max_retries=0)
async def hang() -> None:
    await asyncio.Event().wait()


@pytest.mark.contract("Y-4")
async def test_the_clock_can_move_past_the_timeout_of_what_runs(onward: Sandbox) -> None:
    await onward.serve(worker)
    task = await onward.client.submit(hang)

    await onward.jump(timedelta(minutes=4), while_running=True)
    assert (await onward.client.get(task.id)).state == "running"
    await onward.jump(timedelta(minutes=1), while_running=True)

    with pytest.raises(TaskFailed, match="timeout"):
        await onward.client.result(task.id)


@pytest.mark.contract("Y-4")
async def test_a_jump_names_what_still_runs(
    onward: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "REST_S", 0.1)
    await onward.serve(worker)
    task = await onward.client.submit(hang)

    with pytest.raises(TimeoutError, match=f"hang {task.id} still runs.*while_running=True"):
        await onward.jump(timedelta(hours=1))


@pytest.fixture
def plain_structlog() -> Iterator[None]:
    """As a user's test finds it, who has not configured it."""
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)


def _log_a_failure(payload: str) -> None:
    try:
        raise OSError("the disk is full")
    except OSError:
        structlog.get_logger("onward.test").exception("broke")


@pytest.mark.contract("Y-4")
@pytest.mark.usefixtures("plain_structlog")
async def test_what_the_server_logs_goes_to_the_tests_log_without_payloads(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Sandbox():
        _log_a_failure("secret")
    assert "broke" in caplog.text
    assert "OSError: the disk is full" in caplog.text
    shown = "".join(capsys.readouterr())
    assert "secret" not in shown + caplog.text


@pytest.mark.contract("Y-4")
@pytest.mark.usefixtures("plain_structlog")
async def test_a_log_that_a_program_has_configured_stays_as_it_is() -> None:
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    before = structlog.get_config()
    async with Sandbox():
        pass
    assert structlog.get_config() == before
