"""The log of a Delta table, entry by entry: reads commits of others, and writes own commits.

delta-rs lists all files of a table when it opens it and for every commit, which takes longer the
more files and commits there are. An append only needs the number of the last entry, the
transactions and a few facts about the table. So opening a table and appending to it cost the same
with ten files and with ten thousand.

An entry of our own is written and synced under another name first: it appears whole and durable, or
not at all, and only if no other writer has written that number.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from matador.spark.runtime.arrow import pa, parquet
from matador.storage import Storage
from matador.storage.files import private_file, sync

LOG = "_delta_log"
OWN = "matador"
"""The ``writer`` of a commit that this package has made, as its information says."""

WRITER_VERSION = 2
"""The version of Delta's protocol for writers that is written here."""

_encode = msgspec.json.Encoder().encode


def entry_name(version: int) -> str:
    """The file of an entry, relative to the table."""
    return f"{LOG}/{version:020d}.json"


class _Transaction(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="appId")
    number: int = msgspec.field(name="version")


class _Protocol(msgspec.Struct, frozen=True):
    writer: int = msgspec.field(name="minWriterVersion")


class _Metadata(msgspec.Struct, frozen=True):
    id: str
    configuration: dict[str, str | None] = {}


class _Line(msgspec.Struct, frozen=True):
    txn: _Transaction | None = None
    protocol: _Protocol | None = None
    metadata: _Metadata | None = msgspec.field(name="metaData", default=None)


class _LastCheckpoint(msgspec.Struct, frozen=True):
    version: int
    parts: int | None = None


_decode_lines = msgspec.json.Decoder(_Line).decode_lines


class TableFacts(NamedTuple):
    """The facts that a writer needs about a table."""

    id: str
    writer_version: int
    configuration: Mapping[str, str | None]


def open_log(storage: Storage) -> tuple[LogTail, TableFacts] | None:
    """The last version of a table in a folder, its transactions, and its facts.

    None: delta-rs must open it, because there is no table, or its log is damaged or unusual.
    """
    lines: list[_Line] = []
    first = 0
    try:
        if (hint := storage.read(f"{LOG}/_last_checkpoint")) is not None:
            last = msgspec.json.decode(hint, type=_LastCheckpoint)
            if last.parts is not None:
                return None
            lines, first = _checkpoint(storage, last.version), last.version + 1
        for version in itertools.count(first):
            entry = _entry(storage, version)
            if entry is None:
                break
            if not entry:
                return None
            lines += entry
            first = version + 1
    except (msgspec.MsgspecError, OSError, pa.ArrowException, KeyError):
        return None
    protocols = [line.protocol for line in lines if line.protocol is not None]
    metadata = [line.metadata for line in lines if line.metadata is not None]
    tail = LogTail(storage, first - 1, _transactions(lines))
    if not (protocols and metadata and tail.is_last_there()):
        return None
    return tail, TableFacts(metadata[-1].id, protocols[-1].writer, metadata[-1].configuration)


def _entry(storage: Storage, version: int) -> list[_Line] | None:
    """The lines of an entry; None if there is none.

    Raises:
        msgspec.MsgspecError: it is damaged.
    """
    entry = storage.read(entry_name(version))
    return None if entry is None else _decode_lines(entry)


def _checkpoint(storage: Storage, version: int) -> list[_Line]:
    """The lines of a checkpoint, except for the files of the table."""
    with storage.reader(f"{LOG}/{version:020d}.checkpoint.parquet") as file:
        rows = parquet.ParquetFile(file).read(columns=["txn", "protocol", "metaData"])
    lines: list[_Line] = []
    for name in rows.column_names:
        for one in rows.column(name).drop_null().to_pylist():
            if name == "metaData":  # a map is a list of pairs
                one["configuration"] = dict(one["configuration"] or ())
            lines.append(msgspec.convert({name: one}, _Line))
    return lines


def _transactions(lines: Iterable[_Line]) -> dict[str, int]:
    return {line.txn.name: line.txn.number for line in lines if line.txn is not None}


class LogTail:
    """Follows the commits of a log from a version on. Belongs to one thread."""

    def __init__(
        self, storage: Storage, version: int, transactions: Mapping[str, int] | None = None
    ) -> None:
        self._storage = storage
        self.version = version
        self.transactions = dict(transactions or {})

    def follow(self) -> bool:
        """Read the entries that were added since.

        False: delta-rs must reload, because the table was changed in another way, the last entry
        is damaged, or this part of the log is gone.
        """
        while True:
            try:
                lines = _entry(self._storage, self.version + 1)
            except msgspec.MsgspecError:
                return False
            if lines is None:
                return self.is_last_there()
            if not lines or any(line.protocol or line.metadata for line in lines):
                return False
            self.advance(_transactions(lines))

    def is_last_there(self) -> bool:
        """Whether the entry of this version is in the log.

        Old entries are deleted from the first on. While this one is there, the one after it was
        not written and deleted in the meantime.
        """
        return self._storage.read(entry_name(self.version)) is not None

    def advance(self, transactions: Mapping[str, int]) -> None:
        """Take over the entry of the next version."""
        self.version += 1
        self.transactions.update(transactions)


def append_entry(
    add: Iterable[Mapping[str, Any]], transactions: Mapping[str, int], now: int
) -> bytes:
    """The entry of a commit that adds files; ``now`` in milliseconds."""
    info = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "isBlindAppend": True,
        "engineInfo": "matador",
        "writer": OWN,
    }
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    actions += [
        {"txn": {"appId": name, "version": number, "lastUpdated": now}}
        for name, number in transactions.items()
    ]
    actions += [{"add": one} for one in add]
    return b"\n".join(map(_encode, actions)) + b"\n"


def write_entry(table: Path, version: int, content: bytes) -> bool:
    """Write an entry durably unless it exists; returns whether it was written.

    Raises:
        OSError: it cannot be written; nothing is committed.
    """
    path = table / entry_name(version)
    hidden = path.with_name(f"_commit_{uuid.uuid4().hex}.json.tmp")
    try:
        with private_file(hidden) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(hidden, path)  # fails if there is one
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            hidden.unlink()
    sync(path.parent)
    return True
