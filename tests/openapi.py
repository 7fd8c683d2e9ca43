"""Every response of a test is compared with the OpenAPI document: path, method, status, content
type and body. A route that answers what its description does not name is a bug of one of the two.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import httpx2
import jsonschema_rs

from onward.app import Application, build
from onward.doors.rest.errors import PROBLEM
from onward.settings import Settings

# Not described: the page, the document itself, and a protocol that describes itself.
ELSEWHERE = re.compile(r"/(ui(/.*)?|openapi\.json|mcp/?)?")

EVENT_STREAM = "text/event-stream"


@cache
def document() -> dict[str, Any]:
    app: Application = build(Settings(ledger="sqlite:///:memory:"))
    found: dict[str, Any] = app.web.openapi()
    return found


async def check(response: httpx2.Response) -> None:
    """A hook of httpx: raises AssertionError where the response is not as documented."""
    request = response.request
    path = request.url.raw_path.decode().partition("?")[0]
    if ELSEWHERE.fullmatch(path):
        return
    media = response.headers.get("content-type", "").partition(";")[0]
    where = f"{request.method} {path} → {response.status_code} {media}"
    operations = _operations(path)
    method = "get" if request.method == "HEAD" else request.method.lower()
    operation = next((one[method] for one in operations if method in one), None)
    if operation is None:
        known = (405, 400, 403, 421) if operations else (404,)
        # Who calls is decided before what they call.
        assert response.status_code in (401, 429, *known), where
        return
    responses, status = operation["responses"], response.status_code
    described = responses.get(str(status)) or responses.get(f"{status // 100}XX")
    assert described is not None, f"{where}: the status is not documented"
    content = described.get("content", {})
    if media == EVENT_STREAM:
        assert media in content, f"{where}: the content type is not documented"
        return
    body = await response.aread()
    if not body or request.method == "HEAD":
        assert not content or request.method == "HEAD", f"{where}: a body is documented"
        return
    assert media in content, f"{where}: the content type is not documented"
    if media in ("application/json", PROBLEM):
        schema = json.dumps(content[media]["schema"], sort_keys=True)
        for error in _validator(schema).iter_errors(json.loads(body)):
            raise AssertionError(f"{where}: {error.instance_path}: {error.message}")


@cache
def _operations(path: str) -> list[dict[str, Any]]:
    """Of every template that fits, the most exact first; a last slash makes no difference."""
    bare = path.rstrip("/")
    templates = [template for template in document()["paths"] if _pattern(template).fullmatch(bare)]
    return [document()["paths"][name] for name in sorted(templates, key=lambda one: one.count("{"))]


@cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"{\w+}", template.rstrip("/"))
    return re.compile("[^/]+".join(map(re.escape, parts)))


@cache
def _validator(schema: str) -> Any:
    whole = {**json.loads(schema), "components": document()["components"]}
    return jsonschema_rs.validator_for(whole)
