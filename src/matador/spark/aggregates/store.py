"""Keeps volume, health and triage up to date, batch by batch.

Each update reads the batches that came since the last one, and adds a piece: their partial result.
Several small pieces are merged into a larger one, so that there are never many. One small file
names the valid pieces and is replaced atomically; any other folder is a leftover of a killed run.
Updating twice with the same batches changes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import msgspec
from pyspark.sql import DataFrame, SparkSession

from matador.model.options import Seconds
from matador.spark.aggregates import health, triage
from matador.spark.runtime.files import locked, move, private_folder, remove, sync_tree, write_json
from matador.spark.tables.batch_log import Consumers, last_done
from matador.spark.tables.layout import Layout, spark_schema

_FOLDER = "batches="
_STAGING = "_staging-"


class Piece(msgspec.Struct, frozen=True):
    """The partial result of the batches ``first`` to ``last``."""

    first: int
    last: int
    level: int = 0

    @property
    def folder(self) -> str:
        """The name of its folder, the same in every table."""
        return f"{_FOLDER}{self.first}-{self.last}"


class AggregateState(msgspec.Struct, frozen=True):
    """The progress of the aggregates: the valid pieces, and how many updates there were."""

    runs: int = 0
    pieces: tuple[Piece, ...] = ()

    @property
    def through(self) -> int:
        """The last batch included; -1 if there is none."""
        return self.pieces[-1].last if self.pieces else -1


Frames: TypeAlias = Mapping[str, DataFrame]
"""A DataFrame for each table of aggregates."""


class AggregateStore:
    """Reads and writes the pieces of all tables, given with their columns.

    One process at a time may write: it holds ``lock``.
    """

    def __init__(self, spark: SparkSession, layout: Layout, tables: Mapping[str, str]):
        self._spark = spark
        self._layout = layout
        self._tables = tables

    @property
    def lock(self) -> Path:
        """The lock for updates. It is not that of the lake: an ingest may run at the same time."""
        return self._layout.checkpoints / "aggregates.lock"

    @property
    def state(self) -> AggregateState:
        """The current state."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=AggregateState)
        except FileNotFoundError:
            return AggregateState()

    def read(self, table: str, pieces: Sequence[Piece] | None = None) -> DataFrame:
        """The rows of some pieces of a table, or of all; a key may have a row in each."""
        chosen = self.state.pieces if pieces is None else pieces
        folders = [str(self._layout.table(table) / piece.folder) for piece in chosen]
        columns = self._tables[table]
        if not folders:
            return cast("Any", self._spark).createDataFrame([], columns)
        return self._spark.read.schema(columns).parquet(*folders)

    def add(self, piece: Piece, frames: Frames) -> None:
        """Append a piece, and count one update."""
        state = self.state
        self._write(piece, frames)
        self._put(AggregateState(state.runs + 1, (*state.pieces, piece)))

    def merge(self, merged: Callable[[str, DataFrame], DataFrame], fan: int) -> None:
        """Merge small pieces while there are ``fan`` of one level."""
        while (many := _of_one_level(self.state.pieces, fan)) is not None:
            state = self.state
            whole = Piece(many[0].first, many[-1].last, many[-1].level + 1)
            self._write(whole, {name: merged(name, self.read(name, many)) for name in self._tables})
            kept = state.pieces[: len(state.pieces) - len(many)]
            self._put(AggregateState(state.runs, (*kept, whole)))
        self.clean()

    def clean(self) -> None:
        """Remove folders that are not valid pieces."""
        counts = {piece.folder for piece in self.state.pieces}
        for table in self._tables:
            for folder in [*self._layout.table(table).glob("*")]:
                if folder.name not in counts:
                    remove(folder)

    def _write(self, piece: Piece, frames: Frames) -> None:
        for table, frame in frames.items():
            folder = self._layout.table(table)
            private_folder(folder)
            staging = folder / f"{_STAGING}{uuid.uuid4().hex}"
            # Usually few rows: many small files would cost more than they save.
            frame.coalesce(1).write.parquet(str(staging))
            sync_tree(staging)
            move(staging, folder / piece.folder)

    def _put(self, state: AggregateState) -> None:
        write_json(self._path, state)

    @property
    def _path(self) -> Path:
        return self._layout.checkpoints / "aggregates.json"


def _of_one_level(pieces: Sequence[Piece], fan: int) -> Sequence[Piece] | None:
    last = pieces[-fan:]
    same = len(last) == fan and all(piece.level == last[0].level for piece in last)
    return last if same else None


_TABLES: Final = {
    "volume": health.VOLUME_PIECE,
    "health": health.HEALTH_PIECE,
    "triage": triage.TRIAGE_PIECE,
}


_CONSUMER = "aggregates"

FAN: Final = 8
"""How many pieces of one level are merged into one of the next."""


def update(spark: SparkSession, layout: Layout, *, fan: int = FAN) -> int:
    """Include the new batches that are done; returns how many there were.

    Raises:
        StorageLockedError: another process is updating.
    """
    store = AggregateStore(spark, layout, _TABLES)
    layout.make()
    with locked(store.lock):
        state = store.state
        store.clean()
        # Compaction must not merge a batch that is not included yet: its rows would count wrongly.
        consumers = Consumers(layout)
        consumers.advance(_CONSUMER, state.through)
        last = last_done(layout.checkpoints / "ingest")
        present = sorted({*layout.batches("events"), *layout.batches("deliveries")})
        new = [number for number in present if state.through < number <= last]
        if new:
            deliveries = _batches(spark, layout, "deliveries", new)
            frames = {
                "volume": health.volume_piece(_batches(spark, layout, "events", new)),
                "health": health.health_piece(deliveries),
                "triage": triage.triage_piece(deliveries, state.runs + 1),
            }
            store.add(Piece(state.through + 1, last), frames)
            consumers.advance(_CONSUMER, last)
            store.merge(_merged, fan)
    return len(new)


def read_volume(spark: SparkSession, layout: Layout, window: Seconds = health.WINDOW) -> DataFrame:
    """See ``health.volume``."""
    return health.volume(*pieces(spark, layout), window)


def read_health(spark: SparkSession, layout: Layout, window: Seconds = health.WINDOW) -> DataFrame:
    """See ``health.health``."""
    return health.health(pieces(spark, layout)[1], window)


def read_triage(spark: SparkSession, layout: Layout) -> DataFrame:
    """See ``triage.triage``."""
    store = AggregateStore(spark, layout, _TABLES)
    return triage.triage(store.read("triage"), store.state.runs)


def pieces(spark: SparkSession, layout: Layout) -> tuple[DataFrame, DataFrame]:
    """The pieces of volume and of health, to be merged in another way."""
    store = AggregateStore(spark, layout, _TABLES)
    return store.read("volume"), store.read("health")


def _merged(table: str, rows: DataFrame) -> DataFrame:
    if table == "volume":
        return health.merged_volume(rows)
    return health.merged_health(rows) if table == "health" else triage.merged_triage(rows)


def _batches(spark: SparkSession, layout: Layout, table: str, numbers: list[int]) -> DataFrame:
    there = set(layout.batches(table))
    folders = [str(layout.batch(table, number)) for number in numbers if number in there]
    reader = spark.read.schema(spark_schema(table)).option("basePath", str(layout.table(table)))
    if folders:
        return reader.parquet(*folders)
    return reader.parquet(str(layout.table(table))).limit(0)
