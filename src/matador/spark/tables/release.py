"""Moves events out of quarantine that are valid under the current schema.

The rows are decoded again. Those that are valid now are added to ``events``, unless they are there,
and then leave the quarantine. If it is killed in between, the next release does the rest: rows that
are in ``events`` already only leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from matador.errors import ConfigurationError
from matador.model.schema import Schema
from matador.spark.runtime.arrow import parquet
from matador.spark.runtime.executors import EventTypes, event_types, run_tasks
from matador.spark.tables.append import Appender
from matador.spark.tables.decode import Decoded, LineDecoder, is_whole, quarantined_bytes
from matador.spark.tables.delta import CommitConflictError, DataFile
from matador.spark.tables.layout import QUARANTINE, Layout
from matador.spark.tables.parquet_writer import Part, Parts, without_rows
from matador.storage import Storage

_KINDS = ("unknown-event", "invalid-payload")


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """How many rows left the quarantine, how many of them are new events, and how many are left."""

    released: int
    events: int
    left: int


class _Released(msgspec.Struct, frozen=True):
    """The answer of a task: the parts of ``events``, and the file without their rows."""

    parts: list[Part]
    rest: DataFile
    rows: int


def release(spark: SparkSession, layout: Layout, schema: Schema | None) -> ReleaseResult:
    if schema is None:
        raise ConfigurationError("release needs a schema: Lake(path, schema=…)")
    table = layout.table("quarantine").open()
    files = table.files()
    work = partial(_release, layout.storage, event_types(spark, schema), files)
    answers = [
        (file, msgspec.msgpack.decode(answer, type=_Released))
        for file, answer in zip(files, run_tasks(spark, work, len(files)), strict=True)
    ]
    found = [(file, answer) for file, answer in answers if answer.rows]
    parts = [part for _, answer in found for part in answer.parts]
    added = Appender(spark, layout, "events").append(parts).rows if parts else 0
    while found:
        active = table.paths()
        found = [one for one in found if one[0].path in active]  # else replaced: next time
        rest = [answer.rest for _, answer in found if answer.rest.rows]
        try:
            if found:
                table.commit(rest, [file for file, _ in found])
            break
        except CommitConflictError:
            continue
    left = sum(one.rows for one in table.files())
    return ReleaseResult(sum(answer.rows for _, answer in found), added, left)


def _release(lake: Storage, events: EventTypes, files: Sequence[DataFile], which: int) -> bytes:
    """Decode the rows of a file again."""
    file = files[which]
    decoder = LineDecoder(events.load())
    with lake.child("quarantine").reader(file.path) as source:
        rows = parquet.ParquetFile(source).read(columns=["kind", "raw"])
    texts = zip(rows.column("kind").to_pylist(), rows.column("raw").to_pylist(), strict=True)
    valid = np.array(
        [
            kind in _KINDS and is_whole(raw) and decoder.accepts(quarantined_bytes(raw))
            for kind, raw in texts
        ],
        np.bool_,
    )
    if not valid.any():
        return msgspec.msgpack.encode(_Released([], file, 0))
    parts = Parts(lake)
    for raw, is_valid in zip(rows.column("raw").to_pylist(), valid, strict=True):
        if is_valid:
            decoded = decoder.decode(quarantined_bytes(raw), "quarantine")
            parts.add(Decoded({"events": decoded.tables["events"]}))
    rest = without_rows(lake.child("quarantine"), QUARANTINE, file, valid)
    return msgspec.msgpack.encode(_Released(parts.finish(), rest, int(valid.sum())))
