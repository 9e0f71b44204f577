"""The base classes of the Redis transports: of all modes, and of those that store messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeVar, Unpack

from matador.errors import (
    ConnectionFailedError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    SendUnconfirmedError,
    TransportError,
)
from matador.model.capabilities import Capabilities
from matador.model.message import Delivery, Finding, Message, QueueDepth, Release, Settlement
from matador.transports.kit.errors import queue_not_found, refuse_letters
from matador.transports.kit.options import read_address
from matador.transports.kit.properties import ALL_PROPERTIES
from matador.transports.kit.transport import BaseTransport
from matador.transports.redis.blocking import BlockingSubscription, QueueSource
from matador.transports.redis.client import Kind, RedisClient, script
from matador.transports.redis.options import RedisAddress, RedisOptions
from matador.transports.redis.send import FormOf, Outcomes, store
from matador.transports.redis.settle import SettleBatch, target_of
from matador.transports.redis.topology import key_of
from matador.transports.redis.upkeep import QueueUpkeep
from matador.transports.redis.wire import Lane
from matador.transports.redis_client.connection import Argument, PipelinedConnection
from matador.transports.redis_client.doctor import examine

log = logging.getLogger("matador.transports.redis")

Item = TypeVar("Item")

_PRIMARY = "name the primary in the URL, or the Sentinels: redis+sentinel://…"


STORED = Capabilities(
    delivery_modes=frozenset({"at-least-once", "at-most-once"}),
    delays=True,
    dead_letters="native",
    attempt_tracking=True,
    concurrency="worker",
    ordering="queue",
    priorities=False,
    purge=True,
    depth=True,
    pause=True,
    properties=ALL_PROPERTIES,
    durable=True,
)
"""The capabilities that streams and lists share."""


class RedisServerTransport(BaseTransport):
    """A transport on a Redis server, in any mode. See ``RedisTransport`` for the options."""

    _capabilities: Capabilities

    _stores = True
    """Whether messages are stored on the server."""

    def __init__(self, url: str, **options: Unpack[RedisOptions]) -> None:
        address = read_address(RedisAddress, url, options)
        super().__init__(address.name)
        self._lease = address.lease
        self._prefix = address.prefix
        # A blocking read must end in time to notice a dead connection.
        self._block = address.heartbeat / 2
        name = f"matador-{address.name}"
        self._client = RedisClient(
            address, name=name, restore=self._restore, on_state=self._change_state
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.where!r}, {self.state.status})"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def _open(self) -> None:
        await self._client.start()

    async def _close(self) -> None:
        await self._client.stop()

    async def examine(self) -> Sequence[Finding]:
        """See ``Examining``: version, eviction policy, persistence."""
        return await examine(self._client.call, primary=_PRIMARY, stores=self._stores)

    async def _restore(self, connection: PipelinedConnection) -> None:
        """Recreate, over a new connection, what the server may have lost."""

    def _key(self, queue: str) -> str:
        return key_of(self._prefix, queue)


class StoredTransport(RedisServerTransport, ABC):
    """A transport that stores messages: in streams or in lists."""

    _kind: ClassVar[Kind]
    _form_of: ClassVar[FormOf]
    """Formats messages for the script that stores them."""
    _batch: ClassVar[type[SettleBatch]]

    def __init__(self, url: str, **options: Unpack[RedisOptions]) -> None:
        super().__init__(url, **options)
        self._declared: dict[str, list[Argument]] = {}
        self._consumer = consumer_name(self._lease)
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._upkeep: dict[str, QueueUpkeep] = {}

    @abstractmethod
    def _subscription(self, source: QueueSource, levels: int) -> BlockingSubscription:
        """A subscription to a queue with ``levels`` lanes for priorities."""

    def _lane(self, queue: str, name: str) -> Lane:
        """A lane of a queue, as this process sees it."""
        if (queue, name) not in self._lanes:
            self._lanes[queue, name] = Lane(queue, self._key(queue), name, self._consumer)
        return self._lanes[queue, name]

    async def _close(self) -> None:
        """Unsettled deliveries become available to other consumers once their leases expire."""
        for upkeep in list(self._upkeep.values()):
            for subscription in list(upkeep.subscriptions):
                await subscription.close()
            await upkeep.close()
        self._upkeep.clear()
        if self.state.status == "connected":
            for queue in {queue for queue, _ in self._lanes}:
                with contextlib.suppress(TransportError):
                    while not await self._run("prune", queue, self._consumer):
                        pass  # many of a list go back in several steps
        self._lanes.clear()
        await super()._close()

    async def _run(self, name: str, queue: str, *arguments: Argument) -> Any:
        return await self._client.run(script(name, self._kind), [self._key(queue)], arguments)

    # -- queues ------------------------------------------------------------------------------------

    async def _declare_all(self, queues: dict[str, list[Argument]]) -> None:
        connection = await self._client.connection()
        self._declared.update(queues)
        await asyncio.gather(*(self._declare(connection, queue) for queue in queues))

    async def _declare_again(self, queue: str) -> None:
        """Create a queue that the server has lost.

        Raises:
            QueueNotFoundError: this transport has not declared it.
        """
        if queue not in self._declared:
            raise queue_not_found(queue, self._client.where)
        await self._declare(await self._client.connection(), queue)

    async def _declare(self, connection: PipelinedConnection, queue: str) -> None:
        await self._client.run_on(
            connection, script("declare", self._kind), [self._key(queue)], self._declared[queue]
        )

    async def _restore(self, connection: PipelinedConnection) -> None:
        async def restore(queue: str) -> None:
            try:
                await self._declare(connection, queue)
            except (NotConnectedError, ConnectionFailedError, SendUnconfirmedError):
                raise
            except TransportError as error:  # a full server; the other queues still work
                log.error("cannot declare %s again, continuing without it: %s", queue, error)

        await asyncio.gather(*map(restore, self._declared))

    # -- messages ----------------------------------------------------------------------------------

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """One call per queue and batch; all calls share one round trip."""

        async def send(some: Sequence[Message]) -> Outcomes:
            return await store(self._client, self._key, some, type(self)._form_of)

        return await self._create_lost_queues(messages, send, lambda message: message.queue)

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """Each is atomic."""

        async def settle(some: Sequence[Settlement]) -> Outcomes:
            connection = await self._client.connection()
            return await self._batch(self._client, connection, self._key, some).settle()

        outcomes = await self._create_lost_queues(settlements, settle, target_of)
        for settlement in settlements:
            if type(settlement) is Release and settlement.receipt.queue in self._upkeep:
                self._upkeep[settlement.receipt.queue].wake()
        return outcomes

    async def _create_lost_queues(
        self,
        items: Sequence[Item],
        act: Callable[[Sequence[Item]], Awaitable[Outcomes]],
        queue_of: Callable[[Item], str],
    ) -> Outcomes:
        """Run an operation. If the server has lost a declared queue, create it and repeat what
        failed."""
        outcomes = await act(items)
        lost = {
            place: queue_of(items[place])
            for place, outcome in enumerate(outcomes if any(outcomes) else ())
            if isinstance(outcome, QueueNotFoundError) and queue_of(items[place]) in self._declared
        }
        if lost:
            for queue in set(lost.values()):
                with contextlib.suppress(TransportError):  # then it fails for this reason again
                    await self._declare_again(queue)
            for place, outcome in zip(lost, await act([items[p] for p in lost]), strict=True):
                outcomes[place] = outcome
        return outcomes

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        with contextlib.suppress(TransportError):  # then its lease runs out
            await self.settle([Release(delivery.receipt) for delivery in deliveries])

    async def subscribe(self, queue: str, *, prefetch: int) -> BlockingSubscription:
        """See ``Transport``. ``prefetch`` is ignored: nothing is held in advance."""
        source = QueueSource(
            client=self._client,
            kind=self._kind,
            queue=queue,
            base=self._key(queue),
            consumer=self._consumer,
            lease=round(self._lease * 1000),
            block=self._block,
            give_back=self._give_back,
            declare=self._declare_again,
            closed=self._closed,
        )
        levels = await self._run("levels", queue)
        if levels is None:
            await self._declare_again(queue)
            levels = await self._run("levels", queue)
        subscription = self._subscription(source, levels)
        if queue not in self._upkeep:
            self._upkeep[queue] = QueueUpkeep(source)
        self._upkeep[queue].subscriptions.add(subscription)
        return subscription

    async def _closed(self, subscription: BlockingSubscription) -> None:
        queue = subscription.queue
        upkeep = self._upkeep.get(queue)
        if upkeep is None:
            return
        upkeep.subscriptions.discard(subscription)
        # Deliveries in flight from a list need the upkeep, which shows that this process is alive.
        held = any(lane.held for (name, _), lane in self._lanes.items() if name == queue)
        if not upkeep.subscriptions and not held:
            del self._upkeep[queue]
            await upkeep.close()

    async def depth(self, queue: str) -> QueueDepth:
        """Stale messages count as in flight until they are delivered again."""
        ready, delayed, in_flight = await self._find("depth", queue)
        return QueueDepth(ready=ready, delayed=delayed, in_flight=in_flight)

    async def pause_queue(self, queue: str) -> None:
        """The messages are moved to a key that no read uses, so that receiving needs no extra
        check."""
        await self._find("paused", queue)
        refuse_letters(queue)
        await self._find("pause", queue)

    async def resume_queue(self, queue: str) -> None:
        """The server notifies other processes."""
        await self._find("resume", queue)

    async def is_paused(self, queue: str) -> bool:
        return await self._find("paused", queue) == 1

    async def _find(self, name: str, queue: str) -> Any:
        """The result of a script.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        found = await self._run(name, queue)
        if found is None:
            raise queue_not_found(queue, self._client.where)
        return found

    async def purge(self, queue: str) -> int:
        total = 0
        while deleted := await self._run("purge", queue):
            total += deleted
        if deleted is None:
            raise queue_not_found(queue, self._client.where)
        return total


def consumer_name(lease: float) -> str:
    """A unique name that shows in ``XINFO CONSUMERS`` which process it is.

    It ends with the lease in milliseconds, so that other consumers know when they may claim its
    deliveries.
    """
    process = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return f"{process}~{round(lease * 1000)}"
