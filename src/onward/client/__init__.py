"""The SDK: what a program that hands off work, or does it, imports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onward.client.functions import ToolFunction


def tools(
    url: str | None = None,
    session_id: str | None = None,
    *,
    key: str | None = None,
    services: Sequence[str] | None = None,
) -> list[ToolFunction]:
    """The agent door's tools as functions; with a session, they are that session's; with `services`
    those of these services alone, and of flows named as `flow:close_books`.

    In a program with an event loop: `await client.tools(session_id)`.
    """
    from onward.client.functions import plain_tools

    return plain_tools(url, session_id, key=key, services=services)
