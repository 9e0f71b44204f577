"""The events for a DataFrame subscriber, read from the journal as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from matador.observe.journal.records import REPLAY_ID, REPLAY_OF
from matador.spark.dataframes.subscriber import DataFrameSubscriber
from matador.spark.runtime.arrow import RecordBatch, map_in_arrow, pa
from matador.spark.source.rows import DATA
from matador.spark.tables.decode import EVENT, LineDecoder
from matador.spark.tables.layout import EVENTS, spark_schema

# Equal in the copies of one event for its subscribers, and different in any two events.
_SAME_EVENT = ("event_key", "created_at", "correlation_id", "data_json", "before_json")
_RANK = "_rank"


def journal_stream(spark: SparkSession, journal: Path, batch_size: int) -> DataFrame:
    """The envelopes sent, as a stream over the finished segments of a journal.

    The columns are those of the lake's ``events`` table. A batch has ``batch_size`` bytes of the
    journal, or one larger segment.
    """
    lines = (
        spark.readStream.format("text")
        .option("pathGlobFilter", "*.jsonl")
        .option("maxBytesPerTrigger", str(batch_size))
        .option("lineSep", "\n")
        .load(str(journal))
    )
    columns = spark_schema(EVENTS, partitioned=False)
    chosen = lines.select("value", "_metadata.file_name")
    return map_in_arrow(chosen, partial(decode_sent, journal), columns)


def decode_sent(journal: Path, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Decode lines of the journal; symbolic links are ignored. Runs in the executors."""
    decoder = LineDecoder()
    for batch in batches:
        names = batch.column(1).dictionary_encode()  # Spark follows links, we do not
        links = [(journal / name).is_symlink() for name in names.dictionary.to_pylist()]
        if any(links):
            batch = batch.filter(pa.array([not links[at] for at in names.indices.to_pylist()]))
        block = "\n".join(batch.column(0).to_pylist()).encode()
        rows = decoder.decode(block, "journal").tables["events"].batch
        if rows.num_rows:
            yield rows


def queue_stream(messages: DataFrame) -> DataFrame:
    """The envelopes sent, of a stream of ``format("matador")`` over a queue.

    The columns are those of the lake's ``events`` table that a subscriber's events have. Retries of
    a message are left out.
    """
    first = messages.where("attempts = 1").drop(DATA)  # which is decoded for each subscriber
    metadata = first.metadata
    return first.withColumns(
        {
            "recorded_at": first.stored_at,
            "replay_id": metadata[REPLAY_ID],
            "replay_of": metadata[REPLAY_OF],
        }
    )


def chosen(events: DataFrame, subscriber: DataFrameSubscriber) -> DataFrame:
    """The envelopes for a subscriber, one for each event.

    The choice is deterministic: a batch that comes again has the same ids.
    """
    of_event = events.event_key.isin(list(subscriber.event.keys))
    found = events.where((events.way == EVENT) & of_event)
    if not subscriber.replays:
        found = found.where(found.replay_id.isNull())
    if subscriber.copy_for is not None:
        found = found.where(found.subscriber == subscriber.copy_for)
        copies = Window.partitionBy("id").orderBy("recorded_at")
    else:
        copies = Window.partitionBy(*_SAME_EVENT).orderBy("id")
    ranked = found.withColumn(_RANK, sql.row_number().over(copies))
    return ranked.where(ranked[_RANK] == 1).drop(_RANK)
