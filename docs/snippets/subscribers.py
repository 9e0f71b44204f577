"""The options of subscribers, a schema and a topology."""

import asyncio
from dataclasses import dataclass

from matador import (
    Context,
    Envelope,
    Matador,
    Schema,
    SubscriberStub,
    Topology,
    WorkQueue,
    event,
    subscriber,
)


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@event("price.changed", description="The price of an article changed.")
@dataclass(frozen=True)
class PriceChanged:
    article: str
    price: int


# --8<-- [start:metadata]
@dataclass(frozen=True)
class OrderMetadata:
    channel: str
    campaign: str | None = None


@event("order.canceled", description="A customer canceled an order.", metadata=OrderMetadata)
@dataclass(frozen=True)
class OrderCanceled:
    order_id: str


# --8<-- [end:metadata]


features = {"loyalty": False}


# --8<-- [start:subscribers]
@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None: ...


@subscriber(
    description="Charge the card.",
    idempotent="resumable",
    importance="must-investigate",
    queue="billing",
)
async def charge(envelope: Envelope[OrderPlaced], ctx: Context) -> None: ...


@subscriber(
    description="Add loyalty points.",
    idempotent="yes",
    enabled=lambda: features["loyalty"],  # asked at every send
)
def add_points(envelope: Envelope[OrderPlaced]) -> None: ...  # runs in a thread


ship = SubscriberStub("ship", description="In another service.", queue="warehouse")
# --8<-- [end:subscribers]


@subscriber(description="Update the price tags.", idempotent="yes")
async def update_tags(envelope: Envelope[PriceChanged]) -> None: ...


# --8<-- [start:schema]
@subscriber(description="Keep an audit trail.", importance="can-ignore")
async def audit(envelope: Envelope[object]) -> None: ...


schema = Schema(
    {
        OrderPlaced: [email_receipt, charge, add_points, ship],
        PriceChanged: [update_tags],
    }
).with_plugin(audit, exclude=[PriceChanged])
# --8<-- [end:schema]

# --8<-- [start:topology]
topology = Topology(
    "shop",
    queues=[
        "events",  # the default queue: subscribers that name no queue use it
        WorkQueue("billing", concurrency=4, consumer_timeout=60),
        "warehouse",
    ],
)
app = Matador(
    "sqlite:///shop.db",
    schema=schema,
    topology=topology,
    consume_from=["events", "billing"],  # not "warehouse": that service consumes it
)
# --8<-- [end:topology]


async def main() -> None:
    async with app.producer() as producer:
        # --8<-- [start:send]
        result = await producer.send(
            OrderPlaced("1", 5),
            correlation_id="request-42",
            metadata={"channel": "web"},
        )
        print(f"{result.sent} sent, {result.skipped} skipped")
        # --8<-- [end:send]
        # --8<-- [start:before]
        await producer.send(PriceChanged("pen", 3), before=PriceChanged("pen", 2))
        # --8<-- [end:before]


if __name__ == "__main__":
    asyncio.run(main())
