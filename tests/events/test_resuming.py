"""Receiving can be stopped and taken up again, while the application stays connected."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from matador import Envelope, Matador, Schema, event, subscriber


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


def make_app(file: Path) -> tuple[Matador, asyncio.Queue[str]]:
    handled: asyncio.Queue[str] = asyncio.Queue()

    @subscriber(description="Notes the order.", idempotent="yes")
    async def note(envelope: Envelope[OrderPlaced]) -> None:
        handled.put_nowait(envelope.data.order_id)

    schema = Schema({OrderPlaced: [note]})
    return Matador(f"sqlite:///{file}", schema=schema, consume_from=["events"]), handled


async def test_receiving_is_taken_up_again(tmp_path: Path) -> None:
    app, handled = make_app(tmp_path / "queue.db")
    async with app:
        for number in range(3):
            assert await app.stop_receiving()
            await app.send(OrderPlaced(str(number)))
            await app.wait_idle(10)
            assert handled.empty()
            assert await app.resume_receiving()
            assert app.state.status == "running"
            assert await asyncio.wait_for(handled.get(), 10) == str(number)


async def test_there_is_nothing_to_resume_while_it_receives(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path / "queue.db")
    assert not await app.resume_receiving()
    async with app:
        assert not await app.resume_receiving()
    assert not await app.resume_receiving()


async def test_a_shutdown_waits_for_a_resumption(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path / "queue.db")
    await app.start()
    await app.stop_receiving()
    resuming = asyncio.create_task(app.resume_receiving())
    await asyncio.sleep(0)
    await app.shutdown()
    assert await resuming
    assert app.state.status == "stopped"
