"""The log of a Delta table, entry by entry: what others have committed, and a commit of our own.

delta-rs works out all files of a table for every commit: it costs more the more files and commits
there are. Whoever only appends needs none of that, but the number of the last entry and the
transactions in it. So appending costs the same in a table of ten files and of ten thousand.

An entry of our own is written and synced under another name first: it appears whole and durable, or
not at all, and only if nobody else has written that number.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from matador.storage import Storage
from matador.storage.files import private_file, sync

LOG = "_delta_log"
WRITER_VERSION = 2
"""The version of Delta's protocol for writers that is written here."""

_encode = msgspec.json.Encoder().encode


def entry_name(version: int) -> str:
    """The file of an entry, relative to the table."""
    return f"{LOG}/{version:020d}.json"


class _Transaction(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="appId")
    number: int = msgspec.field(name="version")


class _Line(msgspec.Struct, frozen=True):
    txn: _Transaction | None = None
    protocol: msgspec.Raw | None = None
    metadata: msgspec.Raw | None = msgspec.field(name="metaData", default=None)


_decode_line = msgspec.json.Decoder(_Line).decode


class LogTail:
    """What was committed after the version that delta-rs has read. Belongs to one thread."""

    def __init__(self, storage: Storage, version: int) -> None:
        self._storage = storage
        self.version = version
        self.transactions: dict[str, int] = {}

    def follow(self) -> bool:
        """Read the entries that were added since.

        False: delta-rs has to look, because the table was changed in another way, the last entry
        is damaged, or this part of the log is gone.
        """
        while True:
            entry = self._storage.read(entry_name(self.version + 1))
            if entry is None:
                return self.is_last_there()
            try:
                lines = [_decode_line(line) for line in entry.splitlines()]
            except msgspec.DecodeError:
                return False
            if not lines or any(line.protocol or line.metadata for line in lines):
                return False
            self.advance({line.txn.name: line.txn.number for line in lines if line.txn is not None})

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
    }
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    actions += [
        {"txn": {"appId": name, "version": number, "lastUpdated": now}}
        for name, number in transactions.items()
    ]
    actions += [{"add": one} for one in add]
    return b"\n".join(map(_encode, actions)) + b"\n"


def write_entry(table: Path, version: int, content: bytes) -> bool:
    """Write an entry, durably, if nobody else has; returns whether it was written.

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
