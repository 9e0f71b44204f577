"""Looks at the messages of a queue.

AMQP cannot show a message without delivering it. So the transport takes messages and returns them:

- Dead letters are requeued at their places. This marks them as redelivered and changes nothing
  else.
- Messages of a work queue return as copies at the end of the queue, all of them and in their order.
  If they were requeued, the broker would count a delivery, and after a few times the messages would
  count as poisoned. So only work queues with up to ``MOST_MOVED`` messages can be browsed.

Meanwhile consumers do not get them. If this process dies, the broker requeues and counts them. Only
ready messages can be seen: neither those that a consumer holds nor delayed ones.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

from matador.errors import ConfigurationError, QueueNotFoundError, UnsupportedError
from matador.model.message import REASON_HEADER, Delivery, Release, StoredMessage
from matador.model.topology import DEAD_LETTER_KINDS
from matador.transports.rabbitmq import delays, frames, wire
from matador.transports.rabbitmq.deliveries import ChannelDeliveries, hold_of
from matador.transports.rabbitmq.outgoing import OutgoingMessages
from matador.transports.rabbitmq.session import AmqpSession
from matador.transports.rabbitmq.settle import settle

MOST_MOVED = 10_000
_PAGE = 64
_LATEST = 253_402_300_799_000  # milliseconds of the year 9999


async def browse(
    session: AmqpSession,
    outgoing: OutgoingMessages,
    queue: str,
    after: str | None,
    limit: int | None,
) -> AsyncIterator[StoredMessage]:
    place = None if after is None else _read_position(after)
    skipped: list[StoredMessage] = []
    left = limit
    async for message in _seen(session, outgoing, queue):
        if left is not None and left <= 0:
            break
        if place is None:
            if left is not None:
                left -= 1
            yield message
            continue
        # Start after that message, or after its number if it is gone.
        number, identity = _read_position(message.position)
        if identity == place[1]:
            place, skipped = None, []
        elif number > place[0]:
            skipped.append(message)
    for message in skipped if left is None else skipped[:left]:
        yield message


async def _seen(
    session: AmqpSession, outgoing: OutgoingMessages, queue: str
) -> AsyncIterator[StoredMessage]:
    number = 0
    async with _getting(session, outgoing, queue) as getter:
        if keeps_dead_letters(queue):
            while True:
                page = await getter.get(_PAGE)
                for delivery in page:
                    yield _stored(queue, number, delivery)
                    number += 1
                if len(page) < _PAGE:
                    return
        taken = await getter.get_all()
        await _give_back(session, outgoing, taken)
    for number, delivery in enumerate(taken):
        yield _stored(queue, number, delivery)


async def take(
    session: AmqpSession, outgoing: OutgoingMessages, queue: str, positions: Sequence[str]
) -> list[Delivery | None]:
    """Take messages from the front until all are found, and return the others to the queue."""
    identities = [_read_position(position)[1] for position in positions]
    wanted = Counter(identities)
    found: defaultdict[str, list[Delivery]] = defaultdict(list)
    others: list[Delivery] = []

    def sort(page: Sequence[Delivery]) -> None:
        for delivery in page:
            identity = _identity(delivery)
            if wanted[identity] > 0:
                wanted[identity] -= 1
                found[identity].append(delivery)
            else:
                others.append(delivery)

    async with _getting(session, outgoing, queue, keep=True) as getter:
        if keeps_dead_letters(queue):
            while wanted.total() > 0:
                page = await getter.get(_PAGE)
                sort(page)
                if len(page) < _PAGE:
                    break
            for delivery in others:
                getter.requeue(hold_of(delivery.receipt))
        elif positions:
            sort(await getter.get_all())
            await _give_back(session, outgoing, others)
    # Messages with the same identity are alike.
    return [found[one].pop(0) if found[one] else None for one in identities]


async def purge_delayed(session: AmqpSession, outgoing: OutgoingMessages, queue: str) -> int:
    """Delete the delayed messages of a work queue; return how many there were.

    They wait in queues that all work queues share, so each of these is searched. The other messages
    keep their places and their times; one that is due meanwhile is a moment late.
    """
    prefix, purged = session.address.delay_prefix, 0
    for left, names in delays.every_hop(prefix, queue if outgoing.refuses(queue) else None):
        for name in names:
            hop = f"{delays.hop_exchange(prefix, left)}.{name}"
            with suppress(QueueNotFoundError):  # no message was delayed by that
                async with _getting(session, outgoing, hop) as getter:
                    purged += await getter.remove(queue)
    return purged


def keeps_dead_letters(queue: str) -> bool:
    """Whether the queue has dead letters, for which deliveries do not count."""
    return queue.rpartition(".")[2] in DEAD_LETTER_KINDS


class _Getter(ChannelDeliveries):
    """Gets messages one by one, with many requests in flight."""

    ready = 0
    _none = 0

    def _begin(self, method: int, buffer: bytes, at: int) -> bool:
        if method != frames.GET_EMPTY:
            return super()._begin(method, buffer, at)
        self._none += 1
        self.on_delivery()
        return True

    async def get(self, count: int) -> list[Delivery]:
        """Get up to ``count`` messages; fewer if the queue has no more."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._none = 0

        def look() -> None:
            if len(self.arrived) + self._none >= count and not answered.done():
                answered.set_result(None)

        self.on_delivery = look
        self.channel.write(frames.get_frame(self.channel.number, self.queue) * count)
        await self.channel.wait(answered, f"browsing {self.queue}")
        got = list(self.arrived)
        self.arrived.clear()
        return got

    async def get_all(self) -> list[Delivery]:
        """Get all messages that were ready at the start."""
        if self.ready > MOST_MOVED:
            raise UnsupportedError(
                f"{self.queue} has {self.ready:,} messages: AMQP cannot browse a queue without "
                f"moving its messages, and more than {MOST_MOVED:,} are not moved for that"
            )
        taken: list[Delivery] = []
        while len(taken) < self.ready:
            page = await self.get(min(_PAGE, self.ready - len(taken)))
            if not page:
                break
            taken += page
        return taken

    async def remove(self, routing_key: str) -> int:
        """Delete the messages with a routing key, hold the others, and count the deleted ones."""
        removed = 0
        while True:
            page = await self.get(_PAGE)
            for delivery in page:
                hold = hold_of(delivery.receipt)
                if hold.routing_key == routing_key:
                    self.ack(hold)
                    removed += 1
                hold.body = b""  # there may be very many
            self.flush()
            if len(page) < _PAGE:
                return removed


