"""Odd entries among good ones, through a whole application: nobody is stopped, nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from struct import pack

import msgspec
import pytest
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw, States
from tests.support.raw_rabbitmq import (
    GOOD_HEADERS,
    RawRabbitMQ,
    field,
    long,
    nested,
    properties,
)
from tests.support.taking import take_stored

from matador import (
    Context,
    Envelope,
    Matador,
    Schema,
    StandardRetryPolicy,
    Topology,
    WorkQueue,
    event,
    subscriber,
)
from matador.model.message import Delivery
from matador.testing import wait_for
from matador.transports.rabbitmq import RabbitMQTransport
from matador.transports.rabbitmq.deliveries import AmqpHold
from matador.transports.rabbitmq.frames import DELIVERY_MODE, split_properties

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]

Make = Callable[..., RabbitMQTransport]
QUEUES = {"quorum": WorkQueue("events"), "classic": WorkQueue("events", priorities=True)}
MINE = b"".join(
    field(name.encode(), b"S", long(text.encode())) for name, text in GOOD_HEADERS.items()
) + field(b"x-matador-attempts", b"I", pack(">i", 1))
BODY = b'{"id":"odd","data":{"number":-1}}'


@event("user.created", description="Somebody signed up.")
class UserCreated(msgspec.Struct):
    number: int


class Shop:
    """An application that handles good and odd entries, and counts what came of them."""

    def __init__(self, app: Matador, transport: RabbitMQTransport, queue: str, raw: Raw) -> None:
        self.app = app
        self.transport = transport
        self.queue = queue
        self.handled: Counter[int] = Counter()
        self.odd_handled = 0
        self.states = States(transport)
        self.raw = raw

    def letters(self) -> int:
        names = (f"{self.queue}.{kind}" for kind in ("undeliverable", "unhandled"))
        return sum(map(self.raw.count, names))

    async def send(self, *numbers: int) -> None:
        results = await self.app.send_many([UserCreated(number) for number in numbers])
        assert not [error for one in results for error in one.errors]

    async def all_ends(self, good: int, odd: int, timeout: float = 60) -> None:
        def ended() -> bool:
            return len(self.handled) == good and self.odd_handled + self.letters() >= odd

        try:
            await wait_for(ended, timeout=timeout, message="all to be handled or dead letters")
        finally:
            print(f"{len(self.handled)}/{good} good, {self.odd_handled}+{self.letters()}/{odd} odd")
        assert self.odd_handled + self.letters() == odd, "each once"
        assert set(self.handled.values()) == {1}
        assert "reconnecting" not in self.states.seen, "no connection was lost"
        assert self.raw.count(self.queue) == 0


@asynccontextmanager
async def running(
    transport: RabbitMQTransport, namespace: str, queue: WorkQueue, raw: Raw
) -> AsyncGenerator[Shop]:
    @subscriber(description="Counts.", name="send-email", idempotent="yes")
    async def count(envelope: Envelope[UserCreated], _: Context) -> None:
        if envelope.data.number >= 0:
            shop.handled[envelope.data.number] += 1
        else:
            shop.odd_handled += 1

    app = Matador(
        transport,
        schema=Schema({UserCreated: [count]}),
        topology=Topology(namespace, queues=[queue]),
        consume_from=["events"],
        retry=StandardRetryPolicy(max_attempts=2, base_delay=0.02),
    )
    shop = Shop(app, transport, f"{namespace}.events", raw)
    async with app:
        yield shop


@pytest.mark.parametrize("kind", QUEUES)
@pytest.mark.timeout(300)
async def test_a_thousand_odd_entries_among_good_ones(
    make: Make, namespace: str, raw: Raw, kind: str
) -> None:
    odd, random = 1_000, Random(kind)
    writer = RawRabbitMQ(broker_url("rabbitmq"))
    async with running(make("delays=levels"), namespace, QUEUES[kind], raw) as shop:
        for number in range(odd):
            await writer.write(shop.queue, random)
            if number % 5 == 0:
                await shop.send(number)
        await writer.close()
        await shop.all_ends(odd // 5, odd, timeout=200)


TOO_DEEP = field(b"deep", b"F", nested(3_000))
MILLISECONDS = field(b"when", b"T", pack(">Q", 1_794_769_357_436))


@pytest.mark.parametrize(
    ("odd", "body", "handled"),
    [
        (properties(MINE + MILLISECONDS), BODY, True),
        (properties(MINE + TOO_DEEP), BODY, True),
        (properties(MINE + field(b"n", b"d", pack(">d", -0.5))), BODY, True),
        (properties(MINE + field(b"\xff", b"S", long(b"\xff"))), BODY, True),
        (
            properties(MINE),
            BODY[:-2] + b"," + b'"%s":1,' % (b"k" * 200_000) * 2 + b'"a":1}}',
            False,
        ),
        (properties(TOO_DEEP + MILLISECONDS), b"\xff", False),
        (properties(field(b"h", b"S", long(b"x" * 130_000))), b"\xff", False),
        (properties(MINE + field(b"x-matador-correlation-id", b"S", long(b"\xff"))), BODY, False),
        (properties(), b"", False),
    ],
    ids=[
        *("milliseconds", "deep", "float", "no text", "a key of 200 KB twice"),
        *("undecodable", "full headers", "ours is no text", "nothing at all"),
    ],
)
async def test_one_odd_entry(
    make: Make, namespace: str, raw: Raw, odd: bytes, body: bytes, handled: bool
) -> None:
    writer = RawRabbitMQ(broker_url("rabbitmq"))
    async with running(make("delays=levels"), namespace, QUEUES["quorum"], raw) as shop:
        await writer.publish(shop.queue, odd, body)
        await writer.close()
        await shop.send(*range(5))
        await shop.all_ends(5, 1)
        assert shop.odd_handled == handled
        if not handled:
            (letter,) = await letters_of(shop)
            assert letter.body == body, "as it came"
            parts = split_properties(hold_of(letter).properties)
            assert parts[DELIVERY_MODE] == b"\2", "and there after a restart of the broker"
            assert letter.headers["x-matador-dead-letter-reason"]


async def letters_of(shop: Shop) -> Sequence[Delivery]:
    """Read by ourselves: raw pika breaks on some of them."""
    queue = f"{shop.queue}.undeliverable"
    positions = [one.position async for one in shop.transport.browse(queue)]
    return await take_stored(shop.transport, queue, positions)


def hold_of(delivery: Delivery) -> AmqpHold:
    hold = delivery.receipt.handle
    assert isinstance(hold, AmqpHold)
    return hold
