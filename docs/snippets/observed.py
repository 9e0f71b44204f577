"""Metrics, traces, health checks and JSON logs of an application that you run yourself."""

import asyncio
import logging
import urllib.request
from dataclasses import dataclass

from matador import Envelope, Matador, Schema, event, subscriber
from matador.observe import JsonFormatter, Metrics, MetricsServer, Tracing


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None:
    logging.getLogger("shop").info("a receipt for %s", envelope.data.order_id)


# --8<-- [start:app]
metrics = Metrics()
app = Matador(
    "memory://",
    schema=Schema({OrderPlaced: [email_receipt]}),
    consume_from=["events"],
    hooks=[metrics, Tracing()],
)
metrics.watch(app)  # the connection, the workers, the depths of queues
# --8<-- [end:app]

# --8<-- [start:logs]
handler = logging.StreamHandler()
handler.setFormatter(JsonFormatter({"service": "shop"}))
logging.basicConfig(level=logging.INFO, handlers=[handler])
# --8<-- [end:logs]


async def main(port: int = 0) -> str:
    # --8<-- [start:serve]
    async with app, MetricsServer(app, metrics, port=port) as server:
        await app.send(OrderPlaced("1"))
        # --8<-- [end:serve]
        await app.wait_idle(5)
        url = f"http://127.0.0.1:{server.port}/metrics"
        with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
            return answer.read().decode()


if __name__ == "__main__":
    print(asyncio.run(main()))
