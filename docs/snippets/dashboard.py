"""A dashboard beside an application, in one process."""

import asyncio
from dataclasses import dataclass

import uvicorn

from matador import Envelope, Matador, Schema, event, subscriber
from matador.dashboard import Dashboard, DashboardOptions
from matador.observe import History


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None:
    print("receipt for", envelope.data.order_id)


# --8<-- [start:history]
app = Matador(
    "sqlite:///shop.db",
    schema=Schema({OrderPlaced: [email_receipt]}),
    consume_from=["events"],
    hooks=[History("history.db")],
)
# --8<-- [end:history]


# --8<-- [start:embed]
async def main(port: int = 8080) -> None:
    options = DashboardOptions(history="history.db", port=port, mask=("card_number",))
    server = uvicorn.Server(uvicorn.Config(Dashboard(app, options), port=port, lifespan="on"))
    async with app:
        await server.serve()


if __name__ == "__main__":
    asyncio.run(main())
# --8<-- [end:embed]
