"""``RedisPubSubTransport``: broadcasts to all current subscribers and stores nothing."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Unpack

import msgspec

from matador.errors import DelaysNotSupportedError, MatadorError, TransportError
from matador.model.capabilities import Capabilities
from matador.model.message import (
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Release,
    Retry,
    Settlement,
    TopologyNote,
)
from matador.model.topology import Topology
from matador.transports.base import Subscription
from matador.transports.kit.errors import lease_lost, queue_not_found
from matador.transports.kit.properties import ALL_PROPERTIES
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Waiters, Wakeup
from matador.transports.redis.base import RedisServerTransport
from matador.transports.redis.lists import RedisListTransport
from matador.transports.redis.options import RedisOptions
from matador.transports.redis.send import Outcomes, check_size
from matador.transports.redis.topology import unsupported
from matador.transports.redis.wire import content_of, delivery_of, letter_of, message_of
from matador.transports.redis_client.connection import (
    ListeningConnection,
    PipelinedConnection,
    forget,
)
from matador.transports.redis_client.errors import UNWRITABLE, unstorable

log = logging.getLogger("matador.transports.redis")

_MOST = 10_000
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, eq=False)
class HeardMessage:
    """A published message and its size in bytes; compared by identity."""

    message: Message
    size: int


class BroadcastQueue:
    """Messages in order of arrival. Drops the oldest when there are too many.

    A delayed retry waits in this process, too.
    """

    def __init__(self, name: str, dropped: Callable[[str, int], None]) -> None:
        self.name = name
        self._report_dropped = dropped
        self.held: set[HeardMessage] = set()
        self._waiting: deque[HeardMessage] = deque()
        self._size = 0
        self._dropped = 0
        self._later: set[asyncio.TimerHandle] = set()
        self.waiters = Waiters()

    def put(self, message: Message, size: int | None = None) -> None:
        """Add a message at the end; ``size``: its bytes, including headers."""
        heard = HeardMessage(message, len(message.body) if size is None else size)
        self._waiting.append(heard)
        self._size += heard.size
        while self._is_full():
            if not self._dropped:
                log.warning(
                    "%s: %d messages of %d bytes are waiting to be handled; dropping the oldest "
                    "until it has caught up",
                    *(self.name, len(self._waiting), self._size),
                )
            self._size -= self._waiting.popleft().size
            self._dropped += 1
            self._report_dropped(self.name, 1)
        self.waiters.wake()

    def put_later(self, message: Message, delay: float) -> None:
        """Add a message at the end, after a delay in seconds."""

        def put() -> None:
            self._later.discard(timer)
            self.put(message)

        timer = asyncio.get_running_loop().call_later(delay, put)
        self._later.add(timer)

    def close(self) -> None:
        """Drop all messages: there is no subscription left."""
        for timer in self._later:
            timer.cancel()
        if left := len(self._waiting) + len(self._later):
            log.warning("%s: no longer heard here; messages dropped: %d", self.name, left)
            self._report_dropped(self.name, left)
        self._later.clear()

    def _is_full(self) -> bool:
        number = len(self._waiting)
        return number > _MOST or (self._size > _MOST_BYTES and number > 1)

    def put_back(self, heard: HeardMessage) -> None:
        """Put a held message back in front, uncounted."""
        self.held.discard(heard)
        self._waiting.appendleft(heard)
        self._size += heard.size
        self.waiters.wake()

    def take(self, limit: int) -> list[Delivery]:
        """Deliver up to ``limit`` messages."""
        taken = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        self.held.update(taken)
        self._size -= sum(heard.size for heard in taken)
        if self._dropped and not self._waiting:
            log.warning("%s: has caught up; messages dropped: %d", self.name, self._dropped)
            self._dropped = 0
        return [delivery_of(heard.message, heard, 1) for heard in taken]

    def wake(self) -> None:
        """Wake a subscription, if there is something to take."""
        if self._waiting:
            self.waiters.wake()


class BroadcastSubscription(BaseSubscription):
    """A subscription to broadcasts. Created by ``RedisPubSubTransport.subscribe``."""

    def __init__(
        self, source: BroadcastQueue, closed: Callable[[BroadcastSubscription], None]
    ) -> None:
        super().__init__(source.name)
        self._source = source
        self._closed = closed
        self._wakeup = Wakeup()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """Yields to other tasks first, even if messages are available."""
        await asyncio.sleep(0)
        while self._active:
            found = self._source.take(limit)
            if found:
                return found
            await self._wait()
        return ()

    async def _wait(self) -> None:
        taking = False
        try:
            await self._source.waiters.wait(self._wakeup)
            taking = self._active
        finally:
            if not taking:  # woken, then canceled or closed: another waiter takes the message
                self._wakeup.clear()
                self._source.wake()

    async def close(self) -> None:
        if self._active:
            self._active = False
            self._closed(self)
            self._wakeup.wake()


class RedisPubSubTransport(RedisServerTransport):
    """Messages by Redis pub/sub (``redis://…?mode=pubsub``): a broadcast. See ``Transport``.

    Every process with a subscription gets a copy of each message; the subscriptions of a process
    share it. Messages are not stored: a message sent without a subscriber is lost, and so are the
    messages of a process that dies. A retry waits in the process whose handler failed. Dead letters
    are stored in lists, from which ``RedisListTransport`` can receive.

    Args: those of ``RedisTransport``; the lease is that of dead letters.
    """

    _stores = False

    _capabilities = Capabilities(
        delivery_modes=frozenset({"at-most-once"}),
        delays=False,
        delays_retries=True,
        dead_letters="manual",
        attempt_tracking=False,
        concurrency="worker",
        ordering="queue",
        priorities=False,
        durable=False,
        properties=ALL_PROPERTIES,
    )

    def __init__(self, url: str, **options: Unpack[RedisOptions]) -> None:
        super().__init__(url, **options)
        self._known: set[str] = set()
        self._letters = RedisListTransport(url, **options)
        self._letter_queues: set[str] = set()
        self._queues: dict[str, BroadcastQueue] = {}
        self._subscriptions: set[BroadcastSubscription] = set()
        self._listener: ListeningConnection | None = None

    def _channel_of(self, queue: str) -> str:
        return f"{self._prefix}-pubsub:{queue}"

    async def _close(self) -> None:
        for subscription in list(self._subscriptions):
            await subscription.close()
        await self._stop_listening()
        self._queues.clear()
        await self._letters.disconnect()
        await super()._close()

    async def _restore(self, connection: PipelinedConnection) -> None:
        """Subscribe again before anything is sent."""
        await self._stop_listening()
        self._listener = listener = await self._client.listen(self._heard)

        def ended(lost: asyncio.Future[BaseException]) -> None:
            if self._listener is listener:  # lost: both connections are restored
                connection.fail(lost.result())

        listener.lost.add_done_callback(ended)
        try:
            for queue in self._queues:
                await listener.call("SUBSCRIBE", self._channel_of(queue))
        except BaseException:
            await self._stop_listening()
            raise

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()

    def _heard(self, channel: bytes, content: bytes) -> None:
        name = channel.decode().removeprefix(self._channel_of(""))
        queue = self._queues.get(name)
        if queue is not None:
            queue.put(message_of(name, content), len(content))

    # -- the protocol ------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """A channel exists while it is used; a list of dead letters is created when the first is
        stored."""
        await self._client.connection()
        self._known.update(topology.full_name(queue.name) for queue in topology.queues)
        self._letter_queues.update(name for _, _, name in topology.dead_letter_names())
        return unsupported(topology, "pub/sub")

    async def _letters_of(self, queue: str) -> RedisListTransport:
        """The transport for dead letters, with this queue declared."""
        if self._letters.state.status == "disconnected":
            await self._letters.connect()
        await self._letters.create([queue])
        return self._letters

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """None: the message was published, whether or not there was a subscriber."""
        connection = await self._client.connection()
        outcomes: Outcomes = [None] * len(messages)
        letters = [i for i, one in enumerate(messages) if one.queue in self._letter_queues]
        if letters:
            stored = await self._store_letters([messages[i] for i in letters])
            for place, outcome in zip(letters, stored, strict=True):
                outcomes[place] = outcome
        replies: dict[int, asyncio.Future[object]] = {}
        for place, message in enumerate(messages):
            if place in letters:
                continue
            try:
                self._check(message)
                content = content_of(message)
            except TransportError as error:
                outcomes[place] = error
            except UNWRITABLE as error:
                outcomes[place] = unstorable(f"message {message.id!r}", error)
            else:
                channel = self._channel_of(message.queue)
                replies[place] = connection.call("PUBLISH", channel, content)
        for place, reply in replies.items():
            try:
                await reply
            except Exception as error:  # noqa: BLE001 - translated, whatever it is
                outcomes[place] = self._client.translated(connection, error)
        return outcomes

    async def _store_letters(self, letters: Sequence[Message]) -> Sequence[MatadorError | None]:
        """Store messages in the lists of dead letters."""
        try:
            for queue in {letter.queue for letter in letters}:
                await self._letters_of(queue)
            return await self._letters.send(letters)
        except MatadorError as error:
            return [error] * len(letters)

    def _check(self, message: Message) -> None:
        """Raise a ``TransportError`` if a message cannot be published."""
        if message.queue not in self._known:
            raise queue_not_found(message.queue, self._client.where)
        if message.delay > 0:
            raise DelaysNotSupportedError("pub/sub stores nothing, so it cannot delay a message")
        check_size(message)

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        """Receives messages published from now on; dead letters are stored."""
        connection = await self._client.connection()
        if queue in self._letter_queues:
            return await (await self._letters_of(queue)).subscribe(queue, prefetch=prefetch)
        if queue not in self._known:
            raise queue_not_found(queue, self._client.where)
        if queue not in self._queues:
            self._queues[queue] = BroadcastQueue(queue, self._report_dropped)
            assert self._listener is not None
            try:
                await self._listener.call("SUBSCRIBE", self._channel_of(queue))
            except Exception as error:
                del self._queues[queue]
                raise self._client.translated(connection, error) from error
        subscription = BroadcastSubscription(self._queues[queue], self._closed)
        self._subscriptions.add(subscription)
        return subscription

    def _closed(self, subscription: BroadcastSubscription) -> None:
        self._subscriptions.discard(subscription)
        name = subscription.queue
        if any(other.queue == name for other in self._subscriptions):
            return
        left = self._queues.pop(name, None)
        if left is not None:
            left.close()
        if left is not None and self._listener is not None:
            self._listener.call("UNSUBSCRIBE", self._channel_of(name)).add_done_callback(forget)

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """A released or retried message returns to this process only."""
        await self._client.connection()
        return [await self._settle(settlement) for settlement in settlements]

    async def _settle(self, settlement: Settlement) -> MatadorError | None:
        receipt = settlement.receipt
        if receipt.queue in self._letter_queues:
            if isinstance(settlement, Retry) and settlement.message.queue in self._known:
                (error,) = await self.send([settlement.message])  # a redrive
                if error is not None:
                    return error
                settlement = Complete(receipt)
            return (await self._letters.settle([settlement]))[0]
        heard, queue = receipt.handle, self._queues.get(receipt.queue)
        # Without a queue there is no subscription left in this process, and no other process has
        # this copy.
        if not isinstance(heard, HeardMessage) or (queue is not None and heard not in queue.held):
            return lease_lost(receipt.queue)
        if isinstance(settlement, Release):
            if queue is not None:
                queue.put_back(heard)
            return None
        error = await self._succeed(settlement, heard.message, queue)
        if error is None and queue is not None:
            queue.held.discard(heard)
        return error

    async def _succeed(
        self, settlement: Settlement, received: Message, queue: BroadcastQueue | None
    ) -> MatadorError | None:
        """Publish the successor, if any; a retry in the same queue stays in this process."""
        match settlement:
            case Retry(message=message):
                delay, message = message.delay, msgspec.structs.replace(message, delay=0.0)
                if queue is not None and message.queue == queue.name:
                    try:
                        self._check(message)
                    except TransportError as error:
                        return error
                    if delay > 0:
                        queue.put_later(message, delay)
                    else:
                        queue.put(message)
                    return None
            case DeadLetter():
                message = letter_of(settlement, received)
            case _:
                return None
        return (await self.send([message]))[0]
