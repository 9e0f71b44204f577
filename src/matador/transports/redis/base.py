"""What the transports of all modes share, and what those share that store messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, TypeVar, Unpack

from matador.errors import (
    ConnectionFailedError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    SendUnconfirmedError,
    TransportError,
)
from matador.model.capabilities import Capabilities
from matador.model.message import (
    Delivery,
    Finding,
    Message,
    QueueDepth,
    Release,
    Settlement,
)
from matador.transports.kit.errors import queue_not_found
from matador.transports.kit.options import read_address
from matador.transports.kit.properties import ALL_PROPERTIES
from matador.transports.kit.transport import BaseTransport
from matador.transports.redis.client import Connector, RedisClient, Script
from matador.transports.redis.connection import Argument, PipelinedConnection
from matador.transports.redis.options import RedisAddress, RedisOptions
from matador.transports.redis.send import FormOf, Outcomes, store
from matador.transports.redis.settle import SettleBatch, target_of
from matador.transports.redis.topology import key_of
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
    properties=ALL_PROPERTIES,
    durable=True,
)
"""What streams and lists can do alike."""


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
        # How long a read blocks on the server: a dead connection must not go unnoticed meanwhile.
        self._block = address.heartbeat / 2
        self._connector = Connector(address, name=f"matador-{address.name}")
        self._client = RedisClient(
            self._connector, restore=self._restore, on_state=self._change_state
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.where!r}, {self.state.status})"

    @property
    def capabilities(self) -> Capabilities:
        """See ``Transport``."""
        return self._capabilities

    async def _open(self) -> None:
        await self._client.start()

    async def _close(self) -> None:
        """Others get what is still held when its lease has passed."""
        await self._before_disconnect()
        await self._client.stop()

    async def examine(self) -> Sequence[Finding]:
        """See ``Examining``: version, eviction policy, persistence."""
        return await examine(self._client.call, primary=_PRIMARY, stores=self._stores)

    async def _before_disconnect(self) -> None:
        """Close what needs the connection."""

    async def _restore(self, connection: PipelinedConnection) -> None:
        """Recreate, on a new connection, what the server may have lost."""

    def _key(self, queue: str) -> str:
        return key_of(self._prefix, queue)


class StoredTransport(RedisServerTransport, ABC):
    """A transport that stores messages: in streams or in lists."""

    _form_of: ClassVar[FormOf]
    """How messages are written for the script that stores them."""

    def __init__(self, url: str, **options: Unpack[RedisOptions]) -> None:
        super().__init__(url, **options)
        self._declared: dict[str, list[Argument]] = {}

    @abstractmethod
    async def _declare(self, connection: PipelinedConnection, queue: str) -> None:
        """Create a queue with its settings in ``_declared``."""

    @abstractmethod
    def _batch(
        self, connection: PipelinedConnection, settlements: Sequence[Settlement]
    ) -> SettleBatch:
        """What carries out settlements."""

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

    async def _restore(self, connection: PipelinedConnection) -> None:
        async def restore(queue: str) -> None:
            try:
                await self._declare(connection, queue)
            except (NotConnectedError, ConnectionFailedError, SendUnconfirmedError):
                raise
            except TransportError as error:  # a full server; the other queues still work
                log.error("cannot declare %s again, continuing without it: %s", queue, error)

        await asyncio.gather(*map(restore, self._declared))

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``Transport``. One call per queue and batch, and all of them travel together."""

        async def send(some: Sequence[Message]) -> Outcomes:
            return await store(self._client, self._key, some, type(self)._form_of)

        outcomes = await send(messages)
        if any(outcomes):
            await self._retry_on_lost_queues(
                messages, outcomes, send, lambda message: message.queue
            )
        return outcomes

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``Transport``. Each is atomic, except a retry in a queue of another name: there the
        successor is stored first."""

        async def settle(some: Sequence[Settlement]) -> Outcomes:
            return await self._batch(await self._client.connection(), some).settle()

        outcomes = await settle(settlements)
        if any(outcomes):
            await self._retry_on_lost_queues(settlements, outcomes, settle, target_of)
        return outcomes

    async def _retry_on_lost_queues(
        self,
        items: Sequence[Item],
        outcomes: Outcomes,
        again: Callable[[Sequence[Item]], Awaitable[Outcomes]],
        queue_of: Callable[[Item], str],
    ) -> None:
        """Create queues of ours that the server has lost, and do what failed for lack of them."""
        places = [
            place
            for place, outcome in enumerate(outcomes)
            if isinstance(outcome, QueueNotFoundError) and queue_of(items[place]) in self._declared
        ]
        if places:
            for queue in {queue_of(items[place]) for place in places}:
                with contextlib.suppress(TransportError):  # then it fails for this reason again
                    await self._declare_again(queue)
            for place, outcome in zip(places, await again([items[p] for p in places]), strict=True):
                outcomes[place] = outcome

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        with contextlib.suppress(TransportError):  # then its lease runs out
            await self.settle([Release(delivery.receipt) for delivery in deliveries])

    async def _measure(self, script: Script, queue: str) -> QueueDepth:
        found = await self._client.run(script, [self._key(queue)])
        if found is None:
            raise queue_not_found(queue, self._client.where)
        ready, delayed, in_flight = found
        return QueueDepth(ready=ready, delayed=delayed, in_flight=in_flight)

    async def _purge(self, script: Script, queue: str) -> int:
        total = 0
        while deleted := await self._client.run(script, [self._key(queue)]):
            if deleted < 0:
                raise queue_not_found(queue, self._client.where)
            total += deleted
        return total


def consumer_name(lease: float) -> str:
    """A unique name that shows in ``XINFO CONSUMERS`` which process it is.

    It ends with the lease in milliseconds, for others that want to claim what this one holds.
    """
    who = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return f"{who}~{round(lease * 1000)}"
