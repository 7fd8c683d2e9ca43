"""pytest: the fixture `onward`. Needs an async plugin: pytest-asyncio, or anyio's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from onward.testing.sandbox import Sandbox

F = TypeVar("F")

try:
    import pytest_asyncio
except ImportError:  # then anyio's plugin, which takes any fixture
    _fixture: Any = pytest.fixture
else:
    _fixture = pytest_asyncio.fixture
async_fixture: Callable[[F], F] = _fixture


@pytest.fixture
def onward_settings() -> dict[str, Any]:
    """Settings of the sandbox: define a fixture of this name to have others."""
    return {}


@async_fixture
async def onward(onward_settings: dict[str, Any]) -> AsyncIterator[Sandbox]:
    """A whole Onward for this test: `.client`, `.serve(worker)`, `.fake(name, fn)`, `.jump()`."""
    try:
        from onward.testing.sandbox import Sandbox
    except ModuleNotFoundError as error:
        pytest.fail(f"{error}; pip install 'onward[server]'")
    async with Sandbox(**onward_settings) as sandbox:
        yield sandbox
