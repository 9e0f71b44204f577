"""The work of executors in an ingest: decode segments into parts, and leave out rows of parts.

Lines are parsed once and go straight into Parquet, in the folders of the tables; they become rows
when the driver commits them. Only keys travel to the driver.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec
import numpy as np
import numpy.typing as npt

from matador.observe.journal.records import LAST_MOMENT
from matador.spark.runtime.arrow import compute, pa, parquet
from matador.spark.runtime.executors import EventTypes
from matador.spark.runtime.journal_lines import Split, read_blocks
from matador.spark.tables.decode import LineDecoder, QuarantineReason
from matador.spark.tables.delta import DataFile
from matador.spark.tables.layout import TABLES
from matador.spark.tables.parquet_writer import Part, Parts, without_rows
from matador.storage import Storage

_MOST_PROBLEMS = 200  # reasons that a task keeps in memory; all rows are in quarantine
_MOST_REPORTED = 20


class ProblemCount(msgspec.Struct, frozen=True):
    """How many rows are in quarantine for one reason."""

    kind: str
    event_key: str | None
    reason: str
    count: int


def most_frequent(problems: Iterator[ProblemCount] | Sequence[ProblemCount]) -> list[ProblemCount]:
    """The most frequent reasons, each with the sum of its counts."""
    counts: Counter[tuple[str, str | None, str]] = Counter()
    for one in problems:
        counts[one.kind, one.event_key, one.reason] += one.count
    return [ProblemCount(*reason, count) for reason, count in counts.most_common(_MOST_REPORTED)]


class DecodedSegments(msgspec.Struct, frozen=True):
    """The answer of a task: its parts and counts, and the segments that it could not read."""

    parts: list[Part]
    records: int = 0
    dropped: int = 0
    problems: list[ProblemCount] = []
    unread: dict[str, str] = {}
    not_imported: str | None = None


class _UnreadError(Exception):
    """A segment cannot be read on this machine."""


def decode_segments(
    tasks: Sequence[Sequence[Split]], lake: Storage, events: EventTypes | None, which: int
) -> bytes:
    """Decode the splits of one task into parts."""
    try:
        decoder = LineDecoder(None if events is None else events.load())
    except Exception as error:  # noqa: BLE001 - whatever the modules of users raise
        why = f"{type(error).__name__}: {error}"
        return msgspec.msgpack.encode(DecodedSegments([], not_imported=why))
    splits = tasks[which]
    parts = Parts(lake)
    records = dropped = 0
    unread: dict[str, str] = {}
    problems: Counter[QuarantineReason] = Counter()
    for split in splits:
        try:
            blocks = _blocks(split)
            # Of several segments in one task, those that cannot be read leave nothing behind.
            for block in [*blocks] if len(splits) > 1 else blocks:
                decoded = decoder.decode(block, split.name)
                parts.add(decoded)
                records += decoded.records
                dropped += decoded.dropped
                problems.update(decoded.problems)
                if len(problems) > _MOST_PROBLEMS:
                    problems = Counter(dict(problems.most_common(_MOST_PROBLEMS // 10)))
        except _UnreadError as error:
            unread[split.name] = f"{socket.gethostname()}: {error}"
    return msgspec.msgpack.encode(
        DecodedSegments(
            parts.finish(),
            records,
            dropped,
            most_frequent([ProblemCount(*one, count) for one, count in problems.items()]),
            unread,
        )
    )


def _blocks(split: Split) -> Iterator[bytes]:
    """The blocks of a split. Only errors of reading are raised as ``_UnreadError``."""
    try:
        yield from read_blocks(split)
    except OSError as error:
        raise _UnreadError(error.strerror or str(error)) from error


class Unwanted(msgspec.Struct, frozen=True):
    """Rows of a part to leave out: a bit for each row, and everything recorded before a time."""

    part: Part
    repeated: bytes
    before: int | None = None


class Rewritten(msgspec.Struct, frozen=True):
    """The part without those rows, and how many were left out because of their time."""

    part: Part
    expired: int


def leave_out(lake: Storage, unwanted: Sequence[Unwanted], which: int) -> bytes:
    """Write a part again without some of its rows."""
    one = unwanted[which]
    part = one.part
    storage, columns = lake.child(part.table), TABLES[part.table]
    drop = np.unpackbits(np.frombuffer(one.repeated, np.uint8), count=part.file.rows).astype(bool)
    old = np.zeros(part.file.rows, np.bool_)
    if one.before is not None:
        old = is_older(storage, part.file, one.before)
    file = without_rows(storage, columns, part.file, drop | old)
    keys = np.ascontiguousarray(part.keys[:, ~(drop | old)])
    expired = int((old & ~drop).sum())
    return msgspec.msgpack.encode(Rewritten(Part(part.table, file, keys.tobytes()), expired))


def is_older(storage: Storage, file: DataFile, before: int) -> npt.NDArray[np.bool_]:
    """Which rows of a file were recorded, or else quarantined, before a time."""
    with storage.reader(file.path) as source:
        opened = parquet.ParquetFile(source)
        names = set(opened.schema_arrow.names)
        columns = [name for name in ("recorded_at", "quarantined_at") if name in names]
        rows = opened.read(columns=columns)
    times = rows.column("recorded_at").cast(pa.int64())
    if times.null_count:
        times = compute.coalesce(times, rows.column("quarantined_at").cast(pa.int64()))
    return np.asarray(times) < before


def as_micros(moment: datetime) -> int:
    """A time as the journal writes it; within what the journal can write."""
    micros = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
    return min(max(micros, 0), LAST_MOMENT)
