"""The summariser: well answered, badly answered, not answered, and with nobody to ask."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic import ValidationError

from onward.core.errors import Invalid
from onward.core.task import FINAL, State, Task
from onward.faults import LONGEST_DELAY_MS
from onward.settings import Settings
from onward.workers.local import shipped
from onward.workers.local.shipped.failure import retry_after_ms
from onward.workers.local.shipped.summarize import MOST_CHARS, MOST_WRITTEN, Endpoint
from tests.running_app import App, running_app
from tests.support import wait_until
from tests.workers.endpoint import (
    DONE,
    GOOD,
    KEY,
    Answer,
    ChatEndpoint,
    chunk,
    completion,
    endpoint,
    refusal,
    streamed,
    whole,
)

pytestmark = pytest.mark.contract("S3-12")

DAY = "Tue, 14 Nov 2023"
TEXT = "Onward keeps tasks in a ledger. A worker that dies loses its lease. Another one takes over."


@asynccontextmanager
async def asking(*answers: Answer, **settings: Any) -> AsyncIterator[tuple[App, ChatEndpoint]]:
    async with (
        endpoint(*answers) as chat,
        running_app(
            builtin_worker=True,
            openrouter_api_key=KEY,
            openrouter_base_url=chat.url,
            openrouter_model="some/model",
            **settings,
        ) as app,
    ):
        yield app, chat


async def submit(app: App, content: str = TEXT) -> str:
    return await app.submit("summarize", payload={"content": content})


async def read(app: App, id: str) -> Task:
    (task,) = await app.onward.backend.tasks.get([id])
    assert task is not None
    return task


async def attempted(app: App, id: str, attempts: int = 1) -> Task:
    """The task when so many attempts are behind it."""
    async with asyncio.timeout(30):
        while True:
            task = await read(app, id)
            if task.failures >= attempts or task.state in FINAL:
                return task
            await asyncio.sleep(0.005)


async def summary_of(app: App, id: str) -> dict[str, Any]:
    task = await attempted(app, id, attempts=99)
    assert task.state is State.SUCCEEDED, task.error
    result: dict[str, Any] = json.loads(task.result or "null")
    return result


async def test_a_model_writes_it_and_its_words_are_seen_as_they_come() -> None:
    words = [chunk(f"word number {n} of the summary, ") for n in range(12)]
    usage = {"prompt_tokens": 20, "completion_tokens": 40, "total_tokens": 60}
    last = {**chunk(), "choices": [], "usage": usage}
    async with asking(streamed(*words, chunk(ended="stop"), last, DONE)) as (app, chat):
        id = await submit(app)
        result = await summary_of(app, id)
        events = await app.events(id)
    assert result["summary"].startswith("word number 0")
    assert result["summary"].endswith("word number 11 of the summary,")
    assert (result["model"], result["offline"]) == ("some/model-v2", False)
    assert result["usage"] == usage
    pieces = [event["data"] for event in events if event["type"] == "task.chunk"]
    assert 2 <= len(pieces) < 12
    assert "".join(pieces).strip() == result["summary"]
    assert any(event["type"] == "task.progress" for event in events)
    (request,) = chat.requests
    assert request["stream"] is True
    assert request["model"] == "some/model"
    assert request["messages"][-1] == {"role": "user", "content": TEXT}
    assert chat.keys == [f"bearer {KEY}"]


async def test_an_endpoint_that_does_not_stream_is_understood() -> None:
    async with asking(whole(200, completion("In short."))) as (app, _):
        result = await summary_of(app, await submit(app))
    assert result["summary"] == "In short."
    assert result["usage"]["total_tokens"] == 12


RETRIED = [
    pytest.param(refusal(429), "RateLimitError", 60_000, id="429"),
    pytest.param(refusal(500), "ServiceUnavailable", 5_000, id="500"),
    pytest.param(refusal(502), "ServiceUnavailable", 5_000, id="502"),
    pytest.param(refusal(503), "ServiceUnavailable", 5_000, id="503"),
    pytest.param(refusal(504), "NetworkTimeout", 2_000, id="504"),
    pytest.param(streamed(chunk("half"), then="cut"), "ServiceUnavailable", 5_000, id="cut"),
    pytest.param(streamed(chunk("half")), "ServiceUnavailable", 5_000, id="no end"),
    pytest.param(
        streamed(chunk("half"), {"error": {"code": 429, "message": "slower"}}),
        "RateLimitError",
        60_000,
        id="told inside",
    ),
    pytest.param(
        whole(200, '{"error": {"message": "overloaded", "code": 503}}'),
        "ServiceUnavailable",
        5_000,
        id="told inside, whole",
    ),
    pytest.param(streamed(chunk(ended="stop"), DONE), "EmptyAnswer", 5_000, id="empty"),
    pytest.param(whole(200, "<html>", kind="text/html"), "BadAnswer", 5_000, id="a page"),
    pytest.param(whole(200, "{not json"), "BadAnswer", 5_000, id="not JSON"),
    pytest.param(whole(200, "[1]"), "BadAnswer", 5_000, id="other JSON"),
    pytest.param(streamed("data: {not json\n\n"), "BadAnswer", 5_000, id="not JSON inside"),
]


@pytest.mark.contract("S3-10", "R-5")
@pytest.mark.parametrize(("answer", "kind", "delay_ms"), RETRIED)
async def test_what_may_go_better_is_tried_again_on_its_schedule(
    answer: Answer, kind: str, delay_ms: int
) -> None:
    async with asking(answer, GOOD) as (app, chat):
        id = await submit(app)
        task = await attempted(app, id)
        assert task.state is State.SCHEDULED, task
        assert json.loads(task.error or "{}")["kind"] == kind
        assert task.run_at is not None
        assert delay_ms <= task.run_at - app.clock.now() <= delay_ms * 1.1
        assert len(chat.requests) == 1, "the client tried again by itself"
        await app.advance(int(delay_ms * 1.1) + 1)
        await wait_until(lambda: len(chat.requests) == 2)
        assert (await summary_of(app, id))["summary"] == "It is short."


REFUSED = [
    pytest.param(refusal(400), "InvalidInput", id="400"),
    pytest.param(refusal(401), "AuthError", id="401"),
    pytest.param(refusal(402), "InvalidInput", id="402"),
    pytest.param(refusal(403), "PermissionDenied", id="403"),
    pytest.param(refusal(404), "NotFound", id="404"),
    pytest.param(streamed(chunk(ended="content_filter"), DONE), "ContentFiltered", id="filtered"),
]


@pytest.mark.contract("S3-10", "R-5")
@pytest.mark.parametrize(("answer", "kind"), REFUSED)
async def test_what_will_not_go_better_is_dead_at_once(answer: Answer, kind: str) -> None:
    async with asking(answer) as (app, chat):
        task = await attempted(app, await submit(app))
    assert task.state is State.DEAD
    assert json.loads(task.error or "{}")["kind"] == kind
    assert len(chat.requests) == 1


@pytest.mark.contract("S3-10")
@pytest.mark.parametrize(
    ("header", "least_ms"),
    [
        ("retry-after: 900", 900_000),
        ("retry-after-ms: 700000", 700_000),
        (
            "retry-after: Tue, 14 Nov 2023 23:00:00 GMT\r\ndate: Tue, 14 Nov 2023 22:30:00 GMT",
            1_800_000,
        ),
    ],
)
async def test_an_endpoint_that_says_when_to_come_back_is_believed(
    header: str, least_ms: int
) -> None:
    async with asking(refusal(429, header)) as (app, _):
        task = await attempted(app, await submit(app))
        assert task.run_at == app.clock.now() + least_ms
    assert json.loads(task.error or "{}")["retry_after_ms"] == least_ms


async def test_silence_is_a_timeout_and_so_is_a_line_kept_open_with_comments() -> None:
    silent = streamed(chunk("half"), then="hang")
    chatty = streamed(*[": still here\n\n"] * 200, every=0.01)
    for answer in (silent, chatty):
        async with asking(answer, openrouter_timeout_s=0.15) as (app, _):
            task = await attempted(app, await submit(app))
        assert json.loads(task.error or "{}")["kind"] == "NetworkTimeout"
        assert task.state is State.SCHEDULED


async def test_slow_but_steady_writing_is_no_timeout() -> None:
    words = [chunk(f"{n} ") for n in range(24)]
    steady = streamed(*words, chunk(ended="stop"), DONE, every=0.1)
    async with asking(steady, openrouter_timeout_s=2) as (app, _):
        assert (await summary_of(app, await submit(app)))["summary"].endswith("23")


async def test_an_unreachable_address_is_worth_another_try() -> None:
    async with asking() as (app, chat):
        pass
    async with running_app(
        builtin_worker=True, openrouter_api_key=KEY, openrouter_base_url=chat.url
    ) as app:
        task = await attempted(app, await submit(app))
    assert task.state is State.SCHEDULED
    assert json.loads(task.error or "{}")["kind"] == "ServiceUnavailable"


async def test_the_key_is_in_no_error_event_log_or_representation(
    capfd: pytest.CaptureFixture[str],
) -> None:
    message = f"Incorrect API key provided: {KEY}. Ask for another."
    async with asking(refusal(401, message=message)) as (app, _):
        id = await submit(app)
        task = await attempted(app, id)
        events = (await app.get(f"/api/v2/tasks/{id}/events")).text
        told = (await app.get(f"/api/v2/tasks/{id}")).text
        settings = repr(app.onward.settings)
    assert "Ask for another" in (task.error or "")
    assert repr(Endpoint(KEY, "http://x", "m", 1)).count("sk-") == 0
    said = capfd.readouterr()
    for text in (repr(task), events, told, settings, said.out, said.err):
        assert KEY not in text


async def test_a_long_text_is_cut_and_a_long_answer_stopped() -> None:
    endless = streamed(*[chunk("x" * 999 + " ")] * 60, chunk(ended="stop"), DONE)
    async with asking(endless) as (app, chat):
        result = await summary_of(app, await submit(app, "word " * 50_000))
    assert len(chat.requests[0]["messages"][-1]["content"]) == MOST_CHARS
    assert result["note"] == f"only the first {MOST_CHARS} of 250000 characters were read"
    assert len(result["summary"]) <= MOST_WRITTEN


async def test_white_space_is_not_sent_to_anybody() -> None:
    async with asking() as (app, chat):
        result = await summary_of(app, await submit(app, " \n "))
    assert (result["summary"], chat.requests) == ("", [])


async def test_one_connection_serves_one_summary_after_another() -> None:
    async with asking() as (app, chat):
        for _ in range(3):
            await summary_of(app, await submit(app))
        assert len(chat.requests) == 3


@pytest.mark.parametrize("key", ["", "  "])
async def test_without_a_key_it_is_written_offline_and_says_so(key: str) -> None:
    async with (
        endpoint() as chat,
        running_app(
            builtin_worker=True, openrouter_api_key=key, openrouter_base_url=chat.url
        ) as app,
    ):
        result = await summary_of(app, await submit(app))
    assert chat.requests == []
    assert result["offline"] is True
    assert result["model"] == "extractive"
    assert "OPENROUTER_API_KEY" in result["note"]
    assert result["summary"] in TEXT


async def test_a_megabyte_offline_does_not_hold_the_server_up() -> None:
    text = (TEXT + " ") * 10_000
    async with running_app(builtin_worker=True) as app:
        id = await submit(app, text[:900_000])
        turns = 0
        while (await read(app, id)).state not in FINAL:
            await asyncio.sleep(0)
            turns += 1
        result = await summary_of(app, id)
    assert turns > 10, "it was done on the event loop"
    assert 0 < len(result["summary"]) < 1_000


@pytest.mark.contract("N-11", "S3-1")
@pytest.mark.parametrize("payload", [{}, {"content": ""}, {"content": 1}, {"content": None}, []])
async def test_it_is_declared_and_a_bad_payload_is_refused_at_the_door(payload: Any) -> None:
    async with running_app(builtin_worker=True) as app:
        response = await app.post("/api/v2/tasks", {"type": "summarize", "payload": payload})
        services = (await app.get("/api/v2/services")).json()["items"]
    assert response.status_code == 422, response.text
    assert "summarize" in [service["name"] for service in services]


def test_a_key_without_the_package_stops_the_start_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onward.workers.local.shipped.summarize.find_spec", lambda name: None)
    with pytest.raises(Invalid, match="openai package") as raised:
        shipped.services(Settings(openrouter_api_key=KEY))
    assert "pip install 'onward[openai]'" in (raised.value.hint or "")


def test_the_package_is_not_loaded_before_it_is_needed() -> None:
    code = (
        "import sys; from onward.settings import Settings; "
        "from onward.workers.local import shipped; "
        f"made = shipped.services(Settings(openrouter_api_key={KEY!r})); "
        "assert 'openai' not in sys.modules, made"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.contract("R-9")
@pytest.mark.parametrize("url", ["", "openrouter.ai", "ftp://x", "https://"])
def test_an_address_that_is_none_stops_the_start(url: str) -> None:
    with pytest.raises(ValidationError, match="openrouter_base_url"):
        Settings(openrouter_base_url=url)


def test_when_to_come_back() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert retry_after_ms({"retry-after": "1.5"}) == 1_500
    assert 90_000 < (retry_after_ms({"retry-after": soon}) or 0) <= 100_000
    assert retry_after_ms({"retry-after": "1" + "0" * 40}) == LONGEST_DELAY_MS
    for odd in ("-5", "0", "nan", "soon", "Mon, 99 Foo", ""):
        assert retry_after_ms({"retry-after": odd}) is None
    assert retry_after_ms({}) is None


def test_settings_do_not_show_the_key() -> None:
    assert KEY not in repr(Settings(openrouter_api_key=KEY))
    assert KEY not in str(Settings(openrouter_api_key=KEY))
