"""Publishing for pipelines: ids of one's own, chosen subscribers, and nothing stored twice."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from matador import (
    Envelope,
    Matador,
    MessagePackCodec,
    Schema,
    Topology,
    WorkQueue,
    event,
    subscriber,
)
from matador.codec.base import DecodedPayload
from matador.errors import (
    LifecycleError,
    MatadorError,
    QueueNotFoundError,
    SubscriberNotRegisteredError,
)
from matador.events.fanout import _IDS, derived_id
from matador.model.message import Message, Once
from matador.model.sending import SendOptions
from matador.transports.clock import SystemClock
from matador.transports.memory import MemoryTransport


@event("parcel.sent", description="A parcel left.")
@dataclass(frozen=True)
class ParcelSent:
    number: int


@subscriber(description="Tells the customer.", idempotent="yes")
async def tell(envelope: Envelope[ParcelSent]) -> None: ...


@subscriber(description="Counts parcels.", idempotent="yes", queue="slow")
async def count(envelope: Envelope[ParcelSent]) -> None: ...


SCHEMA = Schema({ParcelSent: [tell, count]})
TOPOLOGY = Topology("post", queues=["events", "slow"])


@pytest_asyncio.fixture
async def app() -> AsyncIterator[Matador]:
    app = Matador(MemoryTransport(), schema=SCHEMA, topology=TOPOLOGY)
    async with app:
        yield app


def stored(app: Matador, queue: str = "events") -> list[str]:
    transport = app.transport
    assert isinstance(transport, MemoryTransport)
    return [one.id for one in transport.messages(f"post.{queue}")]


async def test_a_chosen_id_is_the_id_only_where_one_subscriber_is_chosen(app: Matador) -> None:
    parcel = SCHEMA.event(ParcelSent)
    ids: list[set[str]] = []
    for chosen in (("tell",), ("tell", "count"), None):
        options = SendOptions(id="parcel-1", subscribers=chosen)
        (result,) = await app.publish([(parcel, ParcelSent(1), options)])
        ids.append({one.id for one in result.messages})
    assert ids[0] == {"parcel-1"}
    assert ids[1] == ids[2]
    assert len(ids[1] - ids[0]) == 2


async def test_a_queue_of_a_chain_stores_it_once_too() -> None:
    class Full(MemoryTransport):
        async def send_once(
            self, messages: Sequence[Message], once: Once
        ) -> Sequence[MatadorError | None]:
            if messages[0].queue == "post.events":
                return [MatadorError("it is full")] * len(messages)
            return await super().send_once(messages, once)

    queues = [WorkQueue("events", fallback="spare"), "spare", "slow"]
    app = Matador(Full(), schema=SCHEMA, topology=Topology("post", queues=queues))
    parcel = SCHEMA.event(ParcelSent)
    async with app:
        for _ in range(2):
            options = SendOptions(id="parcel-1", subscribers=("tell",))
            await app.publish([(parcel, ParcelSent(1), options)], once=Once("import"))
        assert stored(app, "spare") == ["parcel-1"]


async def test_ids_derived_from_an_id_are_the_same_again(app: Matador) -> None:
    parcel = SCHEMA.event(ParcelSent)
    options = SendOptions(id="parcel-1")
    (first,) = await app.publish([(parcel, {"number": 1}, options)])
    (second,) = await app.publish([(parcel, ParcelSent(1), options)])
    assert [one.id for one in first.messages] == [one.id for one in second.messages]
    assert len({one.id for one in first.messages}) == 2, "each subscriber has its own"


async def test_a_payload_that_was_decoded_from_json_is_sent_as_that_json(app: Matador) -> None:
    text = msgspec.Raw(b'{"number": 1, "of_an_older_release": true}')
    decoded = DecodedPayload(ParcelSent(1), text)
    options = SendOptions(subscribers=("tell",))
    await app.publish([(SCHEMA.event(ParcelSent), decoded, options)])
    transport = app.transport
    assert isinstance(transport, MemoryTransport)
    (message,) = transport.messages("post.events")
    assert bytes(text) in message.body


async def test_another_codec_encodes_a_payload_that_was_decoded_from_json() -> None:
    codec = MessagePackCodec()
    transport = MemoryTransport()
    async with Matador(transport, schema=SCHEMA, topology=TOPOLOGY, codec=codec) as app:
        decoded = DecodedPayload(ParcelSent(1), msgspec.Raw(b'{"number": 1}'))
        parcel = SCHEMA.event(ParcelSent)
        await app.publish([(parcel, decoded, SendOptions(subscribers=("tell",)))])
        (message,) = transport.messages("post.events")
        envelope = codec.decode(message.body, message.headers, SystemClock())
        assert codec.decode_payload(parcel, envelope.data) == ParcelSent(1)


async def test_what_is_published_once_is_stored_once(app: Matador) -> None:
    parcel = SCHEMA.event(ParcelSent)
    events = [(parcel, ParcelSent(n), SendOptions(id=f"parcel-{n}")) for n in range(3)]
    for _ in range(2):
        results = await app.publish(events, once=Once("import"))
        assert [result.sent for result in results] == [2, 2, 2]
    assert len(stored(app)) == len(stored(app, "slow")) == 3


async def test_the_id_of_an_envelope_for_one_subscriber_is_kept(app: Matador) -> None:
    options = SendOptions(id="kept", subscribers=("count",))
    (result,) = await app.publish([(SCHEMA.event(ParcelSent), ParcelSent(1), options)])
    assert result.sent == 1
    assert stored(app) == []
    assert stored(app, "slow") == ["kept"]


async def test_another_queue_can_be_chosen(app: Matador) -> None:
    options = SendOptions(subscribers=("tell",), queue="slow")
    (result,) = await app.publish([(SCHEMA.event(ParcelSent), ParcelSent(1), options)])
    assert result.messages[0].queue == "post.slow"


async def test_who_and_where_must_exist(app: Matador) -> None:
    parcel = SCHEMA.event(ParcelSent)
    with pytest.raises(SubscriberNotRegisteredError, match="did you mean 'tell'"):
        await app.publish([(parcel, ParcelSent(1), SendOptions(subscribers=("tel",)))])
    with pytest.raises(QueueNotFoundError):
        await app.publish([(parcel, ParcelSent(1), SendOptions(queue="fast"))])


async def test_a_producer_of_a_running_application_has_its_own_connection(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/post.db"
    async with Matador(url, schema=SCHEMA, topology=TOPOLOGY, consume_from=["events"]) as app:
        producer = app.producer()
        assert producer.transport is not app.transport
        assert producer.consume_from == ()


async def test_an_application_in_memory_cannot_be_doubled_while_it_runs(app: Matador) -> None:
    with pytest.raises(LifecycleError, match="transport memory cannot be shared"):
        app.producer()


def test_a_derived_id_is_a_uuid_of_version_five() -> None:
    for parts in (("a",), ("a", "b"), ("ü", "\x00"), ("replay-1", "id-1", "tell")):
        assert derived_id(*parts) == str(uuid.uuid5(_IDS, "\x1f".join(parts)))
