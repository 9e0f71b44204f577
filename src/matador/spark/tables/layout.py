"""The folders of a lake, and the columns of its tables.

Every table is a Delta table in the folder of its name. Names that begin with an underscore are
internal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.types import DateType, StructType

from matador.errors import ConfigurationError
from matador.spark.runtime.arrow import DataType, Schema, pa, struct_type
from matador.spark.runtime.java import cache_folder
from matador.spark.tables.delta import PARTITION, DeltaTable
from matador.storage import FolderStorage, Storage, open_storage

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
    ("way", pa.string(), False),
    ("options", pa.map_(pa.string(), pa.string()), True),
)
"""One row for each message sent: an event on its way to one subscriber, or a job.

``way`` is ``event``, ``job``, ``rpc`` or ``message``. For a job, ``event_key`` is its name and
``subscriber`` its queue.
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
    ("way", pa.string(), False),
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
    ("quarantined_at", _INSTANT, False),
    ("fingerprint", pa.string(), False),
)
"""One row for everything that fits neither of the other tables, with the reason and the text.

``kind``: ``undecodable`` (bytes in a queue that are not an envelope), ``malformed-record`` (a line
of the journal that is not a record), ``unknown-event``, ``invalid-payload``. ``source`` is the
queue, or the segment of the journal. ``fingerprint`` is a hash of the record: equal records are
kept once.
"""

TABLES: dict[str, Schema] = {
    "events": EVENTS,
    "deliveries": DELIVERIES,
    "quarantine": QUARANTINE,
}
"""The tables that ingest writes. They are partitioned by ``date``: that of ``recorded_at``."""

SEGMENTS = _columns(
    ("name", pa.string(), False),
    ("size", pa.int64(), False),
    ("modified", pa.int64(), False),
)
"""The segments of journals that are ingested. A file that has changed is a new segment."""


def spark_schema(columns: Schema, *, partitioned: bool = True) -> StructType:
    """The columns of a table in Spark, including the partition."""
    schema = struct_type(columns)
    for field in schema:
        field.nullable = True  # always so in Parquet that Spark reads
    return schema.add(PARTITION, DateType()) if partitioned else schema


class Layout:
    """The folders of one lake. Driver and executors must see them under the same path.

    Attributes:
        storage: where the lake is.
        ledger: the plans and the progress of replays.
    """

    def __init__(
        self, root: str | os.PathLike[str], options: Mapping[str, Any] | None = None
    ) -> None:
        self.storage = open_storage(root, "Lake", options)

    @property
    def root(self) -> Path:
        """The local folder of the lake.

        Raises:
            ConfigurationError: the lake is in an object store.
        """
        if not isinstance(self.storage, FolderStorage):
            raise ConfigurationError(f"the lake {self.storage.root} is not in a local folder")
        return self.storage.path

    @property
    def ledger(self) -> Storage:
        """The plans and the progress of replays."""
        return self.storage.child("_ledger")

    def table(self, name: str) -> DeltaTable:
        """A table that ingest writes. A new object: it belongs to one thread."""
        return DeltaTable(self.storage, name, TABLES[name])

    def segments(self) -> DeltaTable:
        """The ingested segments."""
        return DeltaTable(self.storage, "_segments", SEGMENTS, partitioned=False)

    def index(self, table: str) -> Path:
        """The folder of the index of a table, always on this machine: it is a cache.

        That of a lake in an object store is in the cache folder of the user. A table has a unique
        id, which the name of the index contains: lakes do not get mixed up.
        """
        if isinstance(self.storage, FolderStorage):
            return self.storage.path / "_index" / table
        return cache_folder() / "index" / table
