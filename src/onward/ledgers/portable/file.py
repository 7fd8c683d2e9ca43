"""A backup: one gzip'd file of JSON lines, whatever ledger it is of.

The first line says what it is, each of the others is one record, and the last one how many there
are of each kind, and a checksum of all lines before it. A file gets its name once it is whole.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from onward import __version__
from onward.core.errors import Invalid
from onward.core.task import Instant
from onward.ledgers.portable.records import AnyRecord, Record, RecordWriter, kind_of

FORMAT = 2  # 1 had no rates
PART = 500  # records
PART_BYTES = 4 << 20
LEVEL = 3  # of gzip: half the time, and a tenth more bytes


class Header(Record, tag="onward-backup", frozen=True):
    format: int
    version: str  # of the Onward that wrote it
    at: Instant


class Trailer(Record, tag="end", frozen=True):
    records: Mapping[str, int]
    sha256: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyRecord | Header | Trailer).decode


class BackupFile:
    snapshot = True

    def __init__(self, path: Path) -> None:
        self._path = path

    async def servers(self, now: Instant) -> Sequence[str]:
        return ()

    async def counts(self) -> None:
        return None

    async def read(self, *, to_copy: bool = False) -> AsyncGenerator[Sequence[AnyRecord]]:
        """Raises at the end if it is not what was written: nothing of it is to be used then."""
        part: list[AnyRecord] = []
        size = 0
        for record, length in self._records():
            part.append(record)
            size += length
            if len(part) == PART or size > PART_BYTES:
                yield part
                part, size = [], 0
        if part:
            yield part

    def _records(self) -> Iterator[tuple[AnyRecord, int]]:
        total, counts, whole = hashlib.sha256(), Counter[str](), False
        for line, found in self._lines():
            if isinstance(found, Trailer):
                whole = (found.sha256, found.records) == (total.hexdigest(), counts)
                break
            total.update(line)
            if not isinstance(found, Header):
                counts[kind_of(found)] += 1
                yield found, len(line)
        if not whole:
            raise self._damaged("it ends too early, or its checksum is another")

    def _lines(self) -> Iterator[tuple[bytes, AnyRecord | Header | Trailer]]:
        try:
            with gzip.open(self._path, "rb") as file:
                for number, line in enumerate(file):
                    found = _decode(line)
                    if number == 0:
                        self._check(found)
                    yield line, found
        except FileNotFoundError as error:
            raise Invalid(f"there is no {self._path}") from error
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            raise self._damaged(str(error)) from error

    def _check(self, header: msgspec.Struct) -> None:
        if not isinstance(header, Header):
            raise self._damaged("its first line is missing")
        if not 1 <= header.format <= FORMAT:
            raise Invalid(
                f"{self._path} has format {header.format}, and this Onward knows up to {FORMAT}",
                hint=f"restore it with Onward {header.version}",
            )

    def _damaged(self, why: str) -> Invalid:
        found = f"{self._path} is damaged, or no backup of Onward: {why}"
        return Invalid(found, hint="use another copy of it")

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[RecordWriter]:
        if self._path.exists():
            raise Invalid(f"{self._path} is there already", hint="name another file")
        unfinished = self._path.with_name(f"{self._path.name}.part")
        # Only for its owner from the first byte on: it holds whatever the tasks hold.
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as raw:
                with gzip.GzipFile("", "wb", LEVEL, raw) as file:
                    writer = _FileWriter(file)
                    yield writer
                    writer.end()
                raw.flush()
                os.fsync(raw.fileno())
            unfinished.rename(self._path)
        finally:
            unfinished.unlink(missing_ok=True)


class _FileWriter:
    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._sum = hashlib.sha256()
        self._counts: Counter[str] = Counter()
        self._put(Header(FORMAT, __version__, time.time_ns() // 1_000_000))

    async def write(self, records: Sequence[AnyRecord]) -> None:
        for record in records:
            self._put(record)
            self._counts[kind_of(record)] += 1

    def end(self) -> None:
        self._put(Trailer(dict(self._counts), self._sum.hexdigest()))

    def _put(self, line: Record) -> None:
        text = _encode(line) + b"\n"
        self._sum.update(text)
        self._file.write(text)
