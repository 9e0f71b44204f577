"""``RedisTransport``: durable messages in Redis streams, for any number of processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from matador.errors import MatadorError, QueueNotFoundError, TransportError
from matador.model.capabilities import Capabilities
from matador.model.message import (
    Delivery,
    Message,
    Once,
    QueueDepth,
    Receipt,
    Release,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.options import Seconds
from matador.model.topology import Topology
from matador.transports.base import Transport, ignored_arguments
from matador.transports.redis import looking, sending, settling
from matador.transports.redis.channel import Argument, Channel
from matador.transports.redis.consuming import Consuming
from matador.transports.redis.entries import Lane, claimed_of
from matador.transports.redis.lists import RedisListTransport
from matador.transports.redis.once import Notes
from matador.transports.redis.pubsub import RedisPubSubTransport
from matador.transports.redis.scripts import script
from matador.transports.redis.server import ServerTransport, consumer_name, restore_each
from matador.transports.redis.settling import Settling, target_of
from matador.transports.redis.subscription import RedisSubscription
from matador.transports.redis.url import parse_url


class RedisTransport(ServerTransport):
    """Messages in Redis streams, each queue with a consumer group. See ``Transport``.

    Needs Redis 6.2 or newer, or Valkey. What is confirmed is as safe as the server makes it:
    ``appendonly yes`` with ``appendfsync always`` loses nothing (``matador doctor`` looks).

    Args:
        url: ``redis://user:password@host:6379/0``; ``rediss://`` for TLS;
            ``redis+sentinel://host1,host2/primary/0``; ``redis+unix:///path/to/redis.sock``.
        lease: seconds for which a delivery belongs to its receiver unless renewed.
        timeout: seconds for connecting, and until an answer is given up.
        heartbeat: seconds; a connection that died unnoticed is found within two of them.
        prefix: what the names of all keys begin with.
        name: for logs and metrics.

    Example:
        >>> transport = RedisTransport("redis://localhost", lease=60)
        >>> transport.capabilities.lease
        60.0
    """

    def __init__(
        self,
        url: str,
        *,
        lease: Seconds | None = None,
        timeout: Seconds | None = None,
        heartbeat: Seconds | None = None,
        prefix: str | None = None,
        name: str = "redis",
    ) -> None:
        super().__init__(
            url, lease=lease, timeout=timeout, heartbeat=heartbeat, prefix=prefix, name=name
        )
        self._capabilities = Capabilities(
            delivery_modes=frozenset({"at-least-once", "at-most-once"}),
            delays=True,
            dead_letters="native",
            attempt_tracking=True,
            concurrency="worker",
            ordering="queue",
            priorities=True,
            browse=True,
            purge=True,
            depth=True,
            replay=True,
            once=True,
            durable=True,
            lease=self._lease,
        )
        self._notes = Notes(self._link, self._prefix, self._key)
        self._declared: dict[str, list[Argument]] = {}
        self._consuming: dict[str, Consuming] = {}
        self._taker = consumer_name(self._lease)
        self._taken: dict[str, dict[str, Lane]] = {}

    @classmethod
    def from_url(cls, url: str, *, name: str = "redis") -> Transport:
        """The transport for an address, in the mode it asks for.

        Options: ``?mode=list&lease=60&timeout=5&heartbeat=5&prefix=shop&db=1``; with TLS also
        ``tls_ca``, ``tls_cert``, ``tls_key`` (files) and ``tls_verify=false``; with Sentinels
        ``sentinel_username`` and ``sentinel_password``.

        Raises:
            ConfigurationError: the address is malformed, or has an option nobody knows.
        """
        match parse_url(url).mode:
            case "streams":
                return cls(url, name=name)
            case "list":
                return RedisListTransport(url, name=name)
            case "pubsub":
                return RedisPubSubTransport(url, name=name)

    @property
    def capabilities(self) -> Capabilities:
        """See ``Transport``."""
        return self._capabilities

    async def _before_disconnect(self) -> None:
        for consuming in list(self._consuming.values()):
            for subscription in list(consuming.subscriptions):
                await subscription.close()
        if self.state.status == "connected":
            for queue in self._taken:
                with contextlib.suppress(TransportError):
                    await self._link.run(script("leave"), [self._key(queue)], [self._taker])
        self._taken.clear()

    # -- queues ------------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``. Everything can be honoured here, and ``exact`` queues are made."""
        channel = await self._link.channel()
        made: dict[str, list[Argument]] = {
            topology.full_name(queue.name): [
                int(queue.priorities),
                _milliseconds(queue.retention),
                "",
                "",
            ]
            for queue in topology.queues
        }
        for _, kind, name in topology.dead_letter_names():
            letters = topology.dead_letters[kind]
            length = "" if letters.max_length is None else letters.max_length
            made[name] = [0, "", length, _milliseconds(letters.ttl)]
        self._declared.update(made)
        await asyncio.gather(*(self._declare(channel, queue) for queue in made))
        return ignored_arguments(topology)

    async def _restore(self, channel: Channel) -> None:
        await restore_each(self._declared, lambda queue: self._declare(channel, queue))

    async def _declare(self, channel: Channel, queue: str) -> None:
        arguments = self._declared[queue]
        await self._link.run_on(channel, script("declare"), [self._key(queue)], arguments)

    async def _declare_again(self, queue: str) -> None:
        """Make a queue that the server has lost.

        Raises:
            QueueNotFoundError: it is not one that we have declared.
        """
        if queue not in self._declared:
            raise sending.no_such_queue(queue, self._link.where)
        await self._declare(await self._link.channel(), queue)

    # -- sending and receiving ---------------------------------------------------------------------

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``Transport``. One call a queue and batch, and all of them travel together."""
        outcomes = await sending.store(self._link, self._key, messages)

        async def again(places: Sequence[int]) -> Sequence[MatadorError | None]:
            return await sending.store(self._link, self._key, [messages[p] for p in places])

        await self._make_lost(outcomes, lambda place: messages[place].queue, again)
        return outcomes

    async def _make_lost(
        self,
        outcomes: list[MatadorError | None],
        queue_of: Callable[[int], str],
        again: Callable[[Sequence[int]], Awaitable[Sequence[MatadorError | None]]],
    ) -> None:
        """Make queues of ours that the server has lost, and do what failed for want of them."""
        if not any(outcomes):
            return
        places = [
            place
            for place, outcome in enumerate(outcomes)
            if isinstance(outcome, QueueNotFoundError) and queue_of(place) in self._declared
        ]
        if places:
            for queue in {queue_of(place) for place in places}:
                with contextlib.suppress(TransportError):  # then it fails for this reason again
                    await self._declare_again(queue)
            for place, outcome in zip(places, await again(places), strict=True):
                outcomes[place] = outcome

    async def subscribe(self, queue: str, *, prefetch: int) -> RedisSubscription:
        """See ``Transport``. ``prefetch`` does not matter: nothing is held in advance."""
        base = self._key(queue)
        try:
            levels, _ = await looking.find(self._link, queue, base)
        except QueueNotFoundError:
            await self._declare_again(queue)
            levels, _ = await looking.find(self._link, queue, base)
        subscription = RedisSubscription(
            self._link,
            queue,
            base,
            levels=levels,
            consumer=consumer_name(self._lease),
            lease=self._lease,
            block=self._block,
            give_back=self._give_back,
            declare=self._declare_again,
            closed=self._closed,
        )
        if queue not in self._consuming:
            self._consuming[queue] = Consuming(
                self._link, base, lease=self._lease, longest=self._block
            )
        self._consuming[queue].subscriptions.add(subscription)
        return subscription

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``Transport``. Each is atomic, but for a retry in a queue of another name: there
        the successor is stored first."""

        async def settle(some: Sequence[Settlement]) -> list[MatadorError | None]:
            return await Settling(self._link, await self._link.channel(), self._key, some).settle()

        async def again(places: Sequence[int]) -> Sequence[MatadorError | None]:
            return await settle([settlements[place] for place in places])

        outcomes = await settle(settlements)
        await self._make_lost(outcomes, lambda place: target_of(settlements[place]), again)
        for settlement in settlements:
            if type(settlement) is Release:
                self._is_claimable(settlement.receipt.queue)
        return outcomes

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        with contextlib.suppress(TransportError):  # then its lease runs out
            await self.settle([Release(delivery.receipt) for delivery in deliveries])

    def _is_claimable(self, queue: str) -> None:
        consuming = self._consuming.get(queue)
        if consuming is not None:
            consuming.wake()

    async def _closed(self, subscription: RedisSubscription) -> None:
        consuming = self._consuming.get(subscription.queue)
        if consuming is not None:
            consuming.subscriptions.discard(subscription)
            if not consuming.subscriptions:
                del self._consuming[subscription.queue]
                await consuming.close()

    # -- optional abilities ------------------------------------------------------------------------

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        """See ``Leasing``."""
        return await settling.renew(self._link, await self._link.channel(), receipts)

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """See ``Browsing``. Delayed messages come last, in order of their time."""
        base = self._key(queue)
        async for stored in looking.browse(self._link, queue, base, after, limit):
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery]:
        """See ``Browsing``. What is taken before its turn and given back has a new position."""
        base = self._key(queue)
        rows = await self._link.run(
            script("take"),
            [base],
            [self._taker, round(self._lease * 1000), *looking.targets(positions)],
        )
        if rows is None:
            raise sending.no_such_queue(queue, self._link.where)
        lanes = self._taken.setdefault(queue, {})
        found: list[Delivery] = []
        for row in rows:
            name = row[0].decode()
            if name not in lanes:
                lanes[name] = Lane(queue, base, name, self._taker)
            found.append(claimed_of(lanes[name], row))
        return found

    async def purge(self, queue: str) -> int:
        """See ``Purging``."""
        return await looking.purge(self._link, queue, self._key(queue))

    async def depth(self, queue: str) -> QueueDepth:
        """See ``Measuring``. What is stale counts as in flight until somebody claims it."""
        return await looking.depth(self._link, queue, self._key(queue))

    async def read(
        self, queue: str, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[StoredMessage]:
        """See ``Replaying``. A delayed message is read once it is due."""
        return await looking.read(self._link, queue, self._key(queue), after, limit)

    async def send_once(
        self, messages: Sequence[Message], once: Once
    ) -> Sequence[MatadorError | None]:
        """See ``Deduplicating``. Ids are noted by the script that stores, queue by queue."""
        return await self._notes.store(messages, once)

    async def seal(self, once: Once) -> None:
        """See ``Deduplicating``."""
        await self._notes.seal(once)


def _milliseconds(given: float | None) -> Argument:
    return "" if given is None else round(given * 1000)
