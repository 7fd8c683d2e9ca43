"""SQLite's words, and its way of writing batches of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onward.ledgers.codec import FIELDS
from onward.ledgers.sql import schema
from onward.ledgers.sql.dialect import Statements, ledger_tables, load, with_words
from onward.ledgers.sql.write_batch import CLAIMED, FOREVER
from onward.ledgers.sqlite.texts import NAMES, read_as

WORDS: Mapping[str, str] = {
    "number": "INTEGER",
    "next_tid": "",
    "next_place": "",
    "next_seq": "",
    "table": " STRICT",
    "keyed_table": " STRICT, WITHOUT ROWID",
    "task_columns": schema.columns("INTEGER"),
    "table_of_tasks": "task",
    "task_key": "tid",
    "task_fields": ", ".join(map(read_as, FIELDS)),
    "claimed_fields": ", ".join(CLAIMED),
    "payload": read_as("payload"),
    "approval_status": "json_extract(approval, '$.status')",
    "never": str(FOREVER),
    "least": "min",
    "greatest": "max",
    "instr": "instr",
    "place_after": "",
    "lock": "",
    "by_line": " INDEXED BY task_line",
    "tags_hold": "NOT EXISTS (SELECT 1 FROM json_each(",
    "tags_held": ") WHERE value NOT IN (SELECT value FROM json_each(tags)))",
    "tags_index": "(tid)",
    "separator": "char(31)",
    "bytewise": "key",
}


class SqliteDialect:
    def __init__(self, words: Mapping[str, str] = WORDS) -> None:
        self.words = words

    def rows(self, types: Sequence[str], shape: int) -> str:
        row = f"({','.join('?' * len(types))})"
        return f"VALUES {','.join([row] * shape)}"

    def values(self, type_: str, shape: int, before: int) -> str:
        return f"IN ({','.join('?' * shape)})"

    def numbered(self, text: str) -> str:
        return text


def _own(name: str) -> str:
    return load("onward.ledgers.sqlite", name)


STATEMENTS = Statements(SqliteDialect(), _own("queries.sql"))
SCHEMA, INDEXES = ledger_tables(WORDS, _own("schema.sql"), _own("batches.sql"))
VIEWS = with_words(_own("views.sql"), {name: read_as(name) for name in (*NAMES, "error")})
