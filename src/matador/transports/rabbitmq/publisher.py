"""Publishes on one channel with confirms: many messages in flight, an outcome for each."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from matador.errors import (
    MatadorError,
    QueueNotFoundError,
    SendRefusedError,
    SendTimeoutError,
    SendUnconfirmedError,
    StorageFullError,
)
from matador.transports.kit.wakeup import Waiters, Wakeup
from matador.transports.rabbitmq import frames
from matador.transports.rabbitmq.connection import AmqpChannel, AmqpConnection
from matador.transports.rabbitmq.errors import publishing_refused, reason_of, translate
from matador.transports.rabbitmq.wire import id_of

log = logging.getLogger("matador.rabbitmq")

DIRECT_REPLY = "amq.rabbitmq.reply-to"
"""A channel's own name for its replies; the server of a request gets a longer one."""

_MOST_ROUTES = 10_000
_WRITE = 256  # messages per write: enough to be cheap, few enough for other tasks to run
_PAUSES = (0.1, 0.4)  # seconds before what the broker refused is published again


class Publication(NamedTuple):
    """A message ready to be published; ``properties`` begin with their flags."""

    exchange: str
    key: str
    id: str
    properties: bytes
    body: bytes
    mandatory: bool = True
    routed: bool = False
    """Whether the bindings of the exchange decide which queues get it, if any."""
    delayed: bool = False
    """Whether it goes to a queue for delays, which has no limit and so is never full."""
    released: bool = False
    """Whether it is a copy of a message that is given back."""

    @property
    def target(self) -> str:
        """The queue or the exchange that must exist."""
        return self.exchange if self.routed else self.key


class _PublishBatch:
    """Messages that were handed over together."""

    __slots__ = ("done", "left", "nacked", "outcomes")

    def __init__(self, size: int) -> None:
        self.outcomes: list[MatadorError | None] = [None] * size
        self.nacked: set[int] = set()
        self.left = size
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, place: int, error: MatadorError | None) -> None:
        self.outcomes[place] = error
        self.left -= 1
        if self.left == 0 and not self.done.done():
            self.done.set_result(None)


class _Flight(NamedTuple):
    """A message that is not confirmed yet."""

    batch: _PublishBatch
    place: int
    publication: Publication


class UnroutableError(QueueNotFoundError):
    """No binding matches a message that was published to an exchange. It is not stored."""


class _UntakenError(SendRefusedError):
    """Not read by the broker, which had closed the channel because of an earlier message."""


