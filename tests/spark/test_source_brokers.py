"""The data source on brokers of the network: what it reads there, writes there, and refuses."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.test_source_reading import run
from tests.support.brokers import broker_url

from matador.loading import load_application
from matador.observe.counters import OutcomeCounter
from matador.testing import wait_for

_SOURCE = """
from dataclasses import dataclass

from matador import DontRetry, Envelope, Matador, Schema, Topology, WorkQueue, event, subscriber


@event("parcel.sent", description="A parcel left.")
@dataclass(frozen=True)
class ParcelSent:
    number: int


@subscriber(description="Tells the customer.", idempotent="yes")
async def tell(envelope: Envelope[ParcelSent]) -> None:
    if envelope.data.number % 10 == 0:
        raise DontRetry(f"nobody lives at number {{envelope.data.number}}")


app = Matador(
    {url!r},
    schema=Schema({{ParcelSent: [tell]}}),
    topology=Topology({namespace!r}, queues=[WorkQueue("events", retention=600)]),
    consume_from=["events"],
)
"""


class Post:
    """An application on a broker, in a file that executors load."""

    def __init__(self, folder: Path, broker: str, url: str | None = None) -> None:
        self.url = broker_url(broker) if url is None else url
        self.namespace = f"spark-{uuid.uuid4().hex[:8]}"
        file = folder / f"{broker}_{self.namespace.replace('-', '_')}.py"
        file.write_text(_SOURCE.format(url=self.url, namespace=self.namespace))
        self.reference = f"{file}:app"

    def options(self, queue: str = "events") -> dict[str, str]:
        return {"url": self.url, "queue": f"{self.namespace}.{queue}"}

    def handle(self, count: int) -> None:
        """Let a worker handle what is there: ``count`` messages."""

        async def work() -> None:
            loaded = load_application(self.reference)
            counter = OutcomeCounter()
            loaded.app.configure(hooks=[counter])
            async with loaded.app as app:
                await wait_for(lambda: counter.total() >= count, timeout=30)
                await app.wait_idle(10)

        asyncio.run(work())

    def purge(self) -> None:
        async def purge() -> None:
            app = load_application(self.reference).app
            app.configure(consume_from=[])
            async with app:
                transport: Any = app.transport
                for queue in ("events", "events.unhandled", "events.undeliverable"):
                    await transport.purge(f"{self.namespace}.{queue}")

        asyncio.run(purge())


@pytest.fixture(params=["rabbitmq", "redis", "bullmq"])
def post(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Post]:
    match request.param:
        case "bullmq":
            url = broker_url("redis").replace("redis://", "bullmq://")
            made = Post(tmp_path, "redis", url)
        case broker:
            made = Post(tmp_path, broker)
    yield made
    made.purge()


def test_rows_become_messages_and_messages_and_dead_letters_rows(
    spark: SparkSession, post: Post
) -> None:
    rows = spark.range(1, 31).selectExpr("id as number")
    target = {"app": post.reference, "event": "parcel.sent"}
    rows.write.format("matador").options(**target).mode("append").save()
    stored = spark.read.format("matador").options(**post.options()).load()
    for _ in range(2):  # reading takes nothing away
        assert stored.where("event_key = 'parcel.sent'").select("id").distinct().count() == 30
    post.handle(30)
    dead = spark.read.format("matador").options(**post.options("events.undeliverable")).load()
    assert sorted(row.reason for row in dead.select("reason").collect()) == [
        "nobody lives at number 10",
        "nobody lives at number 20",
        "nobody lives at number 30",
    ]


def test_a_stream_is_read_where_finished_messages_are_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    post = Post(tmp_path, "redis")
    rows = spark.range(1, 41).selectExpr("id as number")
    target = {"app": post.reference, "event": "parcel.sent"}
    rows.write.format("matador").options(**target).mode("append").save()
    post.handle(40)

    def stream() -> Any:
        options = {**post.options(), "max_rows": "15"}
        return spark.readStream.format("matador").options(**options).load().select("id", "state")

    assert sum(run(stream(), tmp_path)) == 36, "dead letters are elsewhere"
    rows.limit(5).write.format("matador").options(**target).mode("append").save()
    assert run(stream(), tmp_path) == [5]
    assert run(stream(), tmp_path) == []
    seen = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert len({row.id for row in seen}) == len(seen) == 41
    post.purge()


def test_a_stream_of_what_is_forgotten_says_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    post = Post(tmp_path, "rabbitmq")
    stream = spark.readStream.format("matador").options(**post.options()).load()
    with pytest.raises(Exception, match="journal tap APP --queue"):
        run(stream, tmp_path)
