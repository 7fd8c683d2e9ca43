"""Every ledger that the suite runs over. A new one adds a line here and no test anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from onward.core.contract import Backend
from onward.ledgers import open_backend
from tests.servers import fresh_url, postgres_ledger_url

KEYS = f"k2:{'B' * 43}=,k1:{'A' * 43}="

# Those that can be opened again, or by another server, by their URL.
LASTING: Mapping[str, Callable[[Path], str]] = {
    "sqlite-file": lambda folder: f"sqlite:///{folder}/onward.db",
    "redis7": lambda _: fresh_url("redis7"),
    "valkey": lambda _: fresh_url("valkey"),
    "postgres15": lambda _: postgres_ledger_url("postgres15"),
    "postgres18": lambda _: postgres_ledger_url("postgres18"),
}

LEDGERS: Mapping[str, Callable[[Path], Backend]] = {
    "sqlite-memory": lambda _: open_backend("sqlite:///:memory:"),
    "sqlite-file": lambda folder: open_backend(f"sqlite:///{folder}/onward.db"),
    "sqlite-sealed": lambda _: open_backend("sqlite:///:memory:", keys=KEYS),
    "redis7": lambda _: open_backend(fresh_url("redis7")),
    "valkey": lambda _: open_backend(fresh_url("valkey")),
    "postgres15": lambda _: open_backend(postgres_ledger_url("postgres15")),
    "postgres18": lambda _: open_backend(postgres_ledger_url("postgres18")),
}
