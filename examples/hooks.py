"""Hooks: observe everything that happens, and override a few decisions."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from matador import (
    Attempt,
    Context,
    Envelope,
    Hooks,
    Matador,
    Received,
    Schema,
    Sent,
    event,
    subscriber,
)
from matador.runtime.hooks import Proceed
from matador.testing import wait_for


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@subscriber(description="Charge the card.", idempotent="yes", importance="must-investigate")
async def charge(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    if envelope.data.amount > 1000:
        raise ValueError("over the limit")


# --8<-- [start:hooks]
class Metrics(Hooks):
    """Counts messages. A hook may be sync or async."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def on_enqueue_success(self, event: Sent) -> None:
        self.counts["sent"] += 1

    def on_worker_success(self, event: Attempt) -> None:
        self.counts["handled"] += 1

    async def on_worker_error(self, event: Attempt) -> None:
        self.counts["failed"] += 1
        if event.subscriber is not None and event.subscriber.importance == "must-investigate":
            print(f"page the engineer on call: {event.error} ({type(event.decision).__name__})")


class Tracing(Hooks):
    """Wraps the processing of each message, as an APM agent does."""

    async def on_worker_wrap(self, event: Received, proceed: Proceed) -> None:
        print(f"span opened: {event.receiver}, trace {event.correlation_id}")
        await proceed()

    def load_universal_metadata(self) -> dict[str, Any]:
        return {"service": "shop", "version": "1.4.2"}


class Limits(Hooks):
    """Decides for each message. None leaves the decision to the retry policy."""

    def get_attempts(self, envelope: Envelope[Any]) -> int | None:
        return 1 if envelope.docket.event_key == "order.placed" else None


# --8<-- [end:hooks]

metrics = Metrics()
# --8<-- [start:app]
app = Matador(
    "memory://",
    schema=Schema({OrderPlaced: [charge]}),
    consume_from=["events"],
    hooks=[metrics, Tracing(), Limits()],
)
# --8<-- [end:app]


async def main() -> None:
    async with app:
        await app.send(OrderPlaced("1", amount=20), correlation_id="web-17")
        await app.send(OrderPlaced("2", amount=5000), correlation_id="web-18")
        await wait_for(lambda: metrics.counts["handled"] + metrics.counts["failed"] == 2)
    print(dict(metrics.counts))


if __name__ == "__main__":
    asyncio.run(main())
