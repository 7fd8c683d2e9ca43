"""What is written to the log when the same thing goes wrong again and again."""

from __future__ import annotations

import time

import pytest
import structlog

from onward.logs import QUIET_S, Seldom


def test_the_same_warning_is_written_once_in_a_while_with_how_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    seldom = Seldom()
    away = {"event": "redis does not answer", "error": "refused"}

    def written(level: str = "warning", **event: object) -> object:
        try:
            return seldom(None, level, {**away, **event})
        except structlog.DropEvent:
            return None

    assert written() == away
    assert [written(), written()] == [None, None]
    assert written(error="reset") is not None, "another line"
    assert written("info") is not None, "no warning"
    assert written(exc_info=True) is not None, "a fault of ours"
    now += QUIET_S
    assert written() == {**away, "again": 2}
    assert written() is None
