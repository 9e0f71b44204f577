"""Reading queues, dead letters and journals as tables and streams, without consuming them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.post import Post, open_post

from matador.model.sending import SendOptions
from matador.spark.runtime.compat import HAS_READ_LIMITS

needs_read_limits = pytest.mark.skipif(
    not HAS_READ_LIMITS, reason="this PySpark has no limits for a micro-batch: since 4.2"
)


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Post:
    """Forty parcels, of which a worker handled those for ``tell``: every tenth died."""
    post = open_post(tmp_path_factory.mktemp("reading"))
    post.send(range(40))
    post.handle("events")
    return post


def read(spark: SparkSession, **options: str) -> Any:
    return spark.read.format("matador").options(**options).load()


def run(stream: Any, folder: Path) -> list[Any]:
    """Write a stream out, all there is now, and return how many rows each batch had."""
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [one.numInputRows for one in query.recentProgress if one.numInputRows]


def test_reading_a_queue_consumes_nothing(spark: SparkSession, post: Post) -> None:
    before = post.messages("slow")
    frame = read(spark, url=post.url, queue="post.slow")
    rows = frame.select("id", "state", "attempts", "subscriber", "raw").collect()
    assert sorted((row.id, bytes(row.raw)) for row in rows) == sorted(
        (one.id, one.body) for one in before
    )
    assert {(row.state, row.attempts, row.subscriber) for row in rows} == {("ready", 1, "count")}
    assert post.messages("slow") == before


def test_an_event_that_is_named_has_typed_columns(spark: SparkSession, post: Post) -> None:
    frame = read(spark, app=post.reference, queue="slow", event="parcel.shipped")
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema["data"].dataType}
    assert kinds == {
        "number": "bigint",
        "to": "string",
        "weight": "decimal(38,18)",
        "at": "timestamp",
        "tags": "array<string>",
        "extra": "map<string,bigint>",
    }
    assert frame.where("data.number >= 30 and data.to = 'ann'").count() == 10


def test_dead_letters_say_why_they_died(spark: SparkSession, post: Post) -> None:
    frame = read(spark, app=post.reference, queue="events.undeliverable", event="parcel.sent")
    rows = frame.select("data.number", "reason", "last_error", "decode_error").collect()
    assert sorted(row.number for row in rows) == [0, 10, 20, 30]
    assert all("nobody lives" in (row.last_error or row.reason) for row in rows)


def test_only_the_columns_that_are_wanted_are_made(spark: SparkSession, post: Post) -> None:
    reader = spark.read.format("matador").option("url", post.url).option("queue", "post.slow")
    assert reader.schema("id string, event_key string").load().columns == ["id", "event_key"]
    with pytest.raises(Exception, match="unknown column 'evnt_key'; did you mean 'event_key'"):
        reader.schema("evnt_key string").load().count()


def test_a_journal_is_a_table_of_what_was_sent(spark: SparkSession, post: Post) -> None:
    frame = read(spark, journal=str(post.journal), app=post.reference, event="parcel.sent")
    rows = frame.select("id", "subscriber", "data.number", "state").collect()
    assert len({row.id for row in rows}) == len(rows) == 80
    assert {row.state for row in rows} == {"sent"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "post.slwo"}, "did you mean 'post.slow'"),
        ({"quue": "post.slow"}, "did you mean 'queue'"),
        ({"queue": "post.slow", "event": "parcel.sent"}, "cannot find event 'parcel.sent'"),
    ],
)
def test_wrong_options_are_explained(
    spark: SparkSession, post: Post, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        read(spark, url=post.url, **options).count()


def test_secrets_of_a_url_are_in_no_error_and_no_plan(
    spark: SparkSession, post: Post, capfd: pytest.CaptureFixture[str]
) -> None:
    for url in ("sqlite://ann:geheim@host/x.db", "nosuch://ann:geheim@host/1"):
        with pytest.raises(Exception, match="matador") as caught:
            read(spark, url=url, queue="q").count()
        assert "geheim" not in str(caught.value)
    frame = read(spark, url=f"{post.url}?busy_timeout=7.125", queue="post.slow")
    frame.explain(True)
    assert "7.125" not in capfd.readouterr().out


@needs_read_limits
def test_a_stream_of_a_queue_starts_again_where_it_was(
    spark: SparkSession, post: Post, tmp_path: Path
) -> None:
    def stream() -> Any:
        options = {"app": post.reference, "queue": "events", "max_rows": "15"}
        return spark.readStream.format("matador").options(**options).load().select("id", "state")

    seen = len(run(stream(), tmp_path))
    assert seen > 1, "the limit makes several batches"
    first = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert {row.state for row in first} == {"done"}, "what is finished is read too"
    assert len({row.id for row in first}) == len(first) == 36, "dead letters are elsewhere"
    with post.app.producer().sync() as app:
        lost = (post.app.schema.event("parcel.lost"), {"number": 1}, SendOptions())
        app.wait(lambda running: running.publish([lost]))
    assert run(stream(), tmp_path) == [1]
    assert run(stream(), tmp_path) == []
    again = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert len({row.id for row in again}) == len(again) == 37


@needs_read_limits
def test_a_stream_of_a_journal_reads_each_segment_once(
    spark: SparkSession, post: Post, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    lines = b"".join(path.read_bytes() for path in sorted(post.journal.glob("*.jsonl"))).splitlines(
        keepends=True
    )
    sent = [line for line in lines if b'"kind":"sent"' in line][:60]

    def segment(name: str, part: list[bytes]) -> None:
        (journal / f"20261115T120000-{name}.jsonl").write_bytes(b"".join(part))

    def stream() -> Any:
        options = {"journal": str(journal), "max_files": "1"}
        return spark.readStream.format("matador").options(**options).load().select("id")

    segment("a-000001", sent[:10])
    segment("a-000003", sent[20:30])
    assert run(stream(), tmp_path) == [10, 10]
    segment("a-000002", sent[10:20])  # recovered late, with an older name
    segment("b-000001", sent[30:60])
    assert run(stream(), tmp_path) == [10, 30]
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert len({row.id for row in rows}) == len(rows) == 60


def test_a_queue_that_cannot_be_read_again_says_what_to_do(
    spark: SparkSession, post: Post, tmp_path: Path
) -> None:
    stream = spark.readStream.format("matador").options(app=post.reference, queue="slow").load()
    with pytest.raises(Exception, match=r"retention=seconds"):
        run(stream, tmp_path)


@pytest.mark.skipif(HAS_READ_LIMITS, reason="for a PySpark without limits: before 4.2")
def test_a_limit_that_spark_does_not_keep_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = (
        spark.readStream.format("matador").option("journal", str(tmp_path)).option("max_files", "1")
    ).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match=r"option 'max_files' needs Spark 4\.2 or newer"):
        query.trigger(availableNow=True).start().awaitTermination()
