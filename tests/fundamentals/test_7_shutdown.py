"""Chapter 7: an application ends without losing or repeating anything."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fundamentals.shop import OrderPlaced

from matador import Envelope, Matador, Schema, subscriber
from matador.testing import wait_for


async def test_what_runs_may_finish_and_what_waits_is_there_tomorrow(tmp_path: Path) -> None:
    running: list[str] = []
    finished: list[str] = []
    go_on = asyncio.Event()

    @subscriber(description="Takes a while.", idempotent="no")
    async def bake(envelope: Envelope[OrderPlaced]) -> None:
        running.append(envelope.data.order_id)
        await go_on.wait()
        finished.append(envelope.data.order_id)

    def make_app() -> Matador:
        return Matador(
            f"sqlite:///{tmp_path / 'shop.db'}",
            schema=Schema({OrderPlaced: [bake]}),
            consume_from=["events"],
        )

    today = make_app()
    await today.start()
    await today.send(OrderPlaced("in the oven", 1))
    await wait_for(lambda: running)

    # No more is taken from here on, but sending still works.
    await today.pause()
    await today.send(OrderPlaced("for tomorrow", 1))
    ending = asyncio.create_task(today.shutdown())
    go_on.set()
    await ending
    assert finished == ["in the oven"]

    async with make_app():
        await wait_for(lambda: len(finished) == 2)
    assert finished == ["in the oven", "for tomorrow"]
    assert running == finished, "each ran once, though it must not run twice"


async def test_what_takes_too_long_is_given_back(tmp_path: Path) -> None:
    started = asyncio.Event()
    finished: list[int] = []
    patient = False

    @subscriber(description="Takes too long, the first time.", idempotent="yes")
    async def bake(envelope: Envelope[OrderPlaced]) -> None:
        started.set()
        if not patient:
            await asyncio.Event().wait()
        finished.append(envelope.docket.attempts)

    app = Matador(
        f"sqlite:///{tmp_path / 'shop.db'}",
        schema=Schema({OrderPlaced: [bake]}),
        consume_from=["events"],
    )
    async with app:
        await app.send(OrderPlaced("o-1", 1))
        await started.wait()
        await app.shutdown(timeout=0)

    patient = True
    async with app:
        await wait_for(lambda: finished)
    assert finished == [1], "no attempt was used up"
