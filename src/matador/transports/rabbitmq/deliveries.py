"""The unsettled deliveries of a channel, and how they are acknowledged.

Acknowledgements are written at the end of each call of ``settle``, as few as possible: one for all
deliveries up to a point if all of them are settled.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Self

import msgspec

from matador.model.message import Delivery, Receipt
from matador.transports.kit.window import AckWindow
from matador.transports.rabbitmq import frames
from matador.transports.rabbitmq.connection import AmqpChannel, AmqpConnection
from matador.transports.rabbitmq.wire import IncomingProperties

log = logging.getLogger("matador.rabbitmq")

_NO_PROPERTIES = b"\0\0"


class AmqpHold(msgspec.Struct, eq=False):
    """An unsettled delivery: the handle of its receipt.

    ``deliveries``: how often it was delivered before. ``uncounted``: it was, by a queue that does
    not count, so a message that crashes its workers would have a count of two forever.
    """

    holder: ChannelDeliveries
    tag: int
    properties: bytes
    body: bytes
    deliveries: int
    uncounted: bool = False
    routing_key: str | None = None
    settled: bool = False

    @property
    def alive(self) -> bool:
        """Whether it can still be settled."""
        return not self.settled and self.holder.alive


def hold_of(receipt: Receipt) -> AmqpHold:
    """The handle of a receipt of this transport."""
    hold = receipt.handle
    assert isinstance(hold, AmqpHold)
    return hold


class ChannelDeliveries:
    """Receives the deliveries of a channel and acknowledges them.

    ``on_delivery`` is called when one has arrived; it waits in ``arrived``. ``is_internal`` says
    whether an exchange is one of those that reach queues by their names.
    """

    channel: AmqpChannel

    def __init__(self, queue: str, is_internal: Callable[[bytes], bool]) -> None:
        self.queue = queue
        self._is_internal = is_internal
        self.arrived: deque[Delivery] = deque()
        self.on_delivery: Callable[[], None] = lambda: None
        self.on_empty: Callable[[], None] = lambda: None
        self.seen = 0
        """How many deliveries have arrived."""
        self.restrained = False
        """Hold acknowledgements back: for each of them the broker would push a new message."""
        self._window = AckWindow[AmqpHold]()
        self._name = queue.encode()
        # The delivery whose frames are arriving:
        self._tag = 0
        self._redelivered = False
        self._exchange = b""
        self._key = b""
        self._properties = _NO_PROPERTIES
        self._missing = 0
        self._body: list[bytes] = []

    @classmethod
    async def open(
        cls, connection: AmqpConnection, queue: str, is_internal: Callable[[bytes], bool]
    ) -> Self:
        """Receive on a new channel.

        Raises:
            TransportError: the channel cannot be opened.
        """
        made = cls(queue, is_internal)
        made.channel = await AmqpChannel.open(connection, made)
        return made

    @property
    def alive(self) -> bool:
        """Whether its deliveries can still be settled."""
        return self.channel.error is None

    @property
    def unacknowledged(self) -> int:
        """How many deliveries the broker has no acknowledgement for."""
        return len(self._window)

    # -- what arrives -----------------------------------------------------------------------------

    def take(self, kind: int, buffer: bytes, at: int, size: int) -> bool:
        if kind == frames.METHOD:
            class_, method = frames.method_of(buffer, at)
            return class_ == frames.BASIC and self._begin(method, buffer, at + 4)
        if not self._tag:
            return False  # of a message that pika handles
        if kind == frames.HEADER:
            self._properties = buffer[at + 12 : at + size]
            self._missing = frames.body_size(buffer, at)
        elif kind == frames.BODY:
            self._body.append(buffer[at : at + size])
            self._missing -= size
        if self._missing == 0:
            self._arrive()
        return True

    def _begin(self, method: int, buffer: bytes, at: int) -> bool:
        """Take the first frame of a delivery."""
        if method == frames.DELIVER:
            begun = frames.read_deliver(buffer, at)
        elif method == frames.GET_OK:
            begun = frames.read_get_ok(buffer, at)
        else:
            return False
        self._tag, self._redelivered, self._exchange, self._key = begun
        return True

    def _arrive(self) -> None:
        properties, redelivered = self._properties, self._redelivered
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        tag = self._tag
        self._forget_partial()
        self.seen += 1
        problem: str | None = None
        routing_key = self._routing_key() if self._exchange else None
        try:
            incoming = IncomingProperties(properties, redelivered, routing_key)
        except Exception as error:  # an exception here would end the connection, again and again
            log.exception("%s: the properties of a message cannot be read", self.queue)
            incoming = IncomingProperties(_NO_PROPERTIES, redelivered)
            problem = f"the properties cannot be read: {type(error).__name__}"
        before = incoming.deliveries
        hold = AmqpHold(self, tag, properties, body, before, incoming.uncounted, routing_key)
        self._window.add(tag, hold)
        receipt = Receipt(
            self.queue,
            hold,
            before + 1,
            before > 0,
            incoming.priority,
            incoming.ordering_key,
            exact_count=not incoming.uncounted,
        )
        problem = problem or incoming.problem
        self.arrived.append(
            Delivery(
                body, incoming.headers, receipt, problem, incoming.properties, incoming.id or ""
            )
        )
        self.on_delivery()

    def _routing_key(self) -> str | None:
        """The key it was published with.

        Not the name of its queue, or of the one it was dead-lettered from, by which the exchange of
        a namespace and those of dead letters and delays reach a queue.
        """
        key = self._key
        if not key:
            return None
        named = key == self._name or self._name.startswith(key + b".")
        if named and self._is_internal(self._exchange):
            return None
        return str(key, "utf-8", "replace")

    def _forget_partial(self) -> None:
        self._tag, self._properties, self._body = 0, _NO_PROPERTIES, []

    # -- what is settled --------------------------------------------------------------------------

    def ack(self, hold: AmqpHold) -> None:
        """Acknowledge a delivery with the next ``flush``."""
        hold.settled = True
        self._window.finish(hold.tag)

    def requeue(self, hold: AmqpHold) -> None:
        """Return a delivery to the broker, which counts it."""
        hold.settled = True
        if self._window.discard(hold.tag) is not None and self.alive:
            self.channel.write(frames.requeue_frame(self.channel.number, hold.tag))
        if not len(self._window):
            self.on_empty()

    def abandon(self) -> None:
        """Settle nothing more: everything returns to its place when the channel is closed.

        RabbitMQ does that at once. Returning 6,000 messages with ``basic.nack`` took it 34 s.
        """
        self.flush()
        for hold in self._window.clear():
            hold.settled = True

    def flush(self) -> None:
        """Write the acknowledgements that are due."""
        window, channel = self._window, self.channel
        if not window.has_finished or self.restrained:
            return
        if channel.error is not None or not channel.connection.is_open:
            window.clear()
            return
        last = window.take_prefix()
        acks = b"" if last is None else frames.ack_frame(channel.number, last, multiple=True)
        for tag in window.take_rest():
            acks += frames.ack_frame(channel.number, tag, multiple=False)
        channel.write(acks)
        if not len(window):
            self.on_empty()

    def retire(self) -> None:
        """Close the channel as soon as all of its deliveries are settled."""

        def close() -> None:
            self.on_empty = lambda: None
            self.channel.close_soon()

        self.on_empty = close
        self.flush()
        if self._window.unfinished == 0:
            close()

    def forget(self) -> None:
        """Drop everything: the channel is lost, and the broker delivers it again, counted."""
        self._window.clear()
        self.arrived.clear()
        self._forget_partial()
