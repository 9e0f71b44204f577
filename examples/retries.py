"""What happens when a subscriber fails: retries, dead letters, and redriving them."""

import asyncio
from dataclasses import dataclass

from matador import (
    Context,
    DontRetry,
    DoRetry,
    Envelope,
    Matador,
    Schema,
    StandardRetryPolicy,
    assert_event,
    event,
    subscriber,
)
from matador.runtime.dead_letters import Selection
from matador.testing import wait_for
from matador.transports import MemoryTransport


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


# --8<-- [start:subscribers]
@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    if ctx.attempt < 3:
        raise ConnectionError("the mail server is busy")  # any error is retried
    print(f"receipt sent in attempt {ctx.attempt}")


@subscriber(description="Charge the card.")
async def charge(envelope: Envelope[OrderPlaced]) -> None:
    raise DontRetry("card declined")  # a retry cannot help: dead-letter it now


@subscriber(description="Ask the warehouse.")
async def reserve(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    if ctx.attempt == 1:
        raise DoRetry("the warehouse is closed")  # retried like any error, but on purpose
    print(f"reserved in attempt {ctx.attempt}")


@subscriber(description="Write the order into the books.")
async def book(envelope: Envelope[OrderPlaced]) -> None:
    assert_event(envelope, envelope.data.amount > 0, "the amount must be positive")


# --8<-- [end:subscribers]

# --8<-- [start:policy]
transport = MemoryTransport()
app = Matador(
    transport,
    schema=Schema({OrderPlaced: [email_receipt, charge, reserve, book]}),
    consume_from=["events"],
    retry=StandardRetryPolicy(max_attempts=3, base_delay=0.05, jitter=0.2),
)
# --8<-- [end:policy]


# --8<-- [start:dead-letters]
async def show_dead_letters() -> None:
    async for letter in app.dead_letters.browse():
        print(f"dead letter: {letter.stored.reason}")


async def bring_back(subscriber: str) -> None:
    chosen = await app.dead_letters.choose(Selection(subscriber=subscriber))
    moved = await app.dead_letters.redrive(chosen)
    print(f"brought back: {moved.done}")


# --8<-- [end:dead-letters]


async def main() -> None:
    async with app:
        await app.send(OrderPlaced("1", amount=0))
        await wait_for(nothing_is_left, message="the queue to be empty")
        await show_dead_letters()
        await app.pause()
        await bring_back("charge")


async def nothing_is_left() -> bool:
    return (await transport.depth(app.topology.full_name("events"))).total == 0


if __name__ == "__main__":
    asyncio.run(main())
