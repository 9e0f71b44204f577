"""Writes the files of one batch, in the executors: decodes lines and removes duplicate rows.

Lines are parsed once and go straight into Parquet. Only the keys of rows travel for deduplication,
and a file is rewritten only if it has a duplicate row.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from matador.errors import ConfigurationError
from matador.spark.runtime.executors import EventTypes, run_tasks
from matador.spark.runtime.files import private_file, private_folder, sync
from matador.spark.runtime.journal_lines import Split, read_blocks
from matador.spark.tables.batch_log import BatchCounts, ProblemCount, most_frequent
from matador.spark.tables.decode import LineDecoder, QuarantineReason
from matador.spark.tables.dedup_index import Keys, known, run_name, runs_of, save_run, sorted_order
from matador.spark.tables.layout import TABLES, Layout
from matador.spark.tables.parquet_writer import Part, Parts, without_rows

_MOST_PROBLEMS = 200  # reasons that a task keeps in memory; all rows are in quarantine
_REPEATS = ".repeats.npy"


class _UnreadError(Exception):
    """A segment cannot be read on this machine."""


class _Decoded(msgspec.Struct, frozen=True):
    parts: list[Part]
    records: int
    dropped: int
    problems: list[ProblemCount]
    unread: str | None = None
    not_imported: str | None = None


def stage(
    spark: SparkSession,
    layout: Layout,
    folder: Path,
    number: int,
    splits: Sequence[Split],
    events: EventTypes | None,
) -> tuple[BatchCounts, dict[str, str]]:
    """Write all files of a batch below ``folder``: a folder for each table, and runs of the index.

    Returns the counts of the batch, and the segments that an executor could not read, by name, with
    the reason. The batch has nothing of those.
    """
    answers = [
        msgspec.json.decode(answer, type=_Decoded)
        for answer in run_tasks(spark, partial(_decode, splits, folder, events), len(splits))
    ]
    unread: dict[str, str] = {}
    for split, answer in zip(splits, answers, strict=True):
        if answer.not_imported is not None:
            raise ConfigurationError(
                f"the executors cannot import the payload types: {answer.not_imported}; install "
                "their module there, or send its file with spark.sparkContext.addPyFile(…)"
            )
        if answer.unread is not None:
            unread[split.name] = answer.unread
    answers = [
        answer for split, answer in zip(splits, answers, strict=True) if split.name not in unread
    ]
    parts = [part for answer in answers for part in answer.parts]
    repeated = _leave_out_repeats(spark, layout, folder, number, parts)
    rows = dict.fromkeys(TABLES, 0)
    for part in parts:
        source = part.path(folder)
        left = part.rows - repeated.get((part.table, part.name), 0)
        rows[part.table] += left
        if left:
            source.rename(private_folder(folder / part.table) / source.name)
    for path in (*folder.rglob("*/"), folder, folder.parent):
        sync(path)
    counts = BatchCounts(
        sum(answer.records for answer in answers),
        rows,
        sum(repeated.values()),
        sum(answer.dropped for answer in answers),
        most_frequent(one for answer in answers for one in answer.problems),
    )
    return counts, unread


def staged_index(folder: Path, table: str, number: int) -> Path:
    """The run of a table's index before the batch is done."""
    return folder / "index" / table / run_name(number, number)


def _leave_out_repeats(
    spark: SparkSession, layout: Layout, folder: Path, number: int, parts: Sequence[Part]
) -> dict[tuple[str, str], int]:
    """Remove duplicate rows from the parts; returns how many each part had."""
    by_table = {table: [part for part in parts if part.table == table] for table in TABLES}
    tables = [table for table in TABLES if by_table[table]]
    work = partial(_find_repeats, layout, folder, number, [by_table[table] for table in tables])
    repeated: dict[tuple[str, str], int] = {}
    for table, answer in zip(tables, run_tasks(spark, work, len(tables)), strict=True):
        found = msgspec.json.decode(answer, type=dict[str, int])
        repeated.update({(table, name): count for name, count in found.items()})
    chosen = [part for part in parts if (part.table, part.name) in repeated]
    run_tasks(spark, partial(_rewrite, folder, chosen), len(chosen))
    return repeated


# -- tasks --------------------------------------------------------------------------------------


def _decode(splits: Sequence[Split], folder: Path, events: EventTypes | None, number: int) -> bytes:
    split = splits[number]
    try:
        decoder = LineDecoder(None if events is None else events.load())
    except Exception as error:  # noqa: BLE001 - the modules of users decide what is raised
        said = f"{type(error).__name__}: {error}"
        return msgspec.json.encode(_Decoded([], 0, 0, [], not_imported=said))
    parts = Parts(folder, number)
    records = dropped = 0
    unread: str | None = None
    problems: Counter[QuarantineReason] = Counter()
    try:
        for block in _blocks(split):
            decoded = decoder.decode(block, split.name)
            parts.add(decoded)
            records += decoded.records
            dropped += decoded.dropped
            problems.update(decoded.problems)
            if len(problems) > _MOST_PROBLEMS:
                problems = Counter(dict(problems.most_common(_MOST_PROBLEMS // 10)))
    except _UnreadError as error:
        unread = f"{socket.gethostname()}: {error}"
    return msgspec.json.encode(
        _Decoded(
            parts.finish(),
            records,
            dropped,
            most_frequent(ProblemCount(*one, count) for one, count in problems.items()),
            unread,
        )
    )


def _blocks(split: Split) -> Iterator[bytes]:
    """The blocks of a split. Only errors of reading are raised as ``_UnreadError``."""
    try:
        yield from read_blocks(split)
    except OSError as error:
        raise _UnreadError(error.strerror or str(error)) from error


def _find_repeats(
    layout: Layout, folder: Path, number: int, tables: Sequence[Sequence[Part]], which: int
) -> bytes:
    """Write the new keys of a table, and the duplicate rows of each part; returns their counts."""
    parts = tables[which]
    table = parts[0].table
    loaded: list[Keys] = [np.load(part.path(folder, ".npy")) for part in parts]
    keys: Keys = np.concatenate(loaded, axis=1)
    order = sorted_order(keys)
    keys = keys[:, order]
    repeated = np.zeros(len(order), np.bool_)
    repeated[1:] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    earlier = [run for run in runs_of(layout.index(table)) if run.last < number]
    repeated |= known(earlier, keys)
    new = keys[:, ~repeated]
    if new.shape[1]:
        save_run(staged_index(folder, table, number), new)
    rows = np.sort(order[repeated])
    counts: dict[str, int] = {}
    first = 0
    for part in parts:
        begin, end = np.searchsorted(rows, [first, first + part.rows])
        if end > begin:
            with private_file(part.path(folder, _REPEATS)) as file:
                np.save(file, rows[begin:end] - first)
            counts[part.name] = int(end - begin)
        first += part.rows
    return msgspec.json.encode(counts)


def _rewrite(folder: Path, parts: Sequence[Part], which: int) -> bytes:
    part = parts[which]
    without_rows(part.path(folder), part.table, np.load(part.path(folder, _REPEATS)))
    return b""
