"""``RedisTransport``: durable messages in Redis streams, for any number of processes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Unpack

from matador.errors import MatadorError, QueueNotFoundError, TransportError
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
from matador.model.topology import Topology
from matador.transports.base import Transport
from matador.transports.kit.errors import queue_not_found
from matador.transports.kit.notes import ignored_arguments, ignored_exchanges
from matador.transports.kit.options import read_address
from matador.transports.redis import browse as browsing
from matador.transports.redis.base import STORED, StoredTransport, consumer_name
from matador.transports.redis.client import script
from matador.transports.redis.connection import PipelinedConnection
from matador.transports.redis.lists import RedisListTransport
from matador.transports.redis.options import RedisAddress, RedisOptions
from matador.transports.redis.pubsub import RedisPubSubTransport
from matador.transports.redis.send import OnceSender, stream_form
from matador.transports.redis.settle import SettleBatch, StreamSettleBatch, renew
from matador.transports.redis.subscription import NEVER, RedisSubscription
from matador.transports.redis.topology import stream_settings
from matador.transports.redis.upkeep import StreamUpkeep
from matador.transports.redis.wire import Lane, claimed_of


class RedisTransport(StoredTransport):
    """Messages in Redis streams, each queue with a consumer group. See ``Transport``.

    Needs Redis 6.2 or newer, or Valkey. Confirmed messages are as safe as the server makes them:
    ``appendonly yes`` with ``appendfsync always`` loses none (``matador doctor`` checks it).

    Args:
        url: ``redis://user:password@host:6379/0``; ``rediss://`` for TLS;
            ``redis+sentinel://host1,host2/primary/0``; ``redis+unix:///path/to/redis.sock``.
        lease: seconds for which a delivery belongs to its receiver unless renewed.
        timeout: seconds for connecting, and for a reply.
        heartbeat: seconds; a dead connection is noticed within two of them.
        prefix: what the names of all keys begin with.
        name: for logs and metrics.
        db: the number of the database.
        tls, tls_ca, tls_cert, tls_key, tls_verify: encryption, files of certificates and the key,
            and whether the server's certificate is checked.
        sentinel_username, sentinel_password: for the Sentinels; the server has its own.

    Every option can be given in the address (``?lease=60``) or as a keyword, which wins.

    Example:
        >>> transport = RedisTransport("redis://localhost", lease=60)
        >>> transport.capabilities.lease
        60.0
    """

    _form_of = staticmethod(stream_form)

    def __init__(self, url: str, **options: Unpack[RedisOptions]) -> None:
        super().__init__(url, **options)
        self._capabilities = replace(
            STORED, priorities=True, browse=True, replay=True, once=True, lease=self._lease
        )
        self._once = OnceSender(self._client, self._prefix, self._key)
        self._upkeep: dict[str, StreamUpkeep] = {}
        self._taker = consumer_name(self._lease)
        self._taken: dict[str, dict[str, Lane]] = {}

    @classmethod
    def from_url(cls, url: str, **options: Unpack[RedisOptions]) -> Transport:
        """The transport for an address, in its ``mode``: ``streams``, ``list`` or ``pubsub``.

        Raises:
            ConfigurationError: the address is malformed, or has an unknown option.
        """
        match read_address(RedisAddress, url, options).mode:
            case "streams":
                return cls(url, **options)
            case "list":
                return RedisListTransport(url, **options)
            case "pubsub":
                return RedisPubSubTransport(url, **options)

    async def _before_disconnect(self) -> None:
        for upkeep in list(self._upkeep.values()):
            for subscription in list(upkeep.subscriptions):
                await subscription.close()
        if self.state.status == "connected":
            for queue in self._taken:
                with contextlib.suppress(TransportError):
                    await self._client.run(
                        script("prune"), [self._key(queue)], [self._taker, NEVER]
                    )
        self._taken.clear()

    # -- queues ------------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``. Honours everything, and creates ``exact`` queues, too."""
        await self._declare_all(stream_settings(topology))
        return [*ignored_arguments(topology), *ignored_exchanges(topology)]

    async def _declare(self, connection: PipelinedConnection, queue: str) -> None:
        await self._client.run_on(
            connection, script("declare"), [self._key(queue)], self._declared[queue]
        )

    # -- receiving ---------------------------------------------------------------------------------

    async def subscribe(self, queue: str, *, prefetch: int) -> RedisSubscription:
        """See ``Transport``. ``prefetch`` is ignored: nothing is held in advance."""
        base = self._key(queue)
        try:
            levels, _ = await browsing.settings(self._client, queue, base)
        except QueueNotFoundError:
            await self._declare_again(queue)
            levels, _ = await browsing.settings(self._client, queue, base)
        subscription = RedisSubscription(
            self._client,
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
        if queue not in self._upkeep:
            self._upkeep[queue] = StreamUpkeep(
                self._client, base, lease=self._lease, longest=self._block
            )
        self._upkeep[queue].subscriptions.add(subscription)
        return subscription

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``StoredTransport``."""
        outcomes = await super().settle(settlements)
        for settlement in settlements:
            if type(settlement) is Release and settlement.receipt.queue in self._upkeep:
                self._upkeep[settlement.receipt.queue].wake()
        return outcomes

    def _batch(
        self, connection: PipelinedConnection, settlements: Sequence[Settlement]
    ) -> SettleBatch:
        return StreamSettleBatch(self._client, connection, self._key, self.send, settlements)

    async def _closed(self, subscription: RedisSubscription) -> None:
        upkeep = self._upkeep.get(subscription.queue)
        if upkeep is not None:
            upkeep.subscriptions.discard(subscription)
            if not upkeep.subscriptions:
                del self._upkeep[subscription.queue]
                await upkeep.close()

    # -- optional abilities ------------------------------------------------------------------------

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        """See ``Leasing``."""
        return await renew(self._client, await self._client.connection(), receipts)

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """See ``Browsing``. Delayed messages come last, in order of their time."""
        base = self._key(queue)
        async for stored in browsing.browse(self._client, queue, base, after, limit):
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        """See ``Browsing``. What is taken out of turn and released has a new position."""
        base = self._key(queue)
        rows = await self._client.run(
            script("take"),
            [base],
            [self._taker, round(self._lease * 1000), *browsing.take_arguments(positions)],
        )
        if rows is None:
            raise queue_not_found(queue, self._client.where)
        lanes = self._taken.setdefault(queue, {})
        found: list[Delivery | None] = [None] * len(positions)
        for *row, place in rows:
            name = row[0].decode()
            if name not in lanes:
                lanes[name] = Lane(queue, base, name, self._taker)
            found[place] = claimed_of(lanes[name], row)
        return found

    async def purge(self, queue: str) -> int:
        """See ``Purging``."""
        return await self._purge(script("purge"), queue)

    async def depth(self, queue: str) -> QueueDepth:
        """See ``Measuring``. Stale messages count as in flight until they are claimed."""
        return await self._measure(script("depth"), queue)

    async def read(
        self, queue: str, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[StoredMessage]:
        """See ``Replaying``. A delayed message is read once it is due."""
        return await browsing.read(self._client, queue, self._key(queue), after, limit)

    async def send_once(
        self, messages: Sequence[Message], once: Once
    ) -> Sequence[MatadorError | None]:
        """See ``Deduplicating``. Ids are noted by the script that stores, queue by queue."""
        return await self._once.store(messages, once)

    async def seal(self, once: Once) -> None:
        """See ``Deduplicating``."""
        await self._once.seal(once)