class AmqpPublisher:
    """Publishes everything in the order in which it is handed over.

    At most ``window`` messages are unconfirmed. Nothing waits longer than ``timeout``.
    """

    def __init__(self, connection: AmqpConnection, *, window: int, timeout: float) -> None:
        self._connection = connection
        self._window = window
        self._timeout = timeout
        self._channel: AmqpChannel | None = None
        self._next = 1
        self._flights: dict[int, _Flight] = {}
        self._returned: dict[int, str] = {}
        self._coming_back: tuple[str, str] | None = None
        self._missing = 0  # bytes of the message that is coming back, or of the reply
        self._reply: list[bytes] | None = None  # properties and body of the reply that arrives
        self._routes: dict[tuple[str, str, bool], bytes] = {}
        self._waiters = Waiters()
        self._writing = asyncio.Lock()
        self._on_reply: Callable[[bytes, bytes], None] | None = None
        connection.on_blocked = self._wake

    async def open(self) -> None:
        """Open the channel, or open it again.

        Raises:
            TransportError: the channel cannot be opened.
        """
        channel = await AmqpChannel.open(self._connection, self)
        await channel.confirm()
        if self._on_reply is not None:
            await channel.consume_replies(DIRECT_REPLY)
        channel.on_closed = self._closed
        self._channel, self._next, self._coming_back, self._reply = channel, 1, None, None
        self._routes.clear()

    async def receive_replies(self, on_reply: Callable[[bytes, bytes], None]) -> None:
        """Receive replies on the channel that publishes: RabbitMQ requires the same for both.

        Raises:
            TransportError: the channel is lost.
        """
        async with self._writing:
            if self._on_reply is None and self._channel is not None:
                await self._channel.consume_replies(DIRECT_REPLY)
            self._on_reply = on_reply

    async def publish(self, publications: Sequence[Publication]) -> list[MatadorError | None]:
        """Publish in order. For each: None once it is stored, or why it is not. Never raises.

        What is already written is still published if the call is cancelled.
        """
        if not publications:
            return []
        batch = await self._publish_once(publications)
        outcomes = batch.outcomes
        if not any(outcomes):
            return outcomes
        untaken = [place for place, one in enumerate(outcomes) if type(one) is _UntakenError]
        if untaken:
            again = await self.publish([publications[place] for place in untaken])
            for place, error in zip(untaken, again, strict=True):
                outcomes[place] = error
        # A queue without limit refuses messages only while it has no leader, which passes. To wait
        # for a full queue would delay messages for other queues.
        refused = _to_repeat(publications, batch)
        for pause in _PAUSES:
            if not refused:
                break
            await asyncio.sleep(pause)
            tried = [publications[place] for place in refused]
            batch = await self._publish_once(tried)
            for place, error in zip(refused, batch.outcomes, strict=True):
                outcomes[place] = error
            refused = [refused[place] for place in _to_repeat(tried, batch)]
        return outcomes

    async def _publish_once(self, publications: Sequence[Publication]) -> _PublishBatch:
        batch = _PublishBatch(len(publications))
        written = 0
        try:
            async with asyncio.timeout(self._timeout):
                async with self._writing:  # batches do not mix, so each stays in order
                    while written < len(publications):
                        try:
                            count = await self._wait_for_room(len(publications) - written)
                            self._write(publications[written : written + count], batch, written)
                        except MatadorError as error:
                            for place in range(written, len(publications)):
                                batch.settle(place, error)
                            break
                        written += count
                await asyncio.shield(batch.done)  # what was written is published all the same
        except builtins.TimeoutError:
            self._give_up(batch, written)
        except asyncio.CancelledError:
            for place in range(written, len(publications)):
                batch.settle(place, None)  # so that ``drain`` does not wait for it
            raise
        return batch

    async def drain(self) -> None:
        """Wait until every message has its outcome, but no longer than a send may take."""
        try:
            async with asyncio.timeout(self._timeout):
                while self._flights:
                    await self._changed()
        except builtins.TimeoutError:
            log.warning("%d messages were never confirmed", len(self._flights))

    # -- writing ----------------------------------------------------------------------------------

    async def _wait_for_room(self, wanted: int) -> int:
        """How many messages may be written now: at least one.

        Raises:
            TransportError: there is no channel.
        """
        while True:
            connection = self._connection
            if not connection.is_open:
                closed = ConnectionError("the connection is closed")
                reason = connection.lost.result() if connection.lost.done() else closed
                raise translate(reason, "publishing")
            if self._channel is None:
                await self.open()
            room = self._window - len(self._flights)
            if room > 0 and connection.blocked is None:
                return min(room, wanted, _WRITE)
            await self._changed()

    async def _changed(self) -> None:
        """Wait until something was confirmed, lost, blocked or unblocked."""
        await self._waiters.wait(Wakeup())

    def _wake(self) -> None:
        self._waiters.wake(len(self._waiters))

    def _write(self, publications: Sequence[Publication], batch: _PublishBatch, place: int) -> None:
        channel = self._channel
        assert channel is not None
        number, frame_max = channel.number, self._connection.frame_max
        routes, flights, tag = self._routes, self._flights, self._next
        pieces: list[bytes] = []
        for exchange, key, _, properties, body, mandatory, _, _, _ in publications:
            route = routes.get((exchange, key, mandatory))
            if route is None:
                if len(routes) >= _MOST_ROUTES:
                    routes.clear()
                route = frames.publish_frame(number, exchange, key, mandatory=mandatory)
                routes[exchange, key, mandatory] = route
            pieces.append(route)
            pieces.append(frames.content_frames(number, properties, body, frame_max))
        for publication in publications:  # only once all of them could be encoded
            flights[tag] = _Flight(batch, place, publication)
            tag += 1
            place += 1
        self._next = tag
        channel.write(b"".join(pieces))

    # -- answers of the broker --------------------------------------------------------------------

    def take(self, kind: int, buffer: bytes, at: int, size: int) -> bool:
        """Take confirms, replies, and messages that no queue accepted."""
        if kind == frames.METHOD:
            class_, method = frames.method_of(buffer, at)
            if class_ != frames.BASIC:
                return False
            if method == frames.DELIVER:
                self._reply = []
                return True
            if method == frames.RETURN:
                self._coming_back = frames.read_return(buffer, at + 4)
                return True
            if method not in (frames.ACK, frames.NACK):
                return False
            tag, multiple = frames.read_confirm(buffer, at + 4)
            self._confirmed(tag, multiple, method == frames.ACK)
            return True
        if self._reply is not None:
            self._take_reply(self._reply, kind, buffer, at, size)
            return True
        if self._coming_back is None:
            return False
        if kind == frames.HEADER:
            text, key = self._coming_back
            self._return(key, id_of(buffer[at + 12 : at + size]), text)
            self._missing = frames.body_size(buffer, at)
        elif kind == frames.BODY:
            self._missing -= size
        if self._missing == 0:
            self._coming_back = None
        return True

    def _take_reply(self, reply: list[bytes], kind: int, buffer: bytes, at: int, size: int) -> None:
        if kind == frames.HEADER:
            reply.append(buffer[at + 12 : at + size])
            self._missing = frames.body_size(buffer, at)
        elif kind == frames.BODY:
            reply.append(buffer[at : at + size])
            self._missing -= size
        if self._missing == 0:
            self._reply = None
            if self._on_reply is not None:
                self._on_reply(reply[0], b"".join(reply[1:]))

    def _confirmed(self, tag: int, multiple: bool, ok: bool) -> None:
        flights = self._flights
        if multiple:
            tags: list[int] = []
            for one in flights:
                if one > tag:
                    break
                tags.append(one)
        else:
            tags = [tag]
        returned = self._returned
        for one in tags:
            flight = flights.pop(one, None)
            if flight is None:
                continue
            error: MatadorError | None = None
            if not ok:
                key = flight.publication.key
                text = f"{key} refused {flight.publication.id}: it is full, or the broker failed"
                error = SendRefusedError(text, queue=key)
                flight.batch.nacked.add(flight.place)
            elif returned and one in returned:
                error = _unroutable(flight.publication, returned.pop(one))
            flight.batch.settle(flight.place, error)
        self._wake()

    def _return(self, key: str, message_id: str, text: str) -> None:
        """Note a message that the broker returned: the oldest match, as returns are in order."""
        for tag, (_, _, publication) in self._flights.items():
            if (publication.key, publication.id) == (key, message_id) and tag not in self._returned:
                self._returned[tag] = text
                return

    def _closed(self, reason: BaseException) -> None:
        """Settle what was written on a channel that is lost: its outcome is unknown.

        If the broker closed the channel because of one message, it did not read the later ones.
        """
        self._channel = None
        flights, self._flights = self._flights, {}
        self._returned.clear()
        culprit = False
        for batch, place, publication in flights.values():
            error = publishing_refused(reason, publication.exchange, len(publication.body))
            if error is not None:
                culprit = True
            elif culprit:
                error = _UntakenError("not stored: the channel was closed for another message")
            else:
                error = SendUnconfirmedError(
                    f"the connection was lost before {publication.key} confirmed {publication.id}: "
                    f"it may be stored ({reason_of(reason)})",
                    queue=publication.key,
                    cause=reason,
                )
            batch.settle(place, error)
        self._wake()

    def _give_up(self, batch: _PublishBatch, written: int) -> None:
        """Settle a batch after the timeout: what was written may be stored, the rest is not."""
        blocked, limit = self._connection.blocked, f"{self._timeout:g} s"
        alarm = f"; the broker blocks publishers: {blocked}" if blocked else ""
        for tag, flight in list(self._flights.items()):
            if flight.batch is batch:
                del self._flights[tag]
                key = flight.publication.key
                text = f"{key} did not confirm {flight.publication.id} in {limit}: it may be stored"
                batch.settle(flight.place, SendTimeoutError(text + alarm, queue=key))
        if blocked is not None:
            error = StorageFullError(
                f"RabbitMQ accepted no messages for {limit} ({blocked}): free memory or disk on "
                f"the server; nothing was stored"
            )
        else:
            behind = len(self._flights)
            error = SendRefusedError(
                f"not sent: the broker is {behind} confirmations behind after {limit}"
            )
        for place in range(written, len(batch.outcomes)):
            if batch.outcomes[place] is None:
                batch.settle(place, error)
        self._wake()


def _to_repeat(publications: Sequence[Publication], batch: _PublishBatch) -> list[int]:
    """The places of refused messages that are worth another try, in order."""
    return [place for place in sorted(batch.nacked) if publications[place].delayed]


def _unroutable(publication: Publication, text: str) -> MatadorError:
    via = f" through {publication.exchange}" if publication.exchange else ""
    made = UnroutableError if publication.routed else QueueNotFoundError
    return made(f"there is no queue {publication.key!r}{via} ({text})")
