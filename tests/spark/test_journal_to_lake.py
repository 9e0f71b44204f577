"""From an application to its tables: what was sent and how it ended, as rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from matador import DontRetry, Envelope, Hooks, Matador, Schema, event, subscriber
from matador.observe import Attempt, Journal
from matador.spark import Lake
from matador.testing import wait_for


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@subscriber(description="Charges the card.", idempotent="yes")
async def charge(envelope: Envelope[OrderPlaced]) -> None:
    if envelope.data.amount > 100:
        raise DontRetry(f"card of order {envelope.data.order_id!r} declined")


@subscriber(description="Sends the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None:
    pass


SCHEMA = Schema({OrderPlaced: [charge, email_receipt]})


class Ended(Hooks):
    """Counts deliveries that ended."""

    def __init__(self) -> None:
        self.count = 0

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        self.count += len(batch)


async def run_shop(journal: Journal) -> None:
    ended = Ended()
    app = Matador("memory://", schema=SCHEMA, consume_from=["events"], hooks=[journal, ended])
    async with app:
        for amount in (5, 50, 500):
            await app.send(OrderPlaced(f"order-{amount}", amount), correlation_id=f"c-{amount}")
        await wait_for(lambda: ended.count == 6)


def test_what_an_application_did_is_in_its_tables(tmp_path: Path, spark: SparkSession) -> None:
    asyncio.run(run_shop(Journal(tmp_path / "journal")))
    lake = Lake(tmp_path / "lake", schema=SCHEMA, spark=spark)

    result = lake.ingest(tmp_path / "journal")

    assert (result.events, result.deliveries, result.quarantined) == (6, 6, 0)
    (failed,) = lake.sql(
        """
        SELECT events.event_key, events.subscriber, outcome, error_type, error, ran,
               events.correlation_id, get_json_object(data_json, '$.amount') AS amount
        FROM deliveries JOIN events USING (id) WHERE outcome != 'success'
        """
    ).collect()
    assert failed.asDict() == {
        "event_key": "order.placed",
        "subscriber": "charge",
        "outcome": "dead-letter",
        "error_type": "DontRetry",
        "error": "card of order 'order-500' declined",
        "ran": True,
        "correlation_id": "c-500",
        "amount": "500",
    }
