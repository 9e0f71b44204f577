"""Finds the records of one message in a journal, and reads new segments once.

Segments are searched as bytes, which is quick, and only lines that contain the id are decoded.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from matador.observe.journal.records import DeliveryRecord, Record, SentRecord, decode_record
from matador.observe.journal.segments import finished, open_segment

MOST_FOUND = 500
_TAIL = 1 << 20  # bytes at the end of a segment that are read for the latest records


def find_records(folder: Path, wanted: str, seconds: float) -> tuple[list[Record], bool]:
    """The records of a message id or a correlation id, oldest first, and whether all was searched.

    The latest segments are searched first, for at most so many seconds. Blocks.

    Raises:
        OSError: the folder cannot be read.
    """
    needle = json.dumps(wanted, ensure_ascii=False).encode("utf-8", "replace")
    until = time.monotonic() + seconds
    found: list[Record] = []
    for path in reversed(list(finished(folder))):
        if time.monotonic() > until or len(found) >= MOST_FOUND:
            return _in_order(found), False
        found += _records_with(path, needle, wanted)
    return _in_order(found), True


def latest_records(folder: Path, limit: int) -> list[DeliveryRecord]:
    """The attempts that were recorded last, the latest first. Blocks.

    Raises:
        OSError: the folder cannot be read.
    """
    found: list[DeliveryRecord] = []
    for path in reversed(list(finished(folder))):
        try:
            lines = _last_lines(path)
        except FileNotFoundError:
            continue  # deleted meanwhile
        for line in reversed(lines):
            if isinstance(record := _decoded(line), DeliveryRecord):
                found.append(record)
                if len(found) == limit:
                    return found
    return found


def _last_lines(path: Path) -> list[bytes]:
    with os.fdopen(open_segment(path), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        return file.read(_TAIL).splitlines()


def segment_records(path: Path) -> Iterator[Record]:
    """All records of a segment that can be read.

    Raises:
        OSError: it cannot be read.
    """
    with os.fdopen(open_segment(path), "rb") as file:
        for line in file:
            if (record := _decoded(line)) is not None:
                yield record


def _records_with(path: Path, needle: bytes, wanted: str) -> list[Record]:
    found: list[Record] = []
    try:
        file = open_segment(path)
    except OSError:
        return found  # deleted meanwhile
    try:
        if not os.fstat(file).st_size:
            return found
        with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as text:
            at = text.find(needle)
            while at >= 0 and len(found) < MOST_FOUND:
                start, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
                end = len(text) if end < 0 else end
                record = _decoded(text[start:end])
                if isinstance(record, SentRecord | DeliveryRecord) and wanted in (
                    record.id,
                    record.correlation_id,
                ):
                    found.append(record)
                at = text.find(needle, end)
    finally:
        os.close(file)
    return found


def _decoded(line: bytes) -> Record | None:
    try:
        return decode_record(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _in_order(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.recorded_at)[:MOST_FOUND]
