"""Faults survive the ledger: whatever is stored in `error` is read back."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field, ValidationError

from onward.client.failures import fault_from
from onward.core.task import fault_of


class Payload(BaseModel):
    seconds: int = Field(ge=0)


def test_a_fault_with_details_is_read_back() -> None:
    with pytest.raises(ValidationError) as raised:
        Payload(seconds=-1)
    fault = fault_from(raised.value)
    stored = fault_of(fault.encode())
    assert stored is not None
    assert (stored.kind, stored.message) == (fault.kind, fault.message)
    assert stored.details[0]["loc"] == ["seconds"]
    assert fault_of(stored.encode()) == stored
