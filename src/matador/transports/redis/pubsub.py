"""``RedisPubSubTransport``: to all who listen now, kept nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from matador.errors import (
    DelaysNotSupportedError,
    MatadorError,
    MessageTooLargeError,
    TransportError,
)
from matador.model.capabilities import Capabilities
from matador.model.message import (
    DeadLetter,
    Message,
    Release,
    Retry,
    Settlement,
    TopologyNote,
)
from matador.model.options import Seconds
from matador.model.topology import Topology
from matador.transports.base import ignored_arguments
from matador.transports.redis.channel import Channel
from matador.transports.redis.contents import content_of, letter_of, message_of
from matador.transports.redis.listening import Listener
from matador.transports.redis.local import Heard, LocalQueue, LocalSubscription
from matador.transports.redis.sending import (
    UNWRITABLE,
    Outcomes,
    check_size,
    no_such_queue,
    unwritable,
)
from matador.transports.redis.server import ServerTransport
from matador.transports.redis.settling import lost, target_of


class RedisPubSubTransport(ServerTransport):
    """Messages by Redis pub/sub (``redis://…?mode=pubsub``): a broadcast. See ``Transport``.

    Every process that has a subscription gets its own copy; the subscriptions of one process share
    it. Nothing is stored: what is sent while nobody listens is gone, and so is what a process had
    when it dies. A retry stays in the process; dead letters are published like anything else.

    Args: those of ``RedisTransport``; there is no lease.
    """

    _keeps = False

    def __init__(
        self,
        url: str,
        *,
        timeout: Seconds | None = None,
        heartbeat: Seconds | None = None,
        prefix: str | None = None,
        name: str = "redis",
    ) -> None:
        super().__init__(url, timeout=timeout, heartbeat=heartbeat, prefix=prefix, name=name)
        self._capabilities = Capabilities(
            delivery_modes=frozenset({"at-most-once"}),
            delays=False,
            dead_letters="none",
            attempt_tracking=False,
            concurrency="worker",
            ordering="queue",
            priorities=False,
            durable=False,
        )
        self._known: set[str] = set()
        self._queues: dict[str, LocalQueue] = {}
        self._subscriptions: set[LocalSubscription] = set()
        self._listener: Listener | None = None

    @property
    def capabilities(self) -> Capabilities:
        """See ``Transport``."""
        return self._capabilities

    def _channel_of(self, queue: str) -> str:
        return f"{self._prefix}-pubsub:{queue}"

    async def _before_disconnect(self) -> None:
        for subscription in list(self._subscriptions):
            await subscription.close()
        await self._stop_listening()
        self._queues.clear()

    async def _restore(self, channel: Channel) -> None:
        """Listen again before anything is sent."""
        await self._stop_listening()

        def ended(error: BaseException) -> None:
            channel.fail(error)  # both are made again, this one first

        listener = Listener(self._opener, heard=self._heard, lost=ended)
        try:
            await listener.start(map(self._channel_of, self._queues))
        except BaseException:
            await listener.close()
            raise
        self._listener = listener

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()

    def _heard(self, channel: bytes, content: bytes) -> None:
        name = channel.decode().removeprefix(self._channel_of(""))
        queue = self._queues.get(name)
        if queue is not None:
            queue.put(message_of(name, content))

    # -- the protocol ------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``. Nothing is made on the server: a channel is there when it is used."""
        await self._link.channel()
        notes = ignored_arguments(topology)
        for queue in topology.queues:
            name = topology.full_name(queue.name)
            self._known.add(name)
            if queue.priorities:
                notes.append(TopologyNote(name, "pub/sub has no priorities"))
            if queue.retention is not None:
                notes.append(TopologyNote(name, "pub/sub keeps nothing"))
        for _, kind, name in topology.dead_letter_names():
            self._known.add(name)
            letters = topology.dead_letters[kind]
            if letters.max_length is not None or letters.ttl is not None:
                notes.append(TopologyNote(name, "pub/sub keeps nothing, so it has no limits"))
        return notes

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``Transport``. None: it was published, whether anybody listens or not."""
        channel = await self._link.channel()
        outcomes: Outcomes = [None] * len(messages)
        answers: list[tuple[int, asyncio.Future[object]]] = []
        for place, message in enumerate(messages):
            outcomes[place] = self._refused(message)
            if outcomes[place] is not None:
                continue
            try:
                check_size(message)
                content = content_of(message)
            except (*UNWRITABLE, MessageTooLargeError) as error:
                outcomes[place] = unwritable(message, error)
                continue
            name = self._channel_of(message.queue)
            answers.append((place, channel.call("PUBLISH", name, content)))
        for place, answer in answers:
            try:
                await answer
            except Exception as error:  # noqa: BLE001 - translated, whatever it is
                outcomes[place] = self._link.translated(channel, error)
        return outcomes

    def _refused(self, message: Message) -> MatadorError | None:
        if message.queue not in self._known:
            return no_such_queue(message.queue, self._link.where)
        if message.delay > 0:
            return DelaysNotSupportedError("pub/sub keeps nothing, so it cannot delay a message")
        return None

    async def subscribe(self, queue: str, *, prefetch: int) -> LocalSubscription:
        """See ``Transport``. Hears what is published from now on."""
        channel = await self._link.channel()
        if queue not in self._known:
            raise no_such_queue(queue, self._link.where)
        if queue not in self._queues:
            self._queues[queue] = LocalQueue(queue)
            assert self._listener is not None
            try:
                await self._listener.listen([self._channel_of(queue)])
            except Exception as error:
                del self._queues[queue]
                raise self._link.translated(channel, error) from error
        subscription = LocalSubscription(self._queues[queue], self._closed)
        self._subscriptions.add(subscription)
        return subscription

    def _closed(self, subscription: LocalSubscription) -> None:
        self._subscriptions.discard(subscription)
        name = subscription.queue
        if not any(other.queue == name for other in self._subscriptions):
            queue = self._queues.pop(name, None)
            if queue is not None and self._listener is not None:
                self._listener.forget(self._channel_of(name))

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``Transport``. What is given back, and a retry, go to this process only."""
        await self._link.channel()
        return [await self._settle(settlement) for settlement in settlements]

    async def _settle(self, settlement: Settlement) -> MatadorError | None:
        heard, queue = settlement.receipt.handle, self._queues.get(settlement.receipt.queue)
        if not isinstance(heard, Heard):
            return lost(settlement.receipt)
        if queue is None:  # nobody listens any more; it was ours alone
            return None if isinstance(settlement, Release) else await self._succeed(settlement)
        if heard not in queue.held:
            return lost(settlement.receipt)
        if isinstance(settlement, Release):
            queue.put_back(heard)
            return None
        error = await self._succeed(settlement, queue)
        if error is None:
            queue.held.discard(heard)
        return error

    async def _succeed(
        self, settlement: Settlement, queue: LocalQueue | None = None
    ) -> MatadorError | None:
        """Store the successor, if there is one."""
        match settlement:
            case Retry(message=message):
                if queue is None or message.queue != queue.name:
                    return (await self.send([message]))[0]
                error = self._refused(message)
                if error is None:
                    queue.put(message)
                return error
            case DeadLetter(receipt=receipt, message=given):
                heard, name = receipt.handle, target_of(settlement)
                assert isinstance(heard, Heard)
                if name not in self._known:
                    return no_such_queue(name, self._link.where)
                try:
                    content = letter_of(settlement, lambda: heard.message)
                except UNWRITABLE as error:
                    return unwritable(given, error)
                try:
                    await self._link.call("PUBLISH", self._channel_of(name), content)
                except TransportError as error:
                    return error
                return None
            case _:
                return None
