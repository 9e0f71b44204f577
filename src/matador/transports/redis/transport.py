"""``RedisTransport``: durable messages in Redis streams, for any number of processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Unpack

from matador.errors import (
    ConnectionFailedError,
    MatadorError,
    NotConnectedError,
    SendUnconfirmedError,
    TransportError,
)
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
from matador.transports.kit.notes import ignored_arguments
from matador.transports.kit.options import read_address
from matador.transports.kit.replies import ReplySubscription
from matador.transports.kit.wakeup import Wakeup
from matador.transports.redis import browse as browsing
from matador.transports.redis.base import STORED, StoredTransport, consumer_name
from matador.transports.redis.blocking import BlockingSubscription, QueueSource
from matador.transports.redis.client import script
from matador.transports.redis.lists import RedisListTransport
from matador.transports.redis.options import RedisAddress, RedisOptions
from matador.transports.redis.pubsub import RedisPubSubTransport
from matador.transports.redis.replies import RedisReplies, is_reply
from matador.transports.redis.routing import RedisRoutes
from matador.transports.redis.send import OnceSender, stream_form
from matador.transports.redis.settle import StreamSettleBatch, renew
from matador.transports.redis.subscription import RedisSubscription
from matador.transports.redis.topology import ignored_with_priorities, stream_settings
from matador.transports.redis.wire import claimed_of
from matador.transports.redis_client.connection import Argument, PipelinedConnection

log = logging.getLogger("matador.transports.redis")

_PLAIN: list[Argument] = [0, "", "", ""]
"""The settings of a temporary queue that another process has declared."""
_KEEP_EVERY = 20.0  # seconds; a third of the time for which replies are kept


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
        prefix: the prefix of all keys.
        name: for logs and metrics.
        db: the number of the database.
        tls, tls_ca, tls_cert, tls_key, tls_verify: encryption, files of certificates and the key,
            and whether the server's certificate is checked.
        sentinel_username, sentinel_password: the credentials of the Sentinels; those of the server
            are separate.

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
        self._url, self._given = url, options
        self._capabilities = replace(
            STORED,
            priorities=True,
            browse=True,
            replay=True,
            once=True,
            routing=True,
            lease=self._lease,
        )
        self._once = OnceSender(self._client, self._prefix, self._key)
        self._routes = RedisRoutes(
            self._client,
            self._prefix,
            self._key,
            is_used=lambda queue: queue in self._upkeep,
            restore=self._restore,
            create_again=self._create_again,
        )
        self._sooner = Wakeup()
        self._replies = RedisReplies(self._client, self._key, self._block)
        self._temporary: dict[str, list[Argument]] = {}  # settings, as in ``_declared``
        self._keeping: asyncio.Task[None] | None = None

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
        """Supports the whole topology, and creates ``exact`` queues, too."""
        notes = await self._routes.apply(topology)
        settings = stream_settings(topology)
        for queue in settings.keys() & self._routes.temporary.keys():
            self._temporary[queue] = settings.pop(queue)
            self._declared.pop(queue, None)
            await self._declare(await self._client.connection(), queue)
        await self._declare_all(settings)
        if topology.exchanges or self._temporary:
            self._keep_up()
        return [*ignored_arguments(topology), *ignored_with_priorities(topology), *notes]

    async def _declare(self, connection: PipelinedConnection, queue: str) -> None:
        if queue in self._routes.temporary:
            await self._routes.restore(connection, queue)
            settings = self._temporary.get(queue, _PLAIN)
            await self._client.run_on(connection, script("declare"), [self._key(queue)], settings)
        else:
            await super()._declare(connection, queue)

    async def _declare_again(self, queue: str) -> None:
        if queue in self._routes.temporary and queue in self._upkeep:
            await self._declare(await self._client.connection(), queue)
        else:
            await super()._declare_again(queue)

    async def _restore(self, connection: PipelinedConnection) -> None:
        try:
            await self._routes.restore(connection)
            await self._replies.keep(connection)
            await self._declare_used(connection)
        except (NotConnectedError, ConnectionFailedError, SendUnconfirmedError):
            raise
        except TransportError as error:  # a full server; the queues may still work
            log.error("cannot declare exchanges again, continuing without: %s", error)
        await super()._restore(connection)

    async def _create_again(self, queues: Iterable[str]) -> None:
        for queue in queues:
            if queue in self._declared:
                await self._declare_again(queue)

    async def _declare_used(self, connection: PipelinedConnection) -> None:
        """Keep the temporary queues that are consumed here, or create them again."""
        for queue in [one for one in self._routes.temporary if one in self._upkeep]:
            await self._declare(connection, queue)

    def _keep_up(self) -> None:
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="matador-redis-routes")

    async def _keep(self) -> None:
        """Extend the lifetime of temporary queues in use, and delete the unused ones."""
        while True:
            used = [ms for one, ms in self._routes.temporary.items() if one in self._upkeep]
            await self._sooner.wait(min([_KEEP_EVERY, *(ms / 3000 for ms in used)]))
            try:
                connection = await self._client.connection()
                await self._replies.keep(connection)
                await self._declare_used(connection)
                await self._routes.sweep()
            except TransportError as error:
                log.debug("%s: temporary queues: %s", self._client.where, error)
            except Exception:
                log.exception("%s: the upkeep of temporary queues failed", self._client.where)

    async def _close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await self._replies.close()
        await super()._close()

    async def subscribe(self, queue: str, *, prefetch: int) -> BlockingSubscription:
        """See ``Transport``. ``prefetch`` is ignored: nothing is held in advance."""
        subscription = await super().subscribe(queue, prefetch=prefetch)
        await self._routes.learn(queue)
        if queue in self._routes.temporary:
            await self._declare(await self._client.connection(), queue)
            self._sooner.wake()  # the next upkeep may be due sooner now
            self._keep_up()
        return subscription

    async def _closed(self, subscription: BlockingSubscription) -> None:
        await super()._closed(subscription)
        queue = subscription.queue
        if queue in self._routes.temporary and queue not in self._upkeep:
            with contextlib.suppress(TransportError):  # then it counts from the last upkeep
                await self._routes.touch(queue)

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        replies = [message for message in messages if is_reply(message)]
        if not replies:
            return await super().send(messages)
        others = [message for message in messages if not is_reply(message)]
        answered = iter(await self._replies.send(replies))
        sent = iter(await super().send(others) if others else ())
        return [next(answered if is_reply(message) else sent) for message in messages]

    def _subscription(self, source: QueueSource, levels: int) -> RedisSubscription:
        return RedisSubscription(replace(source, consumer=consumer_name(self._lease)), levels)

    # -- optional abilities ------------------------------------------------------------------------

    async def publish(
        self, exchange: str, messages: Sequence[Message]
    ) -> Sequence[int | MatadorError]:
        """All queues must be on one server, not on several of a cluster."""
        return await self._routes.publish(exchange, messages)

    async def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        await self._routes.unbind(exchange, queue, pattern)

    async def delete_queue(self, queue: str) -> None:
        self._declared.pop(queue, None)
        self._temporary.pop(queue, None)
        await self._routes.delete(queue)

    async def reply_address(self) -> str:
        address = await self._replies.open()
        self._keep_up()
        return address

    async def replies(self) -> ReplySubscription:
        subscription = await self._replies.subscribe()
        self._keep_up()
        return subscription

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        return await renew(self._client, await self._client.connection(), receipts)

    def twin(self) -> RedisTransport:
        """A receipt names the consumer that holds the entry, so any connection can renew it."""
        return RedisTransport(self._url, **self._given)

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Delayed messages come last, in order of their time."""
        seen = browsing.browse(self._client, queue, self._key(queue), after)
        for _ in itertools.count() if limit is None else range(limit):
            if (stored := await anext(seen, None)) is None:
                return
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        """A message that is taken and released has a new position."""
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
        """A delayed message is read once it is due."""
        return await browsing.read(self._client, queue, self._key(queue), after, limit)

    async def send_once(
        self, messages: Sequence[Message], once: Once
    ) -> Sequence[MatadorError | None]:
        """The script that stores the messages records their ids, per queue."""
        return await self._once.store(messages, once)

    async def seal(self, once: Once) -> None:
        await self._once.seal(once)
