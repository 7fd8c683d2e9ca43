"""Pages of the reference that are made from the code each time the site is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import commands
import metrics
import paths
import python_api

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands.page,
    "reference/metrics.md": metrics.page,
    "reference/paths.md": paths.page,
    **python_api.PAGES,
}


def pages() -> dict[str, str]:
    return {name: make() for name, make in PAGES.items()}
