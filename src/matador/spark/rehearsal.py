"""A run through what is usually done with Spark, for the sake of the classes that it loads.

``class_archive`` runs it, in a process and a folder of its own. It is imported and not run itself,
so that Spark's workers find its events.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from matador.errors import DontRetry
from matador.events.app import Matador
from matador.model.envelope import Envelope
from matador.model.event import event
from matador.model.schema import Schema
from matador.model.subscriber import subscriber
from matador.observe.journal.hook import Journal
from matador.spark.lake import Lake
from matador.spark.session import spark_session

_ORDERS = 20


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    """An event as most are."""

    order_id: str
    amount: int


@subscriber(description="Ship it.", idempotent="yes")
async def ship(envelope: Envelope[OrderPlaced]) -> None:
    """Fails for some, so that there are dead letters."""
    if envelope.data.amount == 0:
        raise DontRetry(f"order {envelope.data.order_id} has no amount")


async def _work(app: Matador, journal: Journal) -> None:
    async with app:
        await app.send_many(OrderPlaced(str(number), number % 5) for number in range(_ORDERS))
    await journal.flush()


def main() -> None:
    """Ingest, query, report and replay, then end Java in good order: it writes the archive then."""
    (archive,) = sys.argv[1:]
    spark = spark_session("local[2]", java_options=[f"-XX:ArchiveClassesAtExit={archive}"])
    journal = Journal("journal")
    schema = Schema({OrderPlaced: [ship]})
    asyncio.run(_work(Matador("memory://", schema=schema, hooks=[journal]), journal))
    lake = Lake("lake", schema=schema, spark=spark)
    lake.ingest("journal")
    lake.events(OrderPlaced).where("data.amount > 1").groupBy("subscriber").count().collect()
    lake.sql("SELECT event_key, count(*) FROM events GROUP BY event_key ORDER BY 1").collect()
    lake.report().html("report.html")
    lake.replay(Matador("memory://", schema=schema), where="subscriber = 'ship'")
    spark.readStream.format("text").load(str(Path("journal").absolute())).writeStream.format(
        "noop"
    ).trigger(availableNow=True).start().awaitTermination()
    context: Any = SparkContext
    gateway = context._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
