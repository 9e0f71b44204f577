"""Orders of one customer in order, on Kafka. Set the URL first: `export KAFKA_URL=kafka://…`."""

import asyncio
import os
from dataclasses import dataclass

from matador import DoRetry, Envelope, Matador, Schema, Topology, event, subscriber


@event("order.changed", description="An order has another state.")
@dataclass(frozen=True)
class OrderChanged:
    customer: str
    state: str


done = asyncio.Event()


@subscriber(description="Show the state.", idempotent="yes")
async def show_state(envelope: Envelope[OrderChanged]) -> None:
    if envelope.data.state == "paid" and envelope.docket.attempts == 1:
        raise DoRetry("the bank does not answer")
    print(f"{envelope.data.customer}: {envelope.data.state}")
    if envelope.data.state == "sent":
        done.set()


# --8<-- [start:order]
app = Matador(
    os.environ["KAFKA_URL"],  # kafka://localhost:9092
    schema=Schema({OrderChanged: [show_state]}),
    topology=Topology("orders", queues=["changes"]),
    consume_from=["changes"],
)


async def main() -> None:
    async with app:
        for state in ("placed", "paid", "sent"):
            await app.send(OrderChanged("ann", state), ordering_key="ann")
        await done.wait()  # "paid" fails once, and "sent" waits for it
        # --8<-- [end:order]


if __name__ == "__main__":
    asyncio.run(main())
