"""Where a lake keeps what: its folders, and the columns of its tables.

Tables are plain Parquet, one folder ``batch_id=N`` for each batch that was ingested, readable by
Spark and pyarrow alike. Names that start with an underscore are ours, and ignored by readers.
"""

from __future__ import annotations

from dataclasses import dataclass
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
)
"""One row an envelope that was sent: an event on its way to one subscriber."""

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
)
"""One row for each time an envelope was handled, with how that ended."""

QUARANTINE = _columns(
    ("reason", pa.string(), False),
    ("kind", pa.string(), False),
    ("raw", pa.string(), False),
    ("source", pa.string(), False),
    ("event_key", pa.string(), True),
    ("id", pa.string(), True),
    ("recorded_at", _INSTANT, True),
)
"""One row for what is in neither of the other tables, with the reason and the text itself.

``kind``: ``undecodable`` (bytes in a queue that are no envelope), ``malformed-record`` (a line of
the journal that is no record), ``unknown-event``, ``invalid-payload``. ``source`` is the queue, or
the segment of the journal.
"""

TABLES: dict[str, Schema] = {
    "events": EVENTS,
    "deliveries": DELIVERIES,
    "quarantine": QUARANTINE,
}
"""What ingest writes, and compaction and retention look after."""


def spark_schema(table: str) -> StructType:
    """The columns of a table as Spark sees them, the partition included."""
    schema = struct_type(TABLES[table])
    for field in schema:
        field.nullable = True  # Parquet read by Spark is always so
    return StructType([*schema, *StructType().add(PARTITION, LongType())])


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of one lake. Driver and executors must see it under the same path."""

    root: Path

    def table(self, name: str) -> Path:
        """The folder of a table."""
        return self.root / name

    def batch(self, table: str, number: int) -> Path:
        """The folder of one batch of a table."""
        return self.table(table) / f"{PARTITION}={number}"

    def batches(self, table: str) -> list[int]:
        """The numbers of the batches that a table has, in order."""
        return sorted(
            int(path.name.removeprefix(f"{PARTITION}="))
            for path in self.table(table).glob(f"{PARTITION}=*")
        )

    @property
    def checkpoints(self) -> Path:
        """What was read, how far each batch is, how far each consumer of the tables is."""
        return self.root / "_checkpoints"

    @property
    def ledger(self) -> Path:
        """What replays are to send, and what they sent."""
        return self.root / "_ledger"

    @property
    def staging(self) -> Path:
        """Where files are written before they are moved to where readers see them."""
        return self.root / "_staging"

    def index(self, table: str) -> Path:
        """The keys of all rows a table ever had."""
        return self.root / "_index" / table

    @property
    def pending_replacements(self) -> Path:
        """What a compaction has decided, while it carries that out."""
        return self.checkpoints / "swaps.json"

    @property
    def lock(self) -> Path:
        """Held by the one process that writes."""
        return self.checkpoints / "lock"

    def make(self) -> None:
        """Make the folders; those that exist are left alone."""
        for table in TABLES:
            private_folder(self.table(table))
            private_folder(self.index(table))
        private_folder(self.checkpoints)
        private_folder(self.staging)