@asynccontextmanager
async def _getting(
    session: AmqpSession, outgoing: OutgoingMessages, queue: str, *, keep: bool = False
) -> AsyncGenerator[_Getter]:
    """Open a channel to get messages. At the end, unless ``keep``, it requeues what it holds."""
    getter = await _Getter.open(session.consuming, queue, outgoing.is_internal)
    kept = False
    try:
        getter.ready = await getter.channel.count_ready(queue)
        yield getter
        kept = keep
    finally:
        if kept:
            getter.retire()
        else:
            getter.abandon()
            await getter.channel.close()


async def _give_back(
    session: AmqpSession, outgoing: OutgoingMessages, deliveries: Sequence[Delivery]
) -> None:
    await settle(session, outgoing, [Release(delivery.receipt) for delivery in deliveries])


def _read_position(position: str) -> tuple[int, str]:
    """Split a position: the number of the message when it was seen, and what identifies it."""
    number, _, identity = position.partition("-")
    if not number.isdecimal() or "-" not in identity:
        raise ConfigurationError(f"{position!r} is not a position; use StoredMessage.position")
    return int(number), identity


def _identity(delivery: Delivery) -> str:
    message_id = wire.id_of(hold_of(delivery.receipt).properties)
    return f"{zlib.crc32(delivery.body):08x}-{message_id}"


def _stored(queue: str, number: int, delivery: Delivery) -> StoredMessage:
    properties = hold_of(delivery.receipt).properties
    incoming = wire.IncomingProperties(properties, redelivered=False)
    stamp, headers = incoming.timestamp, delivery.headers
    if incoming.deaths and keeps_dead_letters(queue) and REASON_HEADER not in headers:
        # The broker dead-lettered it, and notes why and when.
        death = incoming.deaths[0]
        headers = {**headers, REASON_HEADER: wire.death_reason(death)}
        died_at = death.get("time")
        stamp = died_at if isinstance(died_at, int) else -1
    if 0 <= stamp < 100_000_000_000:
        stamp *= 1000  # in seconds, as AMQP defines it and other senders write it
    return StoredMessage(
        position=f"{number:010d}-{_identity(delivery)}",
        id=incoming.id or "",
        queue=queue,
        body=delivery.body,
        headers=headers,
        stored_at=datetime.fromtimestamp(stamp / 1000, UTC) if 0 <= stamp <= _LATEST else None,
        delivery_count=incoming.deliveries,
        priority=incoming.priority,
        ordering_key=incoming.ordering_key,
        properties=delivery.properties,
    )
