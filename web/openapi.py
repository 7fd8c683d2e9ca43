"""Writes the API's description, taken from the application itself, for `npm run types`."""

from __future__ import annotations

import json
from pathlib import Path

from onward.app import build
from onward.settings import Settings

if __name__ == "__main__":
    described = build(Settings(ledger="sqlite:///:memory:")).web.openapi()
    (Path(__file__).parent / ".openapi.json").write_text(json.dumps(described))
