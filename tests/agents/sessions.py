"""The sessions of a running application: what they submit, and the notifications they get."""

from __future__ import annotations

from typing import Any, TypeVar

from tests.running_app import App, SocketWorker
from tests.support import wait_until

T = TypeVar("T")
TYPE = "report.generate"


class Sessions:
    def __init__(self, app: App) -> None:
        self.app = app

    async def submit(self, session: str | None = "s1", **more: Any) -> str:
        body = {"type": TYPE, "payload": {}, **more}
        if session is not None:
            body["session_id"] = session
        response = await self.app.post("/api/v2/tasks", body)
        assert response.status_code == 202, response.text
        task: str = response.json()["id"]
        return task

    async def worker(self) -> SocketWorker:
        return await self.app.worker(group=None, services=[TYPE], concurrency=8)

    async def succeed(self, session: str | None = "s1", **more: Any) -> str:
        """A task of this session, submitted and done."""
        task = await self.submit(session, **more)
        worker = await self.worker()
        while (await worker.task())["taskId"] != task:
            pass
        await worker.answer(task, {"pages": 3})
        await self.over(task)
        await worker.close()
        return task

    async def over(self, task: str) -> dict[str, Any]:
        async def ended() -> dict[str, Any] | None:
            found: dict[str, Any] = await self.app.task(task)
            return found if found["state"] in ("succeeded", "failed", "dead", "canceled") else None

        return await wait_until(ended)

    async def notices(self, session: str = "s1", **query: Any) -> list[dict[str, Any]]:
        path = f"/api/v2/sessions/{session}/notifications"
        response = await self.app.get(path, params=query)
        assert response.status_code == 200, response.text
        items: list[dict[str, Any]] = response.json()["items"]
        return items

    async def told(self, count: int, session: str = "s1") -> list[dict[str, Any]]:
        async def enough() -> list[dict[str, Any]] | None:
            found = await self.notices(session)
            return found if len(found) >= count else None

        return await wait_until(enough)

    async def ack(self, id: str, session: str = "s1") -> int:
        path = f"/api/v2/sessions/{session}/notifications/{id}/ack"
        return (await self.app.post(path, None)).status_code

    async def prefer(self, session: str = "s1", **wishes: Any) -> Any:
        return await self.app.http.put(f"/api/v2/sessions/{session}/preferences", json=wishes)

    def listen(self, session: str = "s1", **headers: str) -> SocketWorker:
        return SocketWorker(self.app.asgi, f"/ws/notifications/{session}", **headers)

    async def metric(self, name: str, **labels: str) -> float:
        wanted = ",".join(f'{key}="{value}"' for key, value in labels.items())
        head = f"{name}{{{wanted}}} " if wanted else f"{name} "
        lines = (await self.app.get("/metrics")).text.splitlines()
        return next((float(line.removeprefix(head)) for line in lines if line.startswith(head)), 0)
