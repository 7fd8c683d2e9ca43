"""How the flow centre reads a body: what cannot be read is 400, with the field in the text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from onward.core import strict_json
from onward.core.errors import Invalid
from onward.doors.route import BadBody

T = TypeVar("T")


async def read_body(kind: type[T], request: Request) -> T:
    with refusing_as_400():
        body = strict_json.parse_object(await request.body())
        try:
            return msgspec.convert(body, kind)
        except msgspec.ValidationError as error:
            raise Invalid(_said(str(error))) from None


@contextmanager
def refusing_as_400() -> Iterator[None]:
    """Elsewhere a well-formed body that makes no sense is 422."""
    try:
        yield
    except Invalid as error:
        raise BadBody(error) from error


def described(kind: type) -> dict[str, Any]:
    """The body's schema for the API's description."""
    (schema,), parts = msgspec.json.schema_components([kind], ref_template="{name}")
    shape = parts[schema["$ref"]]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": shape}}}}


def _said(fault: str) -> str:
    """`Expected … - at `$.url`` → `url: expected …`."""
    what, _, where = fault.partition(" - at ")
    name = where.strip("`").removeprefix("$.")
    return f"{name}: {what[0].lower()}{what[1:]}" if name.strip("$") else what
