"""Orders of one customer in order, on FIFO queues. Set the URL first: `export SQS_URL=sqs://…`."""

import asyncio
import os
from dataclasses import dataclass

from matador import Envelope, Matador, Schema, Topology, event, subscriber


@event("order.changed", description="An order has another state.")
@dataclass(frozen=True)
class OrderChanged:
    customer: str
    state: str


done = asyncio.Event()


@subscriber(description="Show the state.", idempotent="yes")
async def show_state(envelope: Envelope[OrderChanged]) -> None:
    print(f"{envelope.data.customer}: {envelope.data.state}")
    if envelope.data.state == "sent":
        done.set()


# --8<-- [start:fifo]
app = Matador(
    os.environ["SQS_URL"] + "&fifo=true",  # sqs://eu-west-1?fifo=true
    schema=Schema({OrderChanged: [show_state]}),
    topology=Topology("orders", queues=["changes"]),
    consume_from=["changes"],
)


async def main() -> None:
    async with app:
        for state in ("placed", "paid", "sent"):
            await app.send(OrderChanged("ann", state), ordering_key="ann")
        await done.wait()
        # --8<-- [end:fifo]


if __name__ == "__main__":
    asyncio.run(main())
