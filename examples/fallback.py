"""Two transports as one: if the first cannot store a message, the second stores it."""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from matador import Envelope, Hooks, Matador, Schema, Sent, TransportFallback, event, subscriber
from matador.testing import wait_for
from matador.transports import MultiTransport, SqliteTransport


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


handled: list[str] = []


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None:
    handled.append(envelope.data.order_id)


class Report(Hooks):
    def on_transport_fallback(self, event: TransportFallback) -> None:
        print(f"{event.failed} failed, {event.next} takes the message")

    def on_enqueue_success(self, event: Sent) -> None:
        print(f"order {event.envelope.data.order_id} is stored")


# --8<-- [start:app]
volume = Path("volume")  # a disk that is not mounted yet
primary = SqliteTransport(volume / "shop.db", name="volume")
spare = SqliteTransport("spare.db", name="spare")

app = Matador(
    MultiTransport([primary, spare], reconnect_every=0.1),
    schema=Schema({OrderPlaced: [email_receipt]}),
    consume_from=["events"],  # from both
    hooks=Report(),
)
# --8<-- [end:app]


async def main() -> None:
    logging.disable(logging.WARNING)  # the hook prints what the log would say
    async with app:
        await app.send(OrderPlaced("1"))  # the disk is missing: the spare stores it at once
        await asyncio.to_thread(volume.mkdir)
        await wait_for(lambda: primary.state.status == "connected", message="the volume")
        await app.send(OrderPlaced("2"))
        await wait_for(lambda: len(handled) == 2, message="both orders")
    print(f"handled: {', '.join(sorted(handled))}")


if __name__ == "__main__":
    asyncio.run(main())
