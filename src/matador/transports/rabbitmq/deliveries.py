"""What this process holds of a channel's deliveries, and how it is acknowledged.

Acknowledgements are written at the end of each call of ``settle``, as few as it takes: one for all
deliveries up to a point if every one of them is done.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from matador.model.message import Delivery, Receipt
from matador.transports.kit.window import AckWindow
from matador.transports.rabbitmq import frames
from matador.transports.rabbitmq.channel import AmqpChannel
from matador.transports.rabbitmq.wire import IncomingProperties

log = logging.getLogger("matador.rabbitmq")

_NO_PROPERTIES = b"\0\0"


class AmqpHold:
    """One delivery that is not settled: the handle of its receipt.

    ``uncounted``: it was delivered before by a queue that does not count, so whoever kills its
    receivers would be delivered for the second time for ever.
    """

    __slots__ = (
        "body",
        "deliveries",
        "holder",
        "properties",
        "routing_key",
        "settled",
        "tag",
        "uncounted",
    )

    def __init__(
        self,
        holder: ChannelDeliveries,
        tag: int,
        properties: bytes,
        body: bytes,
        deliveries: int,
        uncounted: bool = False,
        routing_key: str | None = None,
    ) -> None:
        self.holder = holder
        self.tag = tag
        self.properties = properties
        self.body = body
        self.deliveries = deliveries
        self.uncounted = uncounted
        self.routing_key = routing_key
        self.settled = False

    @property
    def alive(self) -> bool:
        """Is it still ours to settle?"""
        return not self.settled and self.holder.alive


class ChannelDeliveries:
    """A channel through which deliveries come, and all that it has not acknowledged.

    ``on_delivery`` is called when some have arrived; they wait in ``arrived``.
    """

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.arrived: deque[Delivery] = deque()
        self.on_delivery: Callable[[], None] = lambda: None
        self.on_empty: Callable[[], None] = lambda: None
        self.channel: AmqpChannel | None = None
        self.seen = 0
        """How many deliveries have arrived."""
        self.restrained = False
        """Acknowledgements wait: for each of them the broker would push something new."""
        self._window = AckWindow[AmqpHold]()
        self._name = queue.encode()
        self._tag = 0
        self._redelivered = False
        self._key = b""
        self._properties: bytes | None = None
        self._missing = 0
        self._body: list[bytes] = []

    @property
    def alive(self) -> bool:
        """Can deliveries that came through it still be settled?"""
        return self.channel is not None and self.channel.error is None

    @property
    def held(self) -> int:
        """How many deliveries are not settled."""
        return self._window.unfinished

    @property
    def unacknowledged(self) -> int:
        """How many deliveries the broker waits for."""
        return len(self._window)

    # -- what arrives -----------------------------------------------------------------------------

    def take(self, kind: int, buffer: bytes, at: int, size: int) -> bool:
        """See ``Sink``."""
        if kind == frames.METHOD:
            class_, method = frames.method_of(buffer, at)
            if class_ != frames.BASIC:
                return False
            return self.take_method(method, buffer, at + 4)
        if not self._tag:
            return False  # of a message that pika was told of
        if kind == frames.HEADER:
            self._properties = buffer[at + 12 : at + size]
            self._missing = frames.body_size(buffer, at)
        elif kind == frames.BODY:
            self._body.append(buffer[at : at + size])
            self._missing -= size
        if self._missing == 0:
            self._arrive()
        return True

    def take_method(self, method: int, buffer: bytes, at: int) -> bool:
        """Take the beginning of a delivery."""
        if method != frames.DELIVER:
            return False
        self._tag, self._redelivered, self._key = frames.read_deliver(buffer, at)
        return True

    def begin(self, tag: int, redelivered: bool, key: bytes) -> None:
        """A message follows that was not pushed but asked for."""
        self._tag, self._redelivered, self._key = tag, redelivered, key

    def _routing_key(self) -> str | None:
        """The key it was published with, unless that was to this queue, or it died in its own."""
        key = self._key
        if not key or self._name.startswith(key + b"."):
            return None
        return str(key, "utf-8", "replace")

    def _arrive(self) -> None:
        properties = self._properties or _NO_PROPERTIES
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        tag, redelivered = self._tag, self._redelivered
        self._tag = 0
        self._properties = None
        self._body = []
        self.seen += 1
        problem: str | None = None
        routing_key = None if self._key == self._name else self._routing_key()
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
        )
        self.arrived.append(
            Delivery(
                body, incoming.headers, receipt, problem or incoming.problem, incoming.properties
            )
        )
        self.on_delivery()

    # -- what is done -----------------------------------------------------------------------------

    def ack(self, hold: AmqpHold) -> None:
        """Acknowledge a delivery with the next ``flush``."""
        hold.settled = True
        self._window.finish(hold.tag)

    def requeue(self, hold: AmqpHold) -> None:
        """Give a delivery back to the broker, which counts it."""
        hold.settled = True
        if self._window.discard(hold.tag) is not None and self.channel is not None and self.alive:
            self.channel.write(
                frames.nack_frame(self.channel.number, hold.tag, multiple=False, requeue=True)
            )
        self._look_if_empty()

    def requeue_arrived(self) -> None:
        """Give back what arrived and was handed to nobody."""
        while self.arrived:
            hold = self.arrived.popleft().receipt.handle
            assert isinstance(hold, AmqpHold)
            self.requeue(hold)

    def abandon(self) -> None:
        """Settle nothing more: all that is held goes back to its place when the channel is closed.

        RabbitMQ does that at once; to requeue 6,000 messages by ``basic.nack`` took it 34 s.
        """
        self.flush()
        for hold in self._window.clear():
            hold.settled = True

    def flush(self) -> None:
        """Write the acknowledgements that wait."""
        window, channel = self._window, self.channel
        if not window.has_finished or self.restrained:
            return
        if channel is None or channel.error is not None or not channel.connection.is_open:
            window.clear()
            return
        last = window.take_prefix()
        acks = b"" if last is None else frames.ack_frame(channel.number, last, multiple=True)
        for tag in window.take_rest():
            acks += frames.ack_frame(channel.number, tag, multiple=False)
        channel.write(acks)
        self._look_if_empty()

    def _look_if_empty(self) -> None:
        if not len(self._window):
            self.on_empty()

    def forget(self) -> None:
        """The channel is gone: everything goes back to the queue, counted by the broker."""
        self._window.clear()
        self.arrived.clear()
        self._tag = 0
        self._body = []
        self._properties = None
