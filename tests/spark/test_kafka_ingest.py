"""Events go from Kafka to the lake, each of them once: whatever happens to them in the topics."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions  # pyright: ignore[reportPrivateImportUsage]
from pyspark.sql import SparkSession
from tests.spark.inline import InlineLake
from tests.support.brokers import broker_url
from tests.support.kafka import (
    OwnKafka,
    delete_topics,
    forget_topics,
    kafka_admin,
    make_topics,
    servers_of,
)
from tests.support.s3 import s3_folder, s3_options

from matador import (
    DoRetry,
    Envelope,
    Matador,
    Schema,
    StandardRetryPolicy,
    Topology,
    WorkQueue,
    event,
    subscriber,
)
from matador.errors import ConfigurationError, MessagesDeletedError, TransportError
from matador.observe import Journal
from matador.observe.counters import OutcomeCounter
from matador.spark import Lake
from matador.spark.tables.delta import DeltaTable
from matador.spark.tables.ingest import IngestProgress
from matador.spark.tables.log_offsets import LogStart
from matador.testing import wait_for
from matador.transports.kafka.reader import KafkaLog


@event("parcel.sent", description="A parcel left.")
@dataclass(frozen=True)
class ParcelSent:
    number: int


@event("parcel.lost", description="A parcel is gone.")
@dataclass(frozen=True)
class ParcelLost:
    number: int


class Post:
    """An application on Kafka, with two queues of three partitions."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url or f"{broker_url('kafka')}?partitions=3"
        self.namespace = f"ingest-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.namespace}.events"
        self.tried: list[int] = []

        @subscriber(description="Tells the customer.", idempotent="yes")
        async def tell(envelope: Envelope[ParcelSent]) -> None:
            self.tried.append(envelope.data.number)
            if envelope.data.number < 0 and envelope.docket.attempts == 1:
                raise DoRetry("nobody is there")

        @subscriber(description="Pays.", idempotent="yes", queue="money")
        async def pay(envelope: Envelope[ParcelLost]) -> None: ...

        self.schema = Schema({ParcelSent: [tell], ParcelLost: [pay]})
        self.topology = Topology(self.namespace, queues=[WorkQueue("events"), WorkQueue("money")])
        self.app = Matador(
            self.url,
            schema=self.schema,
            topology=self.topology,
            consume_from=["events"],
            retry=StandardRetryPolicy(base_delay=0.1),
        )

    def send(self, *payloads: Any) -> None:
        async def send_all() -> None:
            async with self.app.producer() as app:
                for payload in payloads:
                    await app.send(payload)

        asyncio.run(send_all())

    def send_many(self, first: int, last: int) -> None:
        async def send_all() -> None:
            async with self.app.producer() as app:
                await app.send_many([ParcelSent(one) for one in range(first, last)])

        asyncio.run(send_all())

    def raw(self, *bodies: bytes | None, **given: Any) -> None:
        producer = Producer({"bootstrap.servers": servers_of(self.url)})
        for body in bodies:
            producer.produce(self.topic, body, **given)
        assert producer.flush(20) == 0

    def delete_all(self) -> None:
        admin: Any = kafka_admin(self.url)
        places = [TopicPartition(self.topic, number, -1) for number in range(3)]
        for future in admin.delete_records(places).values():
            future.result()


@pytest.fixture
def post() -> Iterator[Post]:
    made = Post()
    yield made
    forget_topics(made.url, made.namespace)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InlineLake:
    return InlineLake(tmp_path / "lake", monkeypatch)


@pytest.fixture(params=["folder", "s3"])
def any_lake(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InlineLake]:
    """A lake in a folder, and one in an object store."""
    if request.param == "folder":
        yield InlineLake(tmp_path / "lake", monkeypatch)
        return
    monkeypatch.setenv("MATADOR_CACHE", str(tmp_path / "cache"))
    with s3_folder() as folder:
        yield InlineLake(folder.root, monkeypatch, s3_options())


