"""Requests made up from the OpenAPI document, sensible or not: it names every answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core import NotSet
from schemathesis.generation import GenerationMode

from tests import openapi
from tests.running_app import App, running_app

# Of each operation; what makes no sense takes long to make up.
EXAMPLES = {GenerationMode.POSITIVE: 5, GenerationMode.NEGATIVE: 2}
ENDLESS = ("/api/v2/live", "/stream")  # a stream ends when the caller hangs up


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as opened:
        yield opened


async def send(app: App, case: Any) -> None:
    query = {name: value for name, value in (case.query or {}).items() if name != "wait_ms"}
    body = b""
    if not isinstance(case.body, NotSet):  # bytes: no JSON at all
        body = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    response = await app.http.request(
        case.method,
        case.formatted_path,
        params=query,
        headers={name: value for name, value in (case.headers or {}).items() if name != "host"},
        content=body,
    )
    # The hook of `app.http` has compared it with the document already.
    assert response.status_code < 500 or response.status_code == 503, response.text


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_one_that_the_document_names(
    runner: asyncio.Runner, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(openapi.document())
    every: Any = schema.get_all_operations()
    operations = [found.ok() for found in every]
    stack = AsyncExitStack()
    app = runner.run(stack.enter_async_context(running_app()))
    asked = 0
    try:
        for operation in operations:
            takes_nothing = not operation.query.items and not operation.body.items
            if operation.path.endswith(ENDLESS) or (
                mode is GenerationMode.NEGATIVE and takes_nothing
            ):
                continue

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=EXAMPLES[mode],
                phases=[Phase.generate],
                database=None,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            def answers(case: Any) -> None:
                nonlocal asked
                asked += 1
                runner.run(send(app, case))

            with suppress(Unsatisfiable):  # nothing is wrong for it: it takes any text
                answers()
    finally:
        runner.run(stack.aclose())
    assert asked > len(operations) / 2  # it did not pass for want of requests
