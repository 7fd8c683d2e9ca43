"""The SDK: what a program that hands off work, or does it, imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onward.client.functions import ToolFunction


def tools(url: str | None = None, session_id: str | None = None) -> list[ToolFunction]:
    """The agent door's tools as functions; with a session, they are that session's.

    In a program with an event loop: `await client.tools(session_id)`.
    """
    from onward.client.functions import plain_tools

    return plain_tools(url, session_id)
