"""What becomes of a message that is sent: stored, or a named reason why not. Never a hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.support.rabbitmq import Raw, States, connections, cut, reconnected

from matador.errors import (
    MessageTooLargeError,
    NotConnectedError,
    QueueNotFoundError,
    SendRefusedError,
    SendUnconfirmedError,
    UnstorableError,
)
from matador.model.message import Message
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.rabbitmq import RabbitMQTransport
from matador.transports.rabbitmq.publisher import (
    AmqpPublisher,
    Publication,
    _PublishBatch,
)

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]

Make = Callable[..., RabbitMQTransport]


async def ready(transport: RabbitMQTransport, namespace: str) -> str:
    await transport.connect()
    await transport.apply_topology(Topology(namespace, queues=["events"]))
    return f"{namespace}.events"


def messages(queue: str, count: int) -> list[Message]:
    return [Message(f"m-{number}", queue, b"%d" % number) for number in range(count)]


async def test_more_than_the_window_is_sent_in_order(make: Make, namespace: str, raw: Raw) -> None:
    transport = make("window=7")
    queue = await ready(transport, namespace)
    sending = [transport.send(messages(queue, 50)) for _ in range(3)]
    assert await asyncio.gather(*sending) == [[None] * 50] * 3
    bodies = [int(raw.get(queue)[2]) for _ in range(150)]
    assert bodies == [*range(50)] * 3, "batches do not mix"


async def test_unroutable_messages_are_told_from_others_of_their_id(
    make: Make, namespace: str, raw: Raw
) -> None:
    transport = make()
    queue = await ready(transport, namespace)
    # Known to the transport, and deleted by somebody since.
    raw.channel.queue_delete(f"{queue}.undeliverable")
    same = [Message("same", name, b"x") for name in (queue, "nowhere", queue, "nowhere")]
    outcomes = await transport.send(same)
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        QueueNotFoundError,
        type(None),
        QueueNotFoundError,
    ]
    assert raw.count(queue) == 2


async def test_a_full_queue_refuses(make: Make, namespace: str, raw: Raw) -> None:
    transport = make()
    await transport.connect()
    raw.declare_queue(namespace, x_max_length=1, x_overflow="reject-publish")
    outcomes = await transport.send(messages(namespace, 3))
    assert outcomes[0] is None
    assert {type(outcome) for outcome in outcomes[1:]} == {SendRefusedError}
    raw.channel.queue_delete(namespace)


async def test_only_queues_for_delays_are_tried_again(
    make: Make, namespace: str, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They refuse messages only while they have no leader. Here, a full queue stands for one."""
    transport = make()
    await transport.connect()
    raw.declare_queue(namespace, x_max_length=1, x_overflow="reject-publish")
    await transport.send(messages(namespace, 1))
    publish_once = AmqpPublisher._publish_once
    tries = 0

    async def publish_and_make_room(
        publisher: AmqpPublisher, publications: Sequence[Publication]
    ) -> _PublishBatch:
        nonlocal tries
        tries += 1
        batch = await publish_once(publisher, publications)
        raw.channel.queue_purge(namespace)
        return batch

    monkeypatch.setattr(AmqpPublisher, "_publish_once", publish_and_make_room)
    publisher = transport._supervisor.connection.publisher
    full = [Publication("", namespace, name, b"\0\0", b"x") for name in "ab"]
    (refused, _) = await publisher.publish(full)
    assert type(refused) is SendRefusedError
    assert tries == 1, "what is for others must not wait"

    await transport.send(messages(namespace, 1))
    raw.publish("", namespace, b"full again", {})
    tries = 0
    delayed = [one._replace(delayed=True) for one in full]
    assert await publisher.publish(delayed) == [None, None], "each pause made room for one"
    assert tries == 3
    raw.channel.queue_delete(namespace)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message("m", "", b"x"), QueueNotFoundError),
        (Message("m", "q" * 300, b"x"), QueueNotFoundError),
        (Message("m", "\udcff", b"x"), QueueNotFoundError),
        (Message("m", "q", b"x" * 1001), MessageTooLargeError),
        (Message("m", "q", b"x", {"h": "v" * 200_000}), MessageTooLargeError),
        (Message("m", "q", b"x", {"h": 1 << 70}), UnstorableError),
        (Message("m", "q", b"x", {"h": "\udcff"}), UnstorableError),
        (Message("m", "q", b"x", {"n" * 300: "v"}), UnstorableError),
        (Message("\udcff", "q", b"x"), UnstorableError),
        (Message("m", "q", b"x", {}, 0.0, None, "\udcff"), UnstorableError),
    ],
    ids=[
        *("no name", "long name", "surrogate name", "large", "large headers", "large number"),
        *("surrogate", "long header name", "surrogate id", "surrogate key"),
    ],
)
async def test_what_cannot_be_written_harms_nobody(
    make: Make, namespace: str, message: Message, expected: type[Exception]
) -> None:
    transport = make("max_message_size=1000")
    queue = await ready(transport, namespace)
    good = Message("m", queue, b"good")
    outcomes = await transport.send([good, message, good])
    assert [type(outcome) for outcome in outcomes] == [type(None), expected, type(None)]


async def test_a_connection_lost_while_sending_leaves_the_outcome_unknown(
    make: Make, namespace: str
) -> None:
    transport = make()
    queue = await ready(transport, namespace)
    states = States(transport)
    # More than fits into the buffers on the way, so not all of it can be confirmed.
    large = [Message(f"m-{number}", queue, b"x" * 20_000) for number in range(500)]
    sending = asyncio.create_task(transport.send(large))
    await asyncio.sleep(0)
    cut(connections(transport)[0])
    outcomes = await sending
    unknown = [outcome for outcome in outcomes if outcome is not None]
    assert unknown, "cut before anything could be confirmed"
    assert {type(outcome) for outcome in unknown} == {SendUnconfirmedError}
    assert "may be stored" in str(unknown[0])
    await reconnected(transport, states)
    assert await transport.send(messages(queue, 1)) == [None]


async def test_nothing_is_sent_while_there_is_no_connection(make: Make, namespace: str) -> None:
    transport = make(reconnect_delay=2.0, reconnect_max_delay=2.0)  # time to look
    queue = await ready(transport, namespace)
    for connection in connections(transport):
        cut(connection)
    await wait_for(lambda: transport.state.status == "reconnecting", message="noticed")
    with pytest.raises(NotConnectedError):
        await transport.send(messages(queue, 1))
    await wait_for(lambda: transport.state.status == "connected", message="reconnected")
    assert await transport.send(messages(queue, 1)) == [None]


async def test_disconnecting_waits_for_what_is_being_sent(make: Make, namespace: str) -> None:
    transport = make()
    queue = await ready(transport, namespace)
    sending = asyncio.create_task(transport.send(messages(queue, 300)))
    await asyncio.sleep(0)
    await transport.disconnect()
    assert await sending == [None] * 300


async def test_a_send_that_is_cancelled_blocks_nobody(make: Make, namespace: str) -> None:
    transport = make("window=1")
    queue = await ready(transport, namespace)
    sending = asyncio.create_task(transport.send(messages(queue, 200)))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert await transport.send(messages(queue, 2)) == [None] * 2
