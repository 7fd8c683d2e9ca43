"""What the doors that live on Redis write there: dead letters, what became of sessions' tasks, and
the views that the seeds' readers look up. All of it follows the event log.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from onward.core.task import TaskId
from onward.doors.streams.dead_letters import DeadLetterProjector
from onward.doors.tasks.submission import TasksIntake
from onward.engine import Onward
from onward.ledgers.sealed import at_rest

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from onward.doors.redis_views.projector import SeedViews


class RedisViews:
    def __init__(self, onward: Onward, intake: TasksIntake) -> None:
        self._onward = onward
        self._intake = intake
        self._views: SeedViews | None = None

    def start(self) -> None:
        onward, lines = self._onward, self._onward.lines
        if lines is None:
            return  # nothing of this server is on a Redis
        from onward.doors.agents.streams import AgentStreams
        from onward.ledgers.redis.client import tell_once

        redis, prefix = lines.calls, onward.settings.redis_prefix
        onward.project(DeadLetterProjector(onward.backend.tasks, partial(tell_once, redis)))
        agents = AgentStreams(
            onward.backend,
            redis,
            onward.clock,
            prefix=prefix,
            catalog=onward.catalog,
            tally=lines.tally,
        )
        onward.run(agents.run(onward.dispatcher.troubles, onward.duty(agents.name)))
        onward.run(self._show(redis))

    async def forget(self, ids: Sequence[TaskId]) -> None:
        if self._views is not None:
            await self._views.forget(ids)

    async def _show(self, redis: Redis) -> None:
        """Of a Redis ledger every task, else those of agents."""
        from onward.doors.agents.streams import wanted
        from onward.doors.redis_views.adoption import Adoption
        from onward.doors.redis_views.projector import SeedViews
        from onward.doors.redis_views.writer import ViewWriter

        onward = self._onward
        whole = onward.backend.redis is not None
        writer = ViewWriter(redis, onward.settings.redis_prefix, beside_ledger=whole)
        adoption = None
        if whole:
            adoption = Adoption(
                onward.dispatcher, self._intake, onward.catalog, onward.roster, writer
            )
        views = SeedViews(
            onward.dispatcher,
            writer,
            whole=whole,
            adoption=adoption,
            at_rest=at_rest(onward.backend),
            duty=onward.duty(SeedViews.name),
        )
        if not whole:
            await wanted(onward.backend, redis, onward.clock, onward.catalog, SeedViews.name)
        self._views = views
        await views.run(onward.dispatcher.troubles)
