"""Sessions: who has tasks here, and which."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

from msgspec import Meta

from onward.wire.base import Cursor, Instant, Limit, Masked, Name, Query, State, WaitMs, Wire

SessionId: TypeAlias = Name
is_session: Callable[[str], re.Match[str] | None] = re.compile(r"[^\x00-\x1f\x7f]{1,128}").fullmatch


class SessionView(Wire, frozen=True):
    id: str
    tasks: int
    states: Mapping[str, int]  # of its newest 1,000 tasks
    unread: int
    connected: int  # listeners at this server
    last_at: Instant


class SessionsQuery(Query, frozen=True):
    cursor: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class SessionTasksQuery(Query, frozen=True):
    status: Annotated[str, Meta(max_length=20)] = "all"
    state: tuple[State, ...] = ()
    masked: Masked = False
    cursor: Cursor | None = None
    limit: Limit = 100


class SessionTaskQuery(Query, frozen=True):
    wait_ms: WaitMs = 0
    masked: Masked = False
