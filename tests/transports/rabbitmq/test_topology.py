"""What is made on the broker: exactly the objects of the format. What was there is respected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika import exceptions
from tests.support.rabbitmq import Raw, eventually

from matador.errors import QueueNotFoundError, UnsupportedError
from matador.model.message import DeadLetter, Message, Retry
from matador.model.topology import (
    DeadLetterQueue,
    DeadLetters,
    RetryQueues,
    Topology,
    WorkQueue,
)
from matador.transports.rabbitmq import RabbitMQTransport, declare
from matador.transports.rabbitmq.declare import ArgumentDifference, difference_in
from matador.transports.rabbitmq.topology import AmqpExchange

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]


def declares(raw: Raw, queue: str, arguments: dict[str, Any]) -> None:
    """Declare it as another implementation does: the broker refuses if it is not the same."""
    raw.channel.queue_declare(queue, durable=True, arguments=arguments)


def is_bound(raw: Raw, exchange: str, key: str, queue: str) -> bool:
    before = raw.count(queue)
    raw.publish(exchange, key, b"probe", {})
    eventually(lambda: raw.count(queue) == before + 1, f"{exchange} -> {queue}")
    raw.channel.queue_purge(queue)
    return True


async def test_a_topology_is_the_table_of_the_format(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    ns = namespace
    topology = Topology(
        ns,
        queues=["events", WorkQueue("urgent", priorities=True, consumer_timeout=90)],
        dead_letters=DeadLetters(undeliverable=DeadLetterQueue(max_length=100, ttl=3600)),
        retry=RetryQueues(default_delay=1),
    )
    assert list(await transport.apply_topology(topology)) == []
    assert list(await transport.apply_topology(topology)) == [], "idempotent"
    raw.channel.exchange_declare(f"{ns}.exchange", "direct", durable=True)
    raw.channel.exchange_declare(f"{ns}.dlx", "direct", durable=True)
    quorum = {"x-queue-type": "quorum"}
    declares(raw, f"{ns}.events", {**quorum, "x-dead-letter-exchange": f"{ns}.dlx"})
    declares(
        raw,
        f"{ns}.urgent",
        {
            "x-max-priority": 10,
            "x-dead-letter-exchange": f"{ns}.dlx",
            "x-consumer-timeout": 90_000,
        },
    )
    for name in ("events", "urgent"):
        declares(
            raw,
            f"{ns}.{name}.retry",
            {
                **quorum,
                "x-dead-letter-exchange": f"{ns}.exchange",
                "x-dead-letter-routing-key": f"{ns}.{name}",
                "x-message-ttl": 1000,
            },
        )
        declares(raw, f"{ns}.{name}.unhandled", {})
        limits = {"x-max-length": 100, "x-message-ttl": 3_600_000}
        declares(raw, f"{ns}.{name}.undeliverable", limits)
        assert is_bound(raw, f"{ns}.exchange", f"{ns}.{name}", f"{ns}.{name}")
        for kind in ("unhandled", "undeliverable"):
            assert is_bound(raw, f"{ns}.dlx", f"{ns}.{name}.{kind}", f"{ns}.{name}.{kind}")
        assert is_bound(raw, f"{ns}.dlx", f"{ns}.{name}", f"{ns}.{name}.undeliverable")


async def test_without_dead_letters_and_retries_there_is_less(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    dead_letters = DeadLetters(unhandled=False, undeliverable=False)
    retry = RetryQueues(enabled=False)
    topology = Topology(namespace, queues=["events"], dead_letters=dead_letters, retry=retry)
    assert list(await transport.apply_topology(topology)) == []
    declares(raw, f"{namespace}.events", {"x-queue-type": "quorum"})
    for missing in ("retry", "undeliverable", "unhandled"):
        with pytest.raises(exceptions.ChannelClosedByBroker):
            raw.channel.queue_declare(f"{namespace}.events.{missing}", passive=True)


async def test_what_the_retry_queue_of_the_fleet_holds_comes_back(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    retry = RetryQueues(default_delay=0.05)
    await transport.apply_topology(Topology(namespace, queues=["events"], retry=retry))
    raw.publish(f"{namespace}.exchange", f"{namespace}.events.retry", b"again", {})
    method, _, body = raw.get(f"{namespace}.events")
    assert body == b"again"
    assert method.routing_key == f"{namespace}.events"


async def test_what_the_broker_dead_letters_lands_among_the_undeliverable(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    await transport.apply_topology(Topology(namespace, queues=["events"]))
    queue = f"{namespace}.events"
    raw.publish(f"{namespace}.exchange", queue, b"expired", {"mine": "kept"}, expiration="1")
    _, properties, body = raw.get(f"{queue}.undeliverable")
    assert body == b"expired"
    assert properties.headers["mine"] == "kept"
    assert properties.headers["x-first-death-reason"] == "expired"


async def test_it_does_so_for_what_came_through_a_delay(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    await transport.apply_topology(Topology(namespace, queues=["events"]))
    queue = f"{namespace}.events"
    assert await transport.send([Message("m", queue, b"late", delay=0.02)]) == [None]
    eventually(lambda: raw.count(queue) == 1, "the delay to pass")
    method, _, _ = raw.channel.basic_get(queue)
    raw.channel.basic_reject(method.delivery_tag, requeue=False)
    assert raw.get(f"{queue}.undeliverable")[2] == b"late"


@pytest.mark.parametrize("we_first", [True, False])
async def test_a_fleet_with_queues_of_its_own_is_joined_whoever_comes_first(
    transport: RabbitMQTransport, raw: Raw, namespace: str, we_first: bool
) -> None:
    arguments = {
        "x-max-length": 100_000,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": None,
    }
    topology = Topology(
        namespace,
        queues=[
            WorkQueue("events", type="classic", arguments=arguments),
            WorkQueue("single", type="quorum", arguments={"x-single-active-consumer": True}),
        ],
    )

    def fleet() -> None:  # its classic queues are declared without a type
        declares(
            raw, f"{namespace}.events", {"x-max-length": 100_000, "x-overflow": "reject-publish"}
        )
        declares(
            raw,
            f"{namespace}.single",
            {
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": f"{namespace}.dlx",
                "x-single-active-consumer": True,
            },
        )
        retry = {
            "x-dead-letter-exchange": f"{namespace}.exchange",
            "x-dead-letter-routing-key": f"{namespace}.events",
            "x-message-ttl": 1000,
        }
        declares(raw, f"{namespace}.events.retry", retry)
        single = {"x-queue-type": "quorum", "x-dead-letter-routing-key": f"{namespace}.single"}
        declares(raw, f"{namespace}.single.retry", {**retry, **single})

    if not we_first:
        fleet()
    assert list(await transport.apply_topology(topology)) == []
    fleet()


# -- what is there already -------------------------------------------------------------------------


async def test_a_queue_with_other_arguments_is_used_as_it_is(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    queue = f"{namespace}.events"
    raw.declare_queue(queue, x_max_length=7, x_dead_letter_exchange="elsewhere")
    notes = await transport.apply_topology(Topology(namespace, queues=["events"]))
    (note,) = [note for note in notes if note.queue == queue]
    assert "x-queue-type is not set, ours would be 'quorum'" in note.text
    assert f"x-dead-letter-exchange is 'elsewhere', ours would be '{namespace}.dlx'" in note.text
    assert "x-max-length is 7, ours would be not set" in note.text
    assert await transport.send([Message("m", queue, b"works")]) == [None]
    assert raw.get(queue)[2] == b"works"


async def test_a_queue_that_does_not_last_is_noted(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    queue = f"{namespace}.events.undeliverable"
    raw.channel.queue_declare(queue, durable=False)
    notes = await transport.apply_topology(Topology(namespace, queues=["events"]))
    assert [note.text for note in notes if note.queue == queue] == [
        "is used as it is: durable is 'false', ours would be 'true'"
    ]


async def test_an_exchange_of_another_type_is_noted(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    raw.channel.exchange_declare(f"{namespace}.exchange", "topic", durable=True)
    notes = await transport.apply_topology(Topology(namespace, queues=["events"]))
    assert [note.text for note in notes] == [
        f"exchange {namespace}.exchange is used as it is: type is 'topic', ours would be 'direct'"
    ]
    assert await transport.send([Message("m", f"{namespace}.events", b"works")]) == [None]


async def test_looking_makes_nothing_and_finds_the_differences(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    topology = Topology(namespace, queues=["events", "other"])
    raw.declare_queue(f"{namespace}.events")
    notes = await transport.check_topology(topology)
    assert [note.queue for note in notes] == [f"{namespace}.events"]
    with pytest.raises(QueueNotFoundError):
        await transport.depth(f"{namespace}.other")
    raw.channel.queue_delete(f"{namespace}.events")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                "inequivalent arg 'x-message-ttl' for queue 'a' in vhost '/': received the value "
                "'1000' of type 'signedint' but current is none"
            ),
            ArgumentDifference("x-message-ttl", 1000, None),
        ),
        (
            (
                "inequivalent arg 'durable' for queue 'it is' in vhost '/': received 'true' but "
                "current is 'false'"
            ),
            ArgumentDifference("durable", "true", "false"),
        ),
        ("PRECONDITION_FAILED - unknown delivery tag 1", None),
    ],
)
def test_what_the_broker_says_is_understood(text: str, expected: ArgumentDifference | None) -> None:
    assert difference_in(text) == expected


# -- queues of somebody else -----------------------------------------------------------------------


async def test_an_exact_queue_that_is_missing_is_not_made(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    name = f"{namespace}:theirs"
    topology = Topology(namespace, queues=["events", WorkQueue(name, exact=True)])
    (note,) = await transport.apply_topology(topology)
    assert (note.queue, "does not exist" in note.text) == (name, True)
    (outcome,) = await transport.send([Message("m", name, b"x")])
    assert isinstance(outcome, QueueNotFoundError)
    # Its owner comes later: from then on it is used.
    raw.declare_queue(name)
    assert list(await transport.apply_topology(topology)) == []
    assert await transport.send([Message("m", name, b"x", delay=0.01)]) == [None]
    assert raw.get(name)[2] == b"x"
    raw.channel.queue_delete(name)


async def test_an_exact_queue_has_dead_letters_and_retries(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    name = f"{namespace}.Their.Orders"
    raw.declare_queue(name, x_max_length=10)
    topology = Topology(namespace, queues=[WorkQueue(name, exact=True)])
    assert list(await transport.apply_topology(topology)) == []
    await transport.send([Message("m", name, b"x")])
    subscription = await transport.subscribe(name, prefetch=1)
    (delivery,) = await subscription.receive(1)
    retry = Retry(delivery.receipt, Message("m", name, b"y", delay=0.01))
    assert await transport.settle([retry]) == [None]
    (delivery,) = await subscription.receive(1)
    letter = DeadLetter(delivery.receipt, "undeliverable", "why")
    assert await transport.settle([letter]) == [None]
    assert raw.get(f"{name}.undeliverable")[2] == b"y"
    await subscription.close()
    raw.channel.queue_delete(name)


async def test_a_queue_nobody_told_of_is_reached_by_its_name(
    transport: RabbitMQTransport, raw: Raw, namespace: str
) -> None:
    raw.declare_queue(namespace)
    assert await transport.send([Message("m", namespace, b"direct")]) == [None]
    method, _, body = raw.get(namespace)
    assert (method.exchange, method.routing_key, body) == ("", namespace, b"direct")
    (outcome,) = await transport.send([Message("m", namespace, b"later", delay=1)])
    assert isinstance(outcome, QueueNotFoundError)
    raw.channel.queue_delete(namespace)


# -- the plugin ------------------------------------------------------------------------------------


async def test_a_server_without_the_plugin_is_told_apart_without_harm(
    make: Callable[..., RabbitMQTransport], namespace: str
) -> None:
    transport = make("delays=plugin")
    await transport.connect()
    with pytest.raises(UnsupportedError, match="no delayed-message plugin"):
        await transport.apply_topology(Topology(namespace, queues=["events"]))
    assert transport.state.status == "connected"


async def test_a_server_with_the_plugin_is_given_messages_with_their_delay(
    make: Callable[..., RabbitMQTransport],
    namespace: str,
    raw: Raw,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test server does not have the plugin: an exchange that waits for nothing stands in."""

    plugin_exchange = declare.plugin_exchange

    def stand_in(namespace: str) -> AmqpExchange:
        made = plugin_exchange(namespace)
        assert (made.name, made.type) == (f"{namespace}.delayed", "x-delayed-message")
        assert made.arguments == {"x-delayed-type": "direct"}
        return AmqpExchange(made.name, "direct")

    monkeypatch.setattr(declare, "plugin_exchange", stand_in)
    transport = make()
    await transport.connect()
    await transport.apply_topology(Topology(namespace, queues=["events"]))
    queue = f"{namespace}.events"
    assert await transport.send([Message("m", queue, b"later", delay=60.5)]) == [None]
    method, properties, body = raw.get(queue)
    assert (method.exchange, method.routing_key, body) == (f"{namespace}.delayed", queue, b"later")
    assert properties.headers["x-delay"] == 60_500
    assert properties.expiration is None, "it takes no detour through queues that delay"
    raw.channel.exchange_delete(f"{namespace}.delayed")
