"""Looks at queues from outside.

AMQP cannot look at a message without taking it. So messages are taken, looked at, and given back:

- dead letters to their places (``requeue``), which marks them as redelivered and changes nothing
  else;
- messages of work queues as copies at the end, all of them and in their order, as giving them back
  to their places would count as a delivery: a few looks, and they would be taken for poison. So
  only work queues of up to ``MOST_MOVED`` messages can be looked at.

Meanwhile consumers do not see them. If this process dies at it, the broker gives them back itself,
counted. Only what is ready can be seen: neither what somebody holds nor what is delayed.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from matador.errors import ConfigurationError, UnsupportedError
from matador.model.message import REASON_HEADER, Delivery, QueueDepth, Release, StoredMessage
from matador.model.topology import DEAD_LETTER_KINDS
from matador.transports.rabbitmq import frames, wire
from matador.transports.rabbitmq.deliveries import AmqpHold, ChannelDeliveries
from matador.transports.rabbitmq.send import OutgoingMessages
from matador.transports.rabbitmq.session import AmqpSession
from matador.transports.rabbitmq.settle import settle
from matador.transports.rabbitmq.subscription import retire
from matador.transports.rabbitmq.topology import AmqpQueue

MOST_MOVED = 10_000
_PAGE = 64
_ANSWER = 20.0
_LATEST = 253_402_300_799_000  # milliseconds of the year 9999


def keeps_dead_letters(queue: str) -> bool:
    """Is it a queue of dead letters, which nobody counts deliveries of?"""
    return queue.rpartition(".")[2] in DEAD_LETTER_KINDS


async def depth(session: AmqpSession, queue: str) -> QueueDepth:
    """How many messages are ready, and held if the management plugin may be asked."""
    channel = await session.channel()
    try:
        ready, _ = await channel.declare_queue(AmqpQueue(queue), passive=True)
    finally:
        await channel.close()
    numbers = await session.management.queue(queue)
    held = None if numbers is None else numbers.messages_unacknowledged
    if held is None:
        return QueueDepth(ready=ready, unknown=frozenset({"delayed", "in_flight"}))
    return QueueDepth(ready=ready, in_flight=held, unknown=frozenset({"delayed"}))


async def purge(session: AmqpSession, queue: str) -> int:
    """Delete what is ready."""
    channel = await session.channel()
    try:
        return await channel.purge(queue)
    finally:
        await channel.close()


async def browse(
    session: AmqpSession,
    routing: OutgoingMessages,
    queue: str,
    after: str | None,
    limit: int | None,
) -> AsyncIterator[StoredMessage]:
    """See ``Browsing.browse``."""
    place = None if after is None else _Place.read(after)
    if keeps_dead_letters(queue):
        async for stored in _from(_browse_letters(session, queue), place, limit):
            yield stored
        return
    async with _getting(session, queue) as getter:
        seen = await _take_all(getter)
        stored_ = [_stored(queue, number, one) for number, one in enumerate(seen)]
        await _give_back(session, routing, seen)
    async for stored in _from(_each(stored_), place, limit):
        yield stored


async def take(
    session: AmqpSession, routing: OutgoingMessages, queue: str, positions: Sequence[str]
) -> list[Delivery | None]:
    """See ``Browsing.take``. Takes from the front until it has all, and gives the others back."""
    identities = [_Place.read(position).identity for position in positions]
    wanted = Counter(identities)
    found: dict[object, list[Delivery]] = {}
    others: list[Delivery] = []

    def sort(page: Sequence[Delivery]) -> None:
        for delivery in page:
            identity = _identity(delivery)
            if wanted[identity] > 0:
                wanted[identity] -= 1
                found.setdefault(identity, []).append(delivery)
            else:
                others.append(delivery)

    async with _getting(session, queue, keep=True) as getter:
        if keeps_dead_letters(queue):
            while wanted.total() > 0:
                page = await getter.get(_PAGE)
                sort(page)
                if len(page) < _PAGE:
                    break
            for delivery in others:
                getter.requeue(_hold(delivery))
        elif positions:
            sort(await _take_all(getter))
            await _give_back(session, routing, others)
    # Those of one identity are alike.
    return [found[one].pop(0) if found.get(one) else None for one in identities]


# -- getting ---------------------------------------------------------------------------------------


class _Getter(ChannelDeliveries):
    """Asks for messages one by one, many questions at a time."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.ready = 0
        self._none = 0

    def take_method(self, method: int, buffer: bytes, at: int) -> bool:
        """See ``Holder``."""
        if method == frames.GET_OK:
            self.begin(*frames.read_get_ok(buffer, at))
            return True
        if method == frames.GET_EMPTY:
            self._none += 1
            self.on_delivery()
            return True
        return False

    async def get(self, count: int) -> list[Delivery]:
        """Up to ``count`` messages; fewer if the queue has no more."""
        channel = self.channel
        assert channel is not None
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._none = 0

        def look() -> None:
            if len(self.arrived) + self._none >= count and not answered.done():
                answered.set_result(None)

        self.on_delivery = look
        channel.write(frames.get_frame(channel.number, self.queue) * count)
        await channel.wait(answered, f"looking at {self.queue}")
        got = list(self.arrived)
        self.arrived.clear()
        return got


