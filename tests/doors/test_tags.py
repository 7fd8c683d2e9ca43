"""Tags: words to find a task by."""

from __future__ import annotations

from typing import Any

import pytest

from tests.running_app import running_app


@pytest.mark.contract("B-4")
async def test_tasks_are_listed_by_all_the_tags_that_are_given() -> None:
    async with running_app() as app:
        both = await app.submit("mail", tags=["red", "blue", "red"])
        red = await app.submit("mail", tags=["red"])
        await app.submit("mail")

        async def tagged(*tags: str) -> list[str]:
            query = "&".join(f"tag={tag}" for tag in tags)
            items = (await app.get(f"/api/v2/tasks?{query}")).json()["items"]
            return [each["id"] for each in items]

        assert (await app.task(both))["tags"] == ["blue", "red"]
        assert await tagged("red") == [red, both]
        assert await tagged("red", "blue") == [both]
        assert await tagged("green") == []


@pytest.mark.contract("B-4")
@pytest.mark.parametrize("tags", [[str(n) for n in range(17)], ["x" * 65], [""], "red", [1]])
async def test_too_many_or_too_long_tags_are_refused(tags: Any) -> None:
    async with running_app() as app:
        refused = await app.post("/api/v2/tasks", {"type": "mail", "tags": tags})
        assert refused.status_code == 422
        most = await app.submit("mail", tags=["x" * 64, *map(str, range(15))])
        assert len((await app.task(most))["tags"]) == 16


@pytest.mark.contract("B-4")
async def test_tasks_are_listed_by_time_and_without_what_is_left_out() -> None:
    async with running_app() as app:
        old = await app.submit("mail", session_id="ann", tags=["red"])
        await app.advance(1_000)
        new = await app.submit("report", queue="slow")
        at = (await app.task(new))["created_at"]

        async def listed(query: str) -> list[str]:
            items = (await app.get(f"/api/v2/tasks?{query}")).json()["items"]
            return [each["id"] for each in items]

        assert await listed(f"created_after={at}") == [new]
        assert await listed(f"created_before={at}") == [old]
        assert await listed("finished_after=0") == []
        assert await listed("not_type=mail&not_type=other") == [new]
        assert await listed("not_queue=slow") == [old]
        assert await listed("not_session=ann") == [new]
        assert await listed("not_tag=red") == [new]
        assert await listed("not_batch=b&not_partition=p") == [new, old]
        assert (await app.get("/api/v2/tasks?created_after=soon")).status_code == 422
