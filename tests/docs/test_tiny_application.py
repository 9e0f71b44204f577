"""An application on the transport of the guide: it sends, fails, and tries again."""

from __future__ import annotations

from dataclasses import dataclass

from docs.snippets.tiny_transport import TinyTransport

from matador import (
    Context,
    Envelope,
    Matador,
    Schema,
    StandardRetryPolicy,
    event,
    subscriber,
)
from matador.testing import wait_for


async def test_an_application_runs_on_it() -> None:
    attempts: list[int] = []

    @event("order.placed", description="A customer placed an order.")
    @dataclass(frozen=True)
    class OrderPlaced:
        order_id: str

    @subscriber(description="Fails once.", idempotent="yes")
    async def flaky(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ConnectionError

    app = Matador(
        TinyTransport(),
        schema=Schema({OrderPlaced: [flaky]}),
        consume_from=["events"],
        retry=StandardRetryPolicy(base_delay=0.01),
    )
    async with app:
        await app.send(OrderPlaced("1"))
        await wait_for(lambda: attempts == [1, 2])
