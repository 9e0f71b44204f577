"""The five kinds of payload types, and the arguments of `send`."""

import asyncio
from dataclasses import dataclass
from typing import TypedDict

import attrs
import msgspec
import pydantic

from matador import Envelope, Matador, Schema, event, subscriber
from matador.errors import InvalidEventError


# --8<-- [start:kinds]
@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@event("order.paid", description="An order was paid.")
class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str


@event("order.packed", description="An order was packed.")
class OrderPacked(pydantic.BaseModel):
    order_id: str
    weight: float = pydantic.Field(gt=0)


@event("order.shipped", description="An order left the house.")
@attrs.frozen
class OrderShipped:
    order_id: str


@event("order.returned", description="It came back.", aliases=["order.sent-back"])
class OrderReturned(TypedDict):
    order_id: str


# --8<-- [end:kinds]


@subscriber(description="Write it down.", idempotent="yes")
async def note(envelope: Envelope[object]) -> None: ...


schema = Schema(
    {event: [note] for event in (OrderPlaced, OrderPaid, OrderPacked, OrderShipped, OrderReturned)}
)


async def main() -> None:
    async with Matador("memory://", schema=schema) as app:
        # --8<-- [start:send]
        await app.send(OrderPlaced("1", amount=5))
        await app.send(OrderReturned, {"order_id": "1"})  # for a TypedDict
        try:
            await app.send(OrderPlaced, {"order_id": "1", "amount": "five"})
        except InvalidEventError as error:
            print(error)
        # --8<-- [end:send]
        for payload in (OrderPaid("1"), OrderPacked(order_id="1", weight=2), OrderShipped("1")):
            print((await app.send(payload)).event_key)


if __name__ == "__main__":
    asyncio.run(main())
