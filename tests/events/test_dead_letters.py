"""The dead-letter office; the command line's tests show the rest of what it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.shop import QUEUE, Handler, OrderPlaced, make_app
from tests.support.taking import take_stored

from matador import Matador, MemoryCheckpointStore, MessagePackCodec, Schema
from matador.codec.base import Codec
from matador.codec.json import JsonCodec
from matador.errors import LifecycleError, QueueNotFoundError, UnsupportedError
from matador.model.message import Message
from matador.runtime.dead_letters import BATCH, Selection
from matador.testing import make_docket, make_envelope
from matador.transports.base import Transport
from matador.transports.memory import MemoryTransport
from matador.transports.sqlite import SqliteTransport

DEAD = f"{QUEUE}.undeliverable"
ENCODERS: dict[type[Any], Callable[[Any], bytes]] = {
    JsonCodec: msgspec.json.encode,
    MessagePackCodec: msgspec.msgpack.encode,
}


def _letter(id_: str, codec: Codec | None = None, *, amount: int = 1, **options: Any) -> Message:
    codec = codec or JsonCodec()
    data = ENCODERS[type(codec)]({"order_id": id_, "amount": amount})
    docket = make_docket(event_key="order.placed", subscriber="one", attempts=3)
    encoded = codec.encode(make_envelope(msgspec.Raw(data), id=id_, docket=docket))
    return Message(id_, DEAD, encoded.body, encoded.headers, **options)


async def _open(transport: Transport, letters: Sequence[Message], **options: Any) -> Matador:
    """A producer whose dead letters are these."""
    app = make_app(transport, consume_from=(), **options)
    await app.start()
    assert not any(await transport.send(letters))
    return app


async def _ids(app: Matador, queue: str) -> list[str]:
    assert isinstance(app.transport, SqliteTransport | MemoryTransport)
    return [one.id async for one in app.transport.browse(queue)]


async def test_more_than_a_batch_is_moved_in_order_and_told_of() -> None:
    ids = [str(number) for number in range(2 * BATCH + 5)]
    app = await _open(MemoryTransport(), [_letter(id_) for id_ in ids])
    told: list[int] = []
    places = await app.dead_letters.choose(Selection())
    moved = await app.dead_letters.redrive(places, progress=told.append)
    assert (moved.done, moved.gone, moved.held, moved.failed) == (len(ids), 0, 0, [])
    assert sum(told) == len(ids)
    assert await _ids(app, QUEUE) == ids
    assert await _ids(app, DEAD) == []
    await app.shutdown()


async def test_payloads_of_another_format_can_be_chosen_by() -> None:
    codec = MessagePackCodec()
    letters = [_letter("small", codec, amount=1), _letter("large", codec, amount=100)]
    app = await _open(MemoryTransport(), letters, codec=codec)
    large = Selection(where=lambda payload: payload["amount"] > 10)
    assert [letter.id async for letter in app.dead_letters.browse(large)] == ["large"]
    await app.dead_letters.redrive(await app.dead_letters.choose(large))
    assert await _ids(app, QUEUE) == ["large"]
    await app.shutdown()


async def test_what_dies_after_the_choice_is_left_alone() -> None:
    app = await _open(MemoryTransport(), [_letter("before")])
    places = await app.dead_letters.choose(Selection())
    await app.transport.send([_letter("after")])
    assert (await app.dead_letters.redrive(places)).done == 1
    assert await _ids(app, DEAD) == ["after"]
    await app.shutdown()


async def test_what_somebody_else_moved_meanwhile_is_gone() -> None:
    app = await _open(MemoryTransport(), [_letter("a"), _letter("b")])
    places = await app.dead_letters.choose(Selection())
    await app.dead_letters.purge(await app.dead_letters.choose(Selection(ids=("a",))))
    moved = await app.dead_letters.redrive(places)
    assert (moved.done, moved.gone) == (1, 1)
    assert await _ids(app, QUEUE) == ["b"]
    await app.shutdown()


async def test_what_somebody_holds_is_left_to_them_or_waited_for(tmp_path: Path) -> None:
    transport = SqliteTransport(tmp_path / "shop.db", lease=0.5)
    # Bodies that are alike, too: which one is held must not be mixed up.
    alike = [Message(f"raw-{number}", DEAD, b"") for number in range(3)]
    app = await _open(transport, [_letter("a"), *alike, _letter("b")])
    office = app.dead_letters
    places = await office.choose(Selection())
    held = [place for place in places if place.id in ("a", "raw-1")]
    assert len(await take_stored(transport, DEAD, [place.position for place in held])) == 2
    impatient = await office.redrive(places)
    assert (impatient.done, impatient.held, impatient.gone) == (3, 2, 0)
    assert await _ids(app, DEAD) == ["a", "raw-1"]
    patient = await office.redrive(await office.choose(Selection()), patience=office.patience)
    assert (patient.done, patient.held) == (2, 0)
    assert sorted(await _ids(app, QUEUE)) == ["a", "b", "raw-0", "raw-1", "raw-2"]
    await app.shutdown()


async def test_one_that_cannot_go_home_stays_and_can_be_tried_again() -> None:
    app = await _open(MemoryTransport(), [_letter("a")])
    (place,) = await app.dead_letters.choose(Selection())
    lost = msgspec.structs.replace(place, home="shop.nowhere")
    moved = await app.dead_letters.redrive([lost])
    assert moved.done == 0
    ((id_, error),) = moved.failed
    assert id_ == "a"
    assert "shop.nowhere" in error
    assert (await app.dead_letters.redrive([place])).done == 1, "it was given back"
    await app.shutdown()


async def test_priorities_are_kept() -> None:
    app = await _open(MemoryTransport(), [_letter("a", priority=7)])
    await app.dead_letters.redrive(await app.dead_letters.choose(Selection()))
    assert isinstance(app.transport, MemoryTransport)
    (back,) = app.transport.messages(QUEUE)
    assert back.priority == 7
    await app.shutdown()


async def test_purging_forgets_the_steps_of_what_was_deleted_only() -> None:
    store = MemoryCheckpointStore()
    app = await _open(MemoryTransport(), [_letter("a"), _letter("b")], checkpoints=store)
    for id_ in ("a", "b"):
        await store.save(id_, "step", b"1")
    await app.dead_letters.purge(await app.dead_letters.choose(Selection(ids=("a",))))
    assert list(store) == ["b"]
    assert await _ids(app, DEAD) == ["b"]
    await app.shutdown()


async def test_a_transport_that_cannot_look_says_so() -> None:
    app = make_app(MemoryTransport(without=["browse"]), consume_from=())
    async with app:
        with pytest.raises(UnsupportedError, match="cannot browse messages"):
            await app.dead_letters.choose(Selection())


async def test_an_unknown_queue_is_an_error() -> None:
    async with make_app(None, consume_from=()) as app:
        with pytest.raises(QueueNotFoundError, match="did you mean 'events'"):
            await app.dead_letters.choose(Selection(queue="event"))


# -- what the office's tools need of an application -----------------------------------------------


async def test_an_application_is_configured_before_it_starts_and_not_while_it_runs() -> None:
    app = make_app(None)
    empty, store, transport = Schema(), MemoryCheckpointStore(), MemoryTransport(name="other")
    app.configure(consume_from=(), schema=empty, checkpoints=store, transport=transport)
    assert app.consume_from == ()
    assert app.schema is empty
    assert app.checkpoints is store
    assert app.transport is transport
    with pytest.raises(QueueNotFoundError):
        app.configure(consume_from=["nothing"])
    async with app:
        with pytest.raises(LifecycleError):
            app.configure(consume_from=["events"])
    app.configure(consume_from=["events"])
    assert app.consume_from == ("events",)


async def test_a_planned_send_says_who_would_get_what_and_sends_nothing() -> None:
    app = make_app(None, Handler())
    order = await app.plan_send(OrderPlaced("1", 5))
    (one,) = order.outgoing
    assert one.message.queue == QUEUE
    assert b'"order_id":"1"' in one.message.body
    async with app:
        assert await _ids(app, QUEUE) == []