def numbers(lake: InlineLake) -> list[int]:
    return sorted(int(row["data_json"].rpartition(":")[2][:-1]) for row in lake.rows("events"))


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by id, without what depends on where they came from; a message has milliseconds."""
    made: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: row["id"]):
        created = row["created_at"]
        rest = {k: v for k, v in row.items() if k not in ("recorded_at", "source", "created_at")}
        made.append({**rest, "at": created.replace(microsecond=created.microsecond // 1000)})
    return made


def test_every_event_becomes_a_row_once_and_only_what_is_new_is_read(
    post: Post, any_lake: InlineLake
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    post.send_many(0, 50)
    post.send(ParcelLost(7))
    first = any_lake.ingest_log(post.app)
    assert (first.events, first.records, first.duplicates, first.quarantined) == (51, 51, 0, 0)
    assert any_lake.ingest_log(post.app).records == 0
    post.send_many(50, 60)
    assert any_lake.ingest_log(post.app).records == 10
    rows = any_lake.rows("events")
    assert sorted(row["id"] for row in rows) == sorted({row["id"] for row in rows})
    sent = [row for row in rows if row["event_key"] == "parcel.sent"]
    assert len(sent) == 60
    assert {row["queue"] for row in sent} == {post.topic}
    assert {row["subscriber"] for row in sent} == {"tell"}
    assert {row["transport"] for row in sent} == {"kafka"}
    assert all(before < row["recorded_at"] < datetime.now(UTC) for row in rows)
    assert any_lake.rows("deliveries") == []


def test_queues_are_chosen_by_name(post: Post, lake: InlineLake) -> None:
    post.send(ParcelSent(1), ParcelLost(2))
    assert lake.ingest_log(post.app, ["money"]).events == 1
    assert lake.rows("events")[0]["event_key"] == "parcel.lost"
    with pytest.raises(ConfigurationError, match=r"no queue 'muney'.*money"):
        lake.ingest_log(post.app, ["muney"])


def test_a_batch_is_limited_and_the_lag_is_told(post: Post, lake: InlineLake) -> None:
    post.send_many(0, 100)
    told: list[IngestProgress] = []
    assert lake.ingest_log(post.app, batch_size=30, progress=told.append).events == 100
    assert [one.total for one in told] == [100] * len(told)
    assert told[0].done == 0
    assert told[-1].done == 100
    assert len(told) >= 5


def test_retries_delays_and_redriven_dead_letters_are_no_events_of_their_own(
    post: Post, lake: InlineLake
) -> None:
    async def handle() -> None:
        counter = OutcomeCounter()
        async with post.app.with_(hooks=[counter]) as app:
            await app.send(ParcelSent(-1))
            await app.send(ParcelSent(-2), delay=0.3)
            await wait_for(lambda: post.tried.count(-1) == post.tried.count(-2) == 2, timeout=30)

    asyncio.run(handle())
    result = lake.ingest_log(post.app)
    assert (result.records, result.events, result.duplicates) == (4, 2, 2)
    rows = {row["data_json"]: row for row in lake.rows("events")}
    assert rows['{"number":-1}']["scheduled_for"] is None  # that of the retry is not the event's
    due = rows['{"number":-2}']["scheduled_for"]
    assert due is not None
    assert abs(due - rows['{"number":-2}']["created_at"] - timedelta(seconds=0.3)).seconds < 0.1


def test_what_cannot_be_read_goes_to_quarantine_once_and_says_where_it_was(
    post: Post, lake: InlineLake
) -> None:
    post.send(ParcelSent(1))  # to any partition
    post.raw(b"\xff\x00", b"{}", None, partition=1, key=b"\xff", headers=[("x", None)])
    post.raw(b"odd time", partition=2, timestamp=2**62)
    result = lake.ingest_log(post.app)
    assert (result.events, result.quarantined) == (1, 4)
    rows = lake.rows("quarantine")
    places = {row["source"] for row in rows}
    partitions = Counter(place.rpartition("/")[0] for place in places)
    assert partitions == {f"kafka:{post.topic}/1": 3, f"kafka:{post.topic}/2": 1}
    assert {row["kind"] for row in rows} == {"undecodable"}
    assert {row["raw"] for row in rows} >= {"{}", "", "base64:/wA="}


def test_a_run_that_dies_between_its_commits_is_repeated_without_duplicates(
    post: Post, any_lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    post.send_many(0, 20)
    post.raw(b"nothing", b"at all")
    commit, died = DeltaTable.commit, False

    def dying(self: DeltaTable, *given: Any, **options: Any) -> int:
        nonlocal died
        if self.name == "events" and given[0] and not died:
            died = True
            raise KeyboardInterrupt
        return commit(self, *given, **options)

    monkeypatch.setattr(DeltaTable, "commit", dying)
    with pytest.raises(KeyboardInterrupt):
        any_lake.ingest_log(post.app)
    assert len(any_lake.rows("quarantine")) == 2
    assert any_lake.rows("events") == []
    result = any_lake.ingest_log(post.app)
    assert (result.records, result.events, result.quarantined, result.duplicates) == (22, 20, 0, 2)


def test_two_ingests_at_once_end_exact(post: Post, any_lake: InlineLake) -> None:
    post.send_many(0, 300)
    post.raw(*[b"no envelope"] * 10)
    errors: list[BaseException] = []

    def ingest() -> None:
        try:
            any_lake.ingest_log(post.app, batch_size=25)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=ingest) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert errors == []
    assert numbers(any_lake) == list(range(300))
    assert len(any_lake.rows("quarantine")) == 10
    assert any_lake.ingest_log(post.app).records == 0


def test_an_event_that_is_in_the_journal_too_is_one_row(
    post: Post, lake: InlineLake, tmp_path: Path
) -> None:
    async def handle() -> None:
        counter = OutcomeCounter()
        journal = Journal(tmp_path / "journal")
        async with post.app.with_(hooks=[counter, journal]) as app:
            await app.send_many([ParcelSent(one) for one in range(20)])
            await wait_for(lambda: len(post.tried) == 20, timeout=30)

    asyncio.run(handle())
    other = InlineLake.__new__(InlineLake)
    other.layout = type(lake.layout)(tmp_path / "other")
    from_journal = other.ingest(tmp_path / "journal", post.schema)
    assert (from_journal.events, from_journal.deliveries) == (20, 20)
    assert lake.ingest_log(post.app).events == 20
    both = lake.ingest(tmp_path / "journal", post.schema)
    assert (both.events, both.deliveries, both.duplicates) == (0, 20, 20)
    assert comparable(lake.rows("events")) == comparable(other.rows("events"))
    assert other.ingest_log(post.app).events == 0


def test_invalid_events_come_back_when_the_schema_has_learned_them(
    post: Post, lake: InlineLake
) -> None:
    post.send(ParcelSent(1), ParcelLost(2))
    only_sent = post.app.with_(
        schema=Schema({ParcelSent: list(post.schema.subscribers(ParcelSent))})
    )
    result = lake.ingest_log(only_sent)
    assert (result.events, result.quarantined) == (1, 1)
    assert lake.rows("quarantine")[0]["source"].startswith(f"kafka:{post.namespace}.money/")
    assert lake.release(post.schema).events == 1
    assert lake.rows("quarantine") == []
    assert len(lake.rows("events")) == 2


def test_deleted_messages_are_an_error_unless_they_may_be_skipped(
    post: Post, lake: InlineLake
) -> None:
    post.send_many(0, 30)
    lake.ingest_log(post.app)
    post.send_many(30, 60)
    post.delete_all()
    post.send_many(60, 63)
    for _ in range(2):
        with pytest.raises(MessagesDeletedError, match=r"were deleted unread.*--missing skip"):
            lake.ingest_log(post.app)
    result = lake.ingest_log(post.app, start=LogStart(missing="skip"))
    assert (result.events, result.missed) == (3, 30)
    assert lake.ingest_log(post.app).records == 0


def test_messages_that_are_deleted_while_they_are_read_are_noticed(
    post: Post, lake: InlineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    post.send_many(0, 30)
    read, deleted = KafkaLog.read, False

    def late(self: KafkaLog, ranges: Any) -> Any:
        nonlocal deleted
        if not deleted:
            deleted = True
            post.delete_all()
            post.send_many(30, 33)
        return read(self, ranges)

    monkeypatch.setattr(KafkaLog, "read", late)
    result = lake.ingest_log(post.app, start=LogStart(missing="skip"))
    assert (result.events, result.missed) == (3, 30)


def test_a_topic_that_was_made_again_is_noticed(post: Post, lake: InlineLake) -> None:
    post.send_many(0, 30)
    lake.ingest_log(post.app)
    delete_topics(post.url, post.topic)
    make_topics(post.url, post.topic, partitions=3)
    post.send_many(30, 33)
    with pytest.raises(MessagesDeletedError, match="deleted and recreated"):
        lake.ingest_log(post.app)
    assert lake.ingest_log(post.app, start=LogStart(missing="skip")).events == 3
    post.send_many(33, 36)
    assert lake.ingest_log(post.app).events == 3
    assert numbers(lake) == list(range(36))


def test_partitions_that_are_added_are_read_from_their_beginning(
    post: Post, lake: InlineLake
) -> None:
    post.send_many(0, 10)
    assert lake.ingest_log(post.app, start=LogStart("latest")).events == 0
    admin: Any = kafka_admin(post.url)
    for future in admin.create_partitions([NewPartitions(post.topic, 6)]).values():
        future.result()
    while len(admin.list_topics(post.topic, timeout=10).topics[post.topic].partitions) < 6:
        pass
    for number in range(3, 6):
        post.raw(b"foreign", partition=number)
    post.send_many(10, 20)
    result = lake.ingest_log(post.app, start=LogStart("latest"))
    assert (result.events, result.quarantined) == (10, 3)
    assert numbers(lake) == list(range(10, 20))


def test_a_new_lake_may_begin_at_a_time(post: Post, lake: InlineLake) -> None:
    post.send_many(0, 10)
    moment = datetime.now(UTC) + timedelta(milliseconds=2)  # which is what Kafka counts
    while datetime.now(UTC) < moment:
        pass
    post.send_many(10, 15)
    assert lake.ingest_log(post.app, start=LogStart(moment)).events == 5
    assert numbers(lake) == list(range(10, 15))
    # What the lake has read before goes on where it was.
    post.send_many(15, 16)
    later = LogStart(datetime.now(UTC) + timedelta(hours=1))
    assert lake.ingest_log(post.app, start=later).events == 1


def test_an_open_transaction_is_waited_for_and_an_aborted_one_left_out(
    post: Post, lake: InlineLake
) -> None:
    post.send(ParcelSent(1))
    lake.ingest_log(post.app)
    settings = {"bootstrap.servers": servers_of(post.url), "transactional.id": post.namespace}
    producer = Producer(settings)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(post.topic, b"aborted", partition=0)
    producer.flush(20)
    producer.abort_transaction(20)
    assert lake.ingest_log(post.app).quarantined == 0
    producer.begin_transaction()
    producer.produce(post.topic, b"committed", partition=0)
    producer.flush(20)
    post.raw(b"after", partition=0)
    assert lake.ingest_log(post.app).quarantined == 0
    producer.commit_transaction(20)
    assert lake.ingest_log(post.app).quarantined == 2
    assert {row["raw"] for row in lake.rows("quarantine")} == {"committed", "after"}
    assert lake.ingest_log(post.app).records == 0


def test_it_follows_until_it_is_stopped(post: Post, lake: InlineLake) -> None:
    post.send_many(0, 5)
    stop = threading.Event()
    told: list[int] = []

    def progress(now: IngestProgress) -> None:
        told.append(now.result.events)
        if now.result.events == 5 and now.done == now.total:
            post.send_many(5, 9)
        if now.result.events == 9:
            stop.set()

    result = lake.ingest_log(post.app, follow=True, stop=stop, interval=0.05, progress=progress)
    assert result.events == 9
    assert told[-1] == 9


def test_it_goes_on_after_an_outage_of_the_brokers(
    lake: InlineLake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = OwnKafka(tmp_path / "server")
    server.start()
    try:
        post = Post(f"{server.url}?timeout=2")
        post.send_many(0, 5)
        stop, there = threading.Event(), threading.Event()

        def progress(now: IngestProgress) -> None:
            if now.result.events == 5 and now.done == now.total and not there.is_set():
                there.set()
                server.kill()
            if now.result.events == 8:
                stop.set()

        def back() -> None:
            there.wait()
            while "tries again" not in caplog.text and not stop.is_set():
                stop.wait(0.05)
            server.start()
            post.send_many(5, 8)

        helper = threading.Thread(target=back)
        helper.start()
        result = lake.ingest_log(post.app, follow=True, stop=stop, interval=0.1, progress=progress)
        helper.join()
    finally:
        server.kill()
    assert result.events == 8
    assert numbers(lake) == list(range(8))


def test_what_is_not_there_is_an_error(post: Post, lake: InlineLake) -> None:
    with pytest.raises(TransportError, match="there is no queue"):
        lake.ingest_log(post.app)
    with pytest.raises(TransportError, match="there is no queue"):
        lake.ingest_log(post.app, follow=True)
    memory = Matador("memory://", schema=post.schema, topology=post.topology)
    with pytest.raises(ConfigurationError, match="not on Kafka"):
        lake.ingest_log(memory)
    nowhere = post.app.with_(transport="kafka://user:secret@127.0.0.1:1?timeout=1")
    with pytest.raises(TransportError) as caught:
        lake.ingest_log(nowhere)
    assert "secret" not in str(caught.value)
    ingest: Any = Lake(lake.layout.root).ingest
    for option in ({"since": "latest"}, {"missing": "skip"}, {"queues": ["events"]}):
        with pytest.raises(ConfigurationError, match="not for a journal"):
            ingest("journal", **option)
    for wrong in ({"missing": "maybe"}, {"since": "later"}, {"batch_size": 0}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            ingest(post.app, **wrong)


def test_spark_reads_the_topics_in_its_executors(
    spark: SparkSession, post: Post, tmp_path: Path
) -> None:
    post.send_many(0, 200)
    post.raw(b"no envelope")
    lake = Lake(tmp_path / "lake", spark=spark)
    result = lake.ingest(post.app, batch_size=90)
    assert (result.events, result.quarantined, result.records) == (200, 1, 201)
    assert lake.ingest(post.app).records == 0
    assert lake.events(ParcelSent).selectExpr("sum(data.number)").collect()[0][0] == sum(range(200))
    assert lake.volume().selectExpr("sum(sent)").collect()[0][0] == 200
