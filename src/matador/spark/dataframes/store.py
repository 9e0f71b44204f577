"""The state of the batches of a DataFrame subscriber, and its dead batches.

``CHECKPOINT/NAME/stream`` belongs to Spark, ``batches`` has a small file for each of the last
batches, ``dead-letters`` a folder for each dead batch, with its events as Parquet and the reason.
The driver and the executors must see the folder under the same path.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame

from matador.policy.retry import Outcome
from matador.spark.dataframes.subscriber import BatchResult
from matador.storage.files import (
    move,
    private_folder,
    read_json,
    remove,
    sync_tree,
    write_json,
)

_KEPT = 20  # Spark repeats the last batch, never an older one
_BATCH = "batch="
_REASON = "reason.json"


class BatchState(msgspec.Struct, frozen=True):
    """The progress of a batch: deliveries without an outcome, and attempts that have ended.

    ``running``: another attempt was started, and its end is unknown.
    """

    deliveries: int = 0
    attempts: int = 0
    running: bool = False
    outcome: Outcome | None = None


class DeadBatch(msgspec.Struct, frozen=True):
    """A batch that failed permanently: its subscriber, the reason, and its events."""

    subscriber: str
    event_key: str
    batch_id: int
    rows: int
    attempts: int
    reason: str
    error_type: str | None
    error: str | None
    died_at: datetime
    folder: str = ""

    @property
    def events(self) -> str:
        """The Parquet folder, with the columns of the lake's ``events`` table."""
        return str(Path(self.folder) / "events")


class BatchStore:
    """The folder of one DataFrame subscriber. Used by one process at a time."""

    def __init__(self, checkpoint: Path, subscriber: str) -> None:
        root = checkpoint / subscriber
        self.stream = root / "stream"  # the checkpoint of Spark
        self.lock = root / "lock"  # of the process that runs the subscriber
        self._batches = root / "batches"
        self._dead = root / "dead-letters"

    def make(self) -> None:
        """Create the folders."""
        private_folder(self._batches)
        private_folder(self._dead)

    # -- progress ---------------------------------------------------------------------------------

    def state(self, batch_id: int) -> BatchState:
        """The progress of a batch; that of a new one is empty."""
        return read_json(self._file(batch_id), BatchState) or BatchState()

    def save(self, batch_id: int, state: BatchState) -> None:
        """Save the progress of a batch durably, and remove that of old ones."""
        write_json(self._file(batch_id), state)
        self._file(batch_id - _KEPT).unlink(missing_ok=True)

    def _file(self, batch_id: int) -> Path:
        return self._batches / f"{batch_id}.json"

    # -- dead letters -----------------------------------------------------------------------------

    def bury(self, events: DataFrame, result: BatchResult, died_at: datetime) -> DeadBatch:
        """Keep a dead batch, atomically. Idempotent."""
        target = self._dead / f"{_BATCH}{result.batch_id}"
        staged = self._dead / f"_new-{result.batch_id}"
        events.write.mode("overwrite").parquet(str(staged / "events"))
        sync_tree(staged)
        dead = DeadBatch(
            *(result.subscriber, result.event_key, result.batch_id, result.rows, result.attempt),
            *(result.reason or "", result.error_type, result.error, died_at, str(target)),
        )
        write_json(staged / _REASON, dead)
        move(staged, target)
        return dead

    def dead(self) -> Iterator[DeadBatch]:
        """The dead batches, oldest first."""
        folders = self._dead.glob(f"{_BATCH}*")
        for folder in sorted(folders, key=lambda one: int(one.name.removeprefix(_BATCH))):
            found = msgspec.json.decode((folder / _REASON).read_bytes(), type=DeadBatch)
            yield msgspec.structs.replace(found, folder=str(folder))  # it may have been moved

    def forget(self, dead: DeadBatch) -> None:
        """Delete a dead batch."""
        remove(Path(dead.folder))
