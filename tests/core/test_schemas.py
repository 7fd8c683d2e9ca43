"""What a payload is refused for."""

from __future__ import annotations

import pytest

from onward.core.errors import Invalid, NextStep, Step
from onward.services.schemas import Schemas

SCHEMA = {"properties": {"a/b": {"items": {"properties": {"~c": {"type": "integer"}}}}}}


def test_where_a_payload_does_not_fit_is_a_json_pointer() -> None:
    with pytest.raises(Invalid) as refused:
        Schemas().check(SCHEMA, {"a/b": [{}, {"~c": "x"}]}, "sum", NextStep(Step.LIST_TOOLS))
    assert refused.value.pointer == "/payload/a~1b/1/~0c"