@asynccontextmanager
async def _getting(
    session: AmqpSession, queue: str, *, keep: bool = False
) -> AsyncGenerator[_Getter]:
    """A channel to get with. Afterwards all goes back; with ``keep``, if something went wrong."""
    getter = _Getter(queue)
    getter.channel = await session.consuming.channel(getter)
    try:
        getter.ready, _ = await getter.channel.declare_queue(AmqpQueue(queue), passive=True)
        yield getter
    except BaseException:
        getter.abandon()
        await getter.channel.close()
        raise
    if keep:
        retire(getter)
    else:
        getter.abandon()
        await getter.channel.close()


async def _take_all(getter: _Getter) -> list[Delivery]:
    if getter.ready > MOST_MOVED:
        raise UnsupportedError(
            f"{getter.queue} has {getter.ready:,} messages: AMQP cannot browse a queue without "
            f"moving its messages, and more than {MOST_MOVED:,} are not moved for that"
        )
    taken: list[Delivery] = []
    while len(taken) < getter.ready:
        page = await getter.get(min(_PAGE, getter.ready - len(taken)))
        if not page:
            break
        taken += page
    return taken


async def _give_back(
    session: AmqpSession, routing: OutgoingMessages, deliveries: Sequence[Delivery]
) -> None:
    releases = [Release(delivery.receipt) for delivery in deliveries]
    blocked = session.publisher.blocked is not None
    await settle(releases, session.publisher.publish, routing.successor, blocked=blocked)


async def _browse_letters(session: AmqpSession, queue: str) -> AsyncIterator[StoredMessage]:
    number = 0
    async with _getting(session, queue) as getter:
        while True:
            page = await getter.get(_PAGE)
            for delivery in page:
                yield _stored(queue, number, delivery)
                number += 1
            if len(page) < _PAGE:
                return


# -- positions -------------------------------------------------------------------------------------


class _Place:
    """Where a message was seen: its place at that time, and what it is known by."""

    def __init__(self, number: int, identity: str) -> None:
        self.number = number
        self.identity = identity

    @classmethod
    def read(cls, position: str) -> _Place:
        number, _, identity = position.partition("-")
        if not number.isdecimal() or "-" not in identity:
            raise ConfigurationError(f"{position!r} is not a position; use StoredMessage.position")
        return cls(int(number), identity)

    def __str__(self) -> str:
        return f"{self.number:010d}-{self.identity}"


async def _each(stored: Sequence[StoredMessage]) -> AsyncIterator[StoredMessage]:
    for one in stored:
        yield one


async def _from(
    messages: AsyncIterator[StoredMessage], place: _Place | None, limit: int | None
) -> AsyncIterator[StoredMessage]:
    """Those behind a place: behind the message that was there, or its number if it is gone."""
    left = limit
    skipped: list[StoredMessage] = []
    async for message in messages:
        if left is not None and left <= 0:
            break
        if place is not None:
            here = _Place.read(message.position)
            if here.identity == place.identity:
                place, skipped = None, []
                continue
            if here.number <= place.number:
                continue
            skipped.append(message)
            continue
        if left is not None:
            left -= 1
        yield message
    for message in skipped if left is None else skipped[:left]:
        yield message


def _hold(delivery: Delivery) -> AmqpHold:
    hold = delivery.receipt.handle
    assert isinstance(hold, AmqpHold)
    return hold


def _identity(delivery: Delivery) -> str:
    message_id = wire.id_of(_hold(delivery).properties)
    return f"{zlib.crc32(delivery.body):08x}-{message_id}"


def _stored(queue: str, number: int, delivery: Delivery) -> StoredMessage:
    incoming = wire.IncomingProperties(_hold(delivery).properties, redelivered=False)
    stamp, headers = incoming.timestamp, delivery.headers
    if incoming.deaths and keeps_dead_letters(queue) and REASON_HEADER not in headers:
        # The broker itself has put it here, and says why and when.
        death = incoming.deaths[0]
        headers = {**headers, REASON_HEADER: wire.told_death(death)}
        told = death.get("time")
        stamp = told if isinstance(told, int) else -1
    return StoredMessage(
        position=str(_Place(number, _identity(delivery))),
        id=incoming.id or "",
        queue=queue,
        body=delivery.body,
        headers=headers,
        stored_at=_moment(stamp),
        delivery_count=incoming.deliveries,
        priority=incoming.priority,
        ordering_key=incoming.ordering_key,
    )


def _moment(stamp: int) -> datetime | None:
    if 0 <= stamp < 100_000_000_000:
        stamp *= 1000  # in seconds, as AMQP has it and others write it
    return datetime.fromtimestamp(stamp / 1000, UTC) if 0 <= stamp <= _LATEST else None
