"""Kafka as a source of Spark: by partition and offset, again and again, whoever consumes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from tests.spark.test_source_brokers import Post
from tests.spark.test_source_reading import run
from tests.support.brokers import broker_url
from tests.support.kafka import delete_topics, forget_topics, kafka_admin, make_topics, servers_of

from matador.loading import load_application
from matador.spark.dataframes.runner import run_dataframe_subscribers
from matador.spark.dataframes.subscriber import Batch, dataframe_subscriber
from matador.spark.runtime.log_ranges import limited
from matador.spark.source.log_readers import LogPart, log_parts


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    made = Post(tmp_path, "kafka", f"{broker_url('kafka')}?partitions=3")
    yield made
    forget_topics(made.url, made.namespace)


def write(spark: SparkSession, post: Post, first: int, last: int) -> None:
    rows = spark.range(first, last + 1).selectExpr("id as number")
    target = {"app": post.reference, "event": "parcel.sent"}
    rows.write.format("matador").options(**target).mode("append").save()


def read(spark: SparkSession, post: Post, queue: str = "events") -> DataFrame:
    return spark.read.format("matador").options(**post.options(queue)).load()


def stream(spark: SparkSession, post: Post, **options: str) -> DataFrame:
    given = {**post.options(), **options}
    return spark.readStream.format("matador").options(**given).load()


def test_a_batch_has_what_is_there_and_its_state_and_consumes_nothing(
    spark: SparkSession, post: Post
) -> None:
    write(spark, post, 1, 30)
    for _ in range(2):
        rows = read(spark, post).select("id", "state", "position").collect()
        assert len({row.id for row in rows}) == len(rows) == 30
        assert len({row.position for row in rows}) == 30
        assert {row.state for row in rows} == {"ready"}
    post.handle(30)
    assert {row.state for row in read(spark, post).select("state").collect()} == {"done"}
    dead = read(spark, post, "events.undeliverable").select("reason", "state").collect()
    assert sorted(row.reason for row in dead) == [
        "nobody lives at number 10",
        "nobody lives at number 20",
        "nobody lives at number 30",
    ]
    assert {row.state for row in dead} == {"ready"}


def test_a_stream_resumes_at_its_offsets_handled_or_not(
    spark: SparkSession, post: Post, tmp_path: Path
) -> None:
    write(spark, post, 1, 40)
    post.handle(40)
    frame = stream(spark, post, max_rows="15").select("id", "state")
    sizes = run(frame, tmp_path)
    assert sum(sizes) == 40
    assert max(sizes) <= 15
    write(spark, post, 41, 45)
    assert sum(run(frame, tmp_path)) == 5
    assert run(frame, tmp_path) == []
    seen = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert len({row.id for row in seen}) == len(seen) == 45


def test_records_of_other_programs_are_rows_that_say_what_is_wrong(spark: SparkSession) -> None:
    url = broker_url("kafka")
    name = "spark-foreign.events"
    make_topics(url, name, partitions=2)
    try:
        producer = Producer({"bootstrap.servers": servers_of(url)})
        for body in (b"\xff\x00", b"{}", None):
            producer.produce(name, body, key=b"\xff", headers=[("x", None)])
        assert producer.flush(20) == 0
        rows = spark.read.format("matador").options(url=url, queue=name).load().collect()
        assert Counter(bytes(row.raw) for row in rows) == {b"\xff\x00": 1, b"{}": 1, b"": 1}
        assert all(row.decode_error for row in rows)
    finally:
        delete_topics(url, name)


def test_messages_that_were_deleted_unread_are_an_error_unless_they_may_be_skipped(
    spark: SparkSession, post: Post, tmp_path: Path
) -> None:
    write(spark, post, 1, 20)
    assert sum(run(stream(spark, post).select("id"), tmp_path)) == 20
    write(spark, post, 21, 60)
    topic = f"{post.namespace}.events"
    admin: Any = kafka_admin(post.url)
    places = [TopicPartition(topic, number, -1) for number in range(3)]  # -1: all there is
    for future in admin.delete_records(places).values():
        future.result()
    write(spark, post, 61, 63)
    with pytest.raises(Exception, match="were deleted before the stream has read them"):
        run(stream(spark, post).select("id"), tmp_path)
    assert sum(run(stream(spark, post, missing="skip").select("id"), tmp_path)) == 3


def test_a_stream_waits_for_an_open_transaction(
    spark: SparkSession, post: Post, tmp_path: Path
) -> None:
    write(spark, post, 1, 3)
    topic = f"{post.namespace}.events"
    settings = {"bootstrap.servers": servers_of(post.url), "transactional.id": post.namespace}
    producer = Producer(settings)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"committed later", partition=0)
    assert producer.flush(20) == 0
    frame = stream(spark, post).select("raw")
    assert sum(run(frame, tmp_path)) == 3
    producer.commit_transaction(20)
    assert sum(run(frame, tmp_path)) == 1
    assert run(frame, tmp_path) == []


def test_dataframe_subscribers_get_each_event_once_and_no_retries(
    spark: SparkSession, post: Post, tmp_path: Path
) -> None:
    event: Any = load_application(post.reference).module.__dict__["ParcelSent"]
    given: list[tuple[int, int]] = []

    @dataframe_subscriber(event, description="Adds up.")
    def add_up(parcels: DataFrame, batch: Batch) -> None:
        numbers = [row.number for row in parcels.select("data.number").collect()]
        given.append((len(numbers), sum(numbers)))

    for first, last in ((1, 30), (31, 35)):
        write(spark, post, first, last)
        post.handle(last - first + 1)
        totals = run_dataframe_subscribers(
            [add_up],
            journal=stream(spark, post),
            checkpoint=tmp_path / "checkpoint",
            spark=spark,
        )
        assert [one.rows for one in totals] == [last - first + 1]
    assert given == [(30, sum(range(1, 31))), (5, sum(range(31, 36)))]


def test_a_limit_is_shared_out_by_what_is_left() -> None:
    left = {0: (0, 100), 1: (50, 60), 2: (7, 7)}
    ends = limited(left, 22)
    assert sum(ends[number] - start for number, (start, _) in left.items()) == 22
    assert all(start <= ends[number] <= end for number, (start, end) in left.items())
    assert limited(left, None) == limited(left, 1000) == {0: 100, 1: 60, 2: 7}
    assert sum(limited(dict.fromkeys(range(9), (0, 1)), 1).values()) == 1


def test_parts_cover_each_offset_once() -> None:
    parts = log_parts({0: (0, 100), 1: (50, 61), 2: (7, 7)}, 4)
    assert 4 <= len(parts) <= 6
    covered = [(part.number, at) for part in parts for at in range(part.start, part.end)]
    assert len(covered) == len(set(covered)) == 111
    assert log_parts({}, 4) == [LogPart(0, 0, 0)]
