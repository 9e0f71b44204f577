"""Keeps volume, health and triage up to date, batch by batch.

Each update reads the batches that came since the last one, and adds a piece: their partial result.
Several small pieces are merged into a larger one, so that there are never many. One small file
names the valid pieces and is replaced atomically; any other folder is a leftover of a killed run.
Updating twice with the same batches changes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from pyspark.sql import DataFrame, SparkSession

from matador.model.options import Seconds
from matador.spark.aggregates import health, triage
from matador.spark.runtime.files import (
    locked,
    move,
    private_folder,
    read_json,
    remove,
    sync_tree,
    write_json,
)
from matador.spark.tables.batch_log import last_done
from matador.spark.tables.layout import Layout, spark_schema
from matador.spark.tables.reader import with_way

FAN: Final = 8
"""How many pieces of one level are merged into one of the next."""

_COLUMNS: Final = {
    "volume": health.VOLUME_PIECE,
    "health": health.HEALTH_PIECE,
    "triage": triage.TRIAGE_PIECE,
}
_MERGE: Final = {
    "volume": health.merged_volume,
    "health": health.merged_health,
    "triage": triage.merged_triage,
}


class Piece(msgspec.Struct, frozen=True):
    """The partial result of the batches ``first`` to ``last``."""

    first: int
    last: int
    level: int = 0

    @property
    def folder(self) -> str:
        """The name of its folder, the same in every table."""
        return f"batches={self.first}-{self.last}"


class AggregateState(msgspec.Struct, frozen=True):
    """The progress of the aggregates: the valid pieces, and how many updates there were."""

    runs: int = 0
    pieces: tuple[Piece, ...] = ()

    @property
    def through(self) -> int:
        """The last batch included; -1 if there is none. Compaction must not merge later ones."""
        return self.pieces[-1].last if self.pieces else -1


class Aggregates:
    """The aggregates of a lake. One process at a time may update them."""

    def __init__(self, spark: SparkSession, layout: Layout) -> None:
        self._spark = spark
        self._layout = layout
        self._path = layout.checkpoints / "aggregates.json"

    @property
    def state(self) -> AggregateState:
        """The current state."""
        return read_json(self._path, AggregateState) or AggregateState()

    def update(self, *, fan: int = FAN) -> int:
        """Include the new batches that are done; returns how many there were."""
        layout = self._layout
        layout.make()
        # Not the lock of the lake: an ingest may run at the same time.
        with locked(layout.checkpoints / "aggregates.lock"):
            state = self.state
            self._clean()
            last = last_done(layout.checkpoints / "ingest")
            present = sorted({*layout.batches("events"), *layout.batches("deliveries")})
            new = [number for number in present if state.through < number <= last]
            if new:
                deliveries = self._batches("deliveries", new)
                piece = Piece(state.through + 1, last)
                frames = {
                    "volume": health.volume_piece(self._batches("events", new)),
                    "health": health.health_piece(deliveries),
                    "triage": triage.triage_piece(deliveries, state.runs + 1),
                }
                self._write(piece, frames, AggregateState(state.runs + 1, (*state.pieces, piece)))
                self._merge(fan)
        return len(new)

    def volume(self, window: Seconds = health.WINDOW) -> DataFrame:
        """See ``health.volume``."""
        return health.volume(self.pieces("volume"), self.pieces("health"), window)

    def health(self, window: Seconds = health.WINDOW) -> DataFrame:
        """See ``health.health``."""
        return health.health(self.pieces("health"), window)

    def triage(self) -> DataFrame:
        """See ``triage.triage``."""
        return triage.triage(self.pieces("triage"), self.state.runs)

    def pieces(self, table: str, pieces: Sequence[Piece] | None = None) -> DataFrame:
        """The rows of some pieces of a table, or of all; a key may have a row in each."""
        chosen = self.state.pieces if pieces is None else pieces
        folders = [str(self._layout.table(table) / piece.folder) for piece in chosen]
        if not folders:
            return cast("Any", self._spark).createDataFrame([], _COLUMNS[table])
        rows = self._spark.read.schema(_COLUMNS[table]).parquet(*folders)
        return with_way(rows) if "way" in rows.columns else rows

    def _merge(self, fan: int) -> None:
        """Merge small pieces while there are ``fan`` of one level."""
        state = self.state
        while len(last := state.pieces[-fan:]) == fan and len({one.level for one in last}) == 1:
            whole = Piece(last[0].first, last[-1].last, last[-1].level + 1)
            frames = {name: merge(self.pieces(name, last)) for name, merge in _MERGE.items()}
            state = AggregateState(state.runs, (*state.pieces[:-fan], whole))
            self._write(whole, frames, state)
        self._clean()

    def _clean(self) -> None:
        """Remove folders that are not valid pieces."""
        valid = {piece.folder for piece in self.state.pieces}
        for table in _COLUMNS:
            for folder in [*self._layout.table(table).glob("*")]:
                if folder.name not in valid:
                    remove(folder)

    def _write(self, piece: Piece, frames: Mapping[str, DataFrame], state: AggregateState) -> None:
        """Write a piece of every table, then the state in which it is valid."""
        for table, frame in frames.items():
            folder = self._layout.table(table)
            private_folder(folder)
            staging = folder / f"_staging-{uuid.uuid4().hex}"
            # Usually few rows: many small files would cost more than they save.
            frame.coalesce(1).write.parquet(str(staging))
            sync_tree(staging)
            move(staging, folder / piece.folder)
        write_json(self._path, state)

    def _batches(self, table: str, numbers: Sequence[int]) -> DataFrame:
        folder = self._layout.table(table)
        present = set(self._layout.batches(table))
        paths = [str(self._layout.batch(table, one)) for one in numbers if one in present]
        reader = self._spark.read.schema(spark_schema(table)).option("basePath", str(folder))
        return reader.parquet(*paths) if paths else reader.parquet(str(folder)).limit(0)
