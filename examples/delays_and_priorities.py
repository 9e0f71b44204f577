"""Delays, priorities and ordering keys: when a message is handled."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from matador import (
    Envelope,
    Matador,
    Schema,
    SendOptions,
    Topology,
    WorkQueue,
    event,
    subscriber,
)
from matador.testing import wait_for


@event("mail.requested", description="An email was requested.")
@dataclass(frozen=True)
class MailRequested:
    subject: str


@event("stock.changed", description="The stock of an article changed.")
@dataclass(frozen=True)
class StockChanged:
    article: str
    stock: int


mails: list[str] = []
stock: dict[str, list[int]] = {"pen": [], "ink": []}


@subscriber(description="Send the mail.", idempotent="yes", queue="mail")
async def send_mail(envelope: Envelope[MailRequested]) -> None:
    mails.append(envelope.data.subject)


@subscriber(description="Show the stock.", idempotent="yes", queue="stock")
async def show_stock(envelope: Envelope[StockChanged]) -> None:
    stock[envelope.data.article].append(envelope.data.stock)


# --8<-- [start:app]
topology = Topology(
    "shop",
    queues=[
        WorkQueue("mail", concurrency=1, priorities=True),
        WorkQueue("stock", concurrency=10),
    ],
)
# --8<-- [end:app]
schema = Schema({MailRequested: [send_mail], StockChanged: [show_stock]})
app = Matador("sqlite:///when.db", schema=schema, topology=topology, consume_from=["mail", "stock"])


async def main() -> None:
    # --8<-- [start:send]
    async with app.producer() as producer:
        await producer.send(MailRequested("reminder"), delay=timedelta(seconds=1))
        await producer.send(MailRequested("newsletter"))
        await producer.send(MailRequested("password reset"), priority=9)
        await producer.send_many(
            (StockChanged(article, number), SendOptions(ordering_key=article))
            for number in range(5)
            for article in ("pen", "ink")
        )
    # --8<-- [end:send]
    async with app:
        await wait_for(lambda: len(mails) == 3 and all(len(s) == 5 for s in stock.values()))
    print("mails:", ", ".join(mails))
    print("pen:", stock["pen"], "ink:", stock["ink"])


if __name__ == "__main__":
    asyncio.run(main())
