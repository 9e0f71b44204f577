"""The folders of a lake, and the columns of its tables.

Tables are plain Parquet, one folder ``batch_id=N`` for each ingested batch, readable by Spark and
pyarrow alike. Names that begin with an underscore are internal; readers ignore them.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql.types import LongType, StructType

from matador.spark.runtime.arrow import DataType, Schema, pa, struct_type
from matador.spark.runtime.files import private_folder

PARTITION = "batch_id"

_INSTANT = pa.timestamp("us", tz="UTC")


def _columns(*fields: tuple[str, DataType, bool]) -> Schema:
    return pa.schema([pa.field(name, kind, nullable) for name, kind, nullable in fields])


EVENTS = _columns(
    ("id", pa.string(), False),
    ("event_key", pa.string(), False),
    ("subscriber", pa.string(), False),
    ("queue", pa.string(), False),
    ("transport", pa.string(), False),
    ("created_at", _INSTANT, False),
    ("scheduled_for", _INSTANT, True),
    ("recorded_at", _INSTANT, False),
    ("correlation_id", pa.string(), True),
    ("importance", pa.string(), False),
    ("metadata", pa.map_(pa.string(), pa.string()), True),
    ("replay_id", pa.string(), True),
    ("replay_of", pa.string(), True),
    ("source", pa.string(), True),
    ("data_json", pa.string(), False),
    ("before_json", pa.string(), True),
    ("way", pa.string(), True),
    ("options", pa.map_(pa.string(), pa.string()), True),
)
"""One row for each message sent: an event on its way to one subscriber, or a job.

``way`` is ``event``, ``job``, ``rpc`` or ``message``; files of older versions do not have it, and
are of events. For a job, ``event_key`` is its name and ``subscriber`` its queue.
"""

DELIVERIES = _columns(
    ("id", pa.string(), False),
    ("event_key", pa.string(), False),
    ("subscriber", pa.string(), False),
    ("queue", pa.string(), False),
    ("transport", pa.string(), False),
    ("attempt", pa.int32(), False),
    ("outcome", pa.string(), False),
    ("started_at", _INSTANT, False),
    ("duration_ms", pa.float64(), False),
    ("wait_ms", pa.float64(), False),
    ("since_created_ms", pa.float64(), False),
    ("created_at", _INSTANT, False),
    ("importance", pa.string(), False),
    ("recorded_at", _INSTANT, False),
    ("worker", pa.string(), False),
    ("deliveries", pa.int32(), False),
    ("ran", pa.bool_(), False),
    ("error_type", pa.string(), True),
    ("error", pa.string(), True),
    ("reason", pa.string(), True),
    ("dead_letter_kind", pa.string(), True),
    ("correlation_id", pa.string(), True),
    ("replay_id", pa.string(), True),
    ("way", pa.string(), True),
)
"""One row for each attempt to handle a message, with its outcome."""

QUARANTINE = _columns(
    ("reason", pa.string(), False),
    ("kind", pa.string(), False),
    ("raw", pa.string(), False),
    ("source", pa.string(), False),
    ("event_key", pa.string(), True),
    ("id", pa.string(), True),
    ("recorded_at", _INSTANT, True),
)
"""One row for everything that fits neither of the other tables, with the reason and the text.

``kind``: ``undecodable`` (bytes in a queue that are not an envelope), ``malformed-record`` (a line
of the journal that is not a record), ``unknown-event``, ``invalid-payload``. ``source`` is the
queue, or the segment of the journal.
"""

TABLES: dict[str, Schema] = {
    "events": EVENTS,
    "deliveries": DELIVERIES,
    "quarantine": QUARANTINE,
}
"""The tables that ingest writes, and that compaction and retention maintain."""


def spark_schema(table: str) -> StructType:
    """The columns of a table in Spark, including the partition."""
    schema = struct_type(TABLES[table])
    for field in schema:
        field.nullable = True  # always so in Parquet that Spark reads
    return StructType([*schema, *StructType().add(PARTITION, LongType())])


class Layout:
    """The folders of one lake. Driver and executors must see them under the same path.

    Attributes:
        checkpoints: the progress of ingest and of the aggregates.
        ledger: the plans and the progress of replays.
        staging: files that are being written; they are moved to their table when complete.
        lock: the lock of the one process that writes.
        pending_replacements: what a compaction has decided on but not finished.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = root / "_checkpoints"
        self.ledger = root / "_ledger"
        self.staging = root / "_staging"
        self.lock = self.checkpoints / "lock"
        self.pending_replacements = self.checkpoints / "swaps.json"

    def table(self, name: str) -> Path:
        """The folder of a table."""
        return self.root / name

    def batch(self, table: str, number: int) -> Path:
        """The folder of one batch of a table."""
        return self.table(table) / f"{PARTITION}={number}"

    def batches(self, table: str) -> list[int]:
        """The numbers of the batches of a table, in order."""
        folders = self.table(table).glob(f"{PARTITION}=*")
        return sorted(int(path.name.removeprefix(f"{PARTITION}=")) for path in folders)

    def index(self, table: str) -> Path:
        """The keys of all rows that a table ever had."""
        return self.root / "_index" / table

    def make(self) -> None:
        """Create the folders, unless they exist."""
        for table in TABLES:
            private_folder(self.table(table))
            private_folder(self.index(table))
        private_folder(self.checkpoints)
        private_folder(self.staging)
