"""``RedisTransport``: durable messages in Redis streams, for any number of processes."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Unpack

from matador.errors import MatadorError
from matador.model.message import (
    Delivery,
    Message,
    Once,
    Receipt,
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
from matador.transports.redis.blocking import QueueSource
from matador.transports.redis.lists import RedisListTransport
from matador.transports.redis.options import RedisAddress, RedisOptions
from matador.transports.redis.pubsub import RedisPubSubTransport
from matador.transports.redis.send import OnceSender, stream_form
from matador.transports.redis.settle import StreamSettleBatch, renew
from matador.transports.redis.subscription import RedisSubscription
from matador.transports.redis.topology import stream_settings
from matador.transports.redis.wire import claimed_of


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

    _kind = "stream"
    _form_of = staticmethod(stream_form)
    _batch = StreamSettleBatch

    def __init__(self, url: str, **options: Unpack[RedisOptions]) -> None:
        super().__init__(url, **options)
        self._capabilities = replace(
            STORED, priorities=True, browse=True, replay=True, once=True, lease=self._lease
        )
        self._once = OnceSender(self._client, self._prefix, self._key)

    @classmethod
    def from_url(cls, url: str, **options: Unpack[RedisOptions]) -> Transport:
        """The transport for an address, in its ``mode``: ``streams``, ``list`` or ``pubsub``.

        Raises:
            ConfigurationError: the address is malformed, or has an unknown option.
        """
        mode = read_address(RedisAddress, url, options).mode
        modes = {"streams": cls, "list": RedisListTransport, "pubsub": RedisPubSubTransport}
        return modes[mode](url, **options)

    # -- queues ------------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``. Honours everything, and creates ``exact`` queues, too."""
        await self._declare_all(stream_settings(topology))
        return [*ignored_arguments(topology), *ignored_exchanges(topology)]

    def _subscription(self, source: QueueSource, levels: int) -> RedisSubscription:
        return RedisSubscription(replace(source, consumer=consumer_name(self._lease)), levels)

    # -- optional abilities ------------------------------------------------------------------------

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        """See ``Leasing``."""
        return await renew(self._client, await self._client.connection(), receipts)

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """See ``Browsing``. Delayed messages come last, in order of their time."""
        seen = browsing.browse(self._client, queue, self._key(queue), after)
        for _ in itertools.count() if limit is None else range(limit):
            if (stored := await anext(seen, None)) is None:
                return
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        """See ``Browsing``. What is taken out of turn and released has a new position."""
        lease = round(self._lease * 1000)
        rows = await self._run(
            "take", queue, self._consumer, lease, *browsing.take_arguments(positions)
        )
        if rows is None:
            raise queue_not_found(queue, self._client.where)
        found: list[Delivery | None] = [None] * len(positions)
        for *row, place in rows:
            found[place] = claimed_of(self._lane(queue, row[0].decode()), row)
        return found

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
