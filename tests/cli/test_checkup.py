"""What `onward doctor` makes of a server's /health."""

from __future__ import annotations

from typing import Any

import pytest

from onward.cli.checkup import BAD, ODD, Answer, _server
from onward.settings import Settings

OPEN = {"circuit_breaker": {"status": "open", "services": {"ocr": {"state": "open"}}}}
VOLATILE = {"ledger": {"status": "degraded", "warnings": ["Redis keeps nothing on disk"]}}
FAILING = {"background": {"status": "unhealthy", "failing": {"scheduler": "failed 5 times"}}}
ALONE = {"workers": {"status": "unhealthy", "error": "no worker is connected"}}


@pytest.mark.parametrize(
    ("status", "details", "mark", "says"),
    [
        ("degraded", OPEN, ODD, "circuit_breaker: open for ocr"),
        ("degraded", VOLATILE, ODD, "ledger: Redis keeps nothing on disk"),
        ("unhealthy", FAILING, BAD, "background: scheduler failed 5 times"),
        ("unhealthy", ALONE, BAD, "workers: no worker is connected"),
    ],
)
def test_doctor_names_what_is_wrong_with_the_server(
    status: str, details: dict[str, Any], mark: str, says: str
) -> None:
    well = {"redis": {"status": "not_configured"}, "encryption": {"status": "healthy"}}
    answer = Answer({"status": status, "version": "1", "details": {**well, **details}}, None)
    (found,) = _server(None, Settings(), answer)
    assert found.mark == mark
    assert found.found.endswith(f", {status}; {says}")
