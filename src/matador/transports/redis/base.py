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
from typing import ClassVar, TypeVar

from matador.errors import (
    ConnectionFailedError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    SendUnconfirmedError,
    TransportError,
)
from matador.model.message import (
    ConnectionState,
    Delivery,
    Finding,
    Message,
    QueueDepth,
    Release,
    Settlement,
)
from matador.model.options import Seconds, seconds
from matador.transports.base import TransportObserver
from matador.transports.redis.client import Connector, RedisClient, Script
from matador.transports.redis.connection import Argument, PipelinedConnection
from matador.transports.redis.send import FormOf, Outcomes, store
from matador.transports.redis.settle import SettleBatch, target_of
from matador.transports.redis.topology import key_of
from matador.transports.redis.url import parse_url
from matador.transports.redis_client.doctor import examine
from matador.transports.redis_client.errors import no_such_queue

log = logging.getLogger("matador.transports.redis")

Item = TypeVar("Item")

_PRIMARY = "name the primary in the URL, or the Sentinels: redis+sentinel://…"
_DEFAULTS = {"lease": 30.0, "timeout": 10.0, "heartbeat": 5.0}


class RedisServerTransport:
    """A transport on a Redis server, in any mode. See ``RedisTransport`` for the arguments."""

    _stores = True
    """Whether messages are stored on the server."""

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
        given = parse_url(url)
        options = {**_DEFAULTS, **given.options}

        def chosen(name: str, value: Seconds | None) -> float:
            return seconds(options[name] if value is None else value, name, minimum=0.1)

        self._lease = chosen("lease", lease)
        self._heartbeat = chosen("heartbeat", heartbeat)
        self._prefix = prefix or given.prefix or "matador"
        self._name = name
        # How long a read blocks on the server: a dead connection must not go unnoticed meanwhile.
        self._block = self._heartbeat / 2
        self._observers: list[TransportObserver] = []
        self._connecting = asyncio.Lock()
        self._connector = Connector(
            given,
            name=f"matador-{name}",
            timeout=chosen("timeout", timeout),
            heartbeat=self._heartbeat,
        )
        self._client = RedisClient(self._connector, restore=self._restore, on_state=self._tell)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.where!r}, {self.state.status})"

    @property
    def name(self) -> str:
        """See ``Transport``."""
        return self._name

    @property
    def state(self) -> ConnectionState:
        """See ``Transport``."""
        return self._client.state

    def observe(self, observer: TransportObserver) -> None:
        """See ``Transport``."""
        self._observers.append(observer)

    async def connect(self) -> None:
        """See ``Transport``."""
        async with self._connecting:
            await self._client.start()

    async def disconnect(self) -> None:
        """See ``Transport``. Others get what is still held when its lease has passed."""
        async with self._connecting:
            await self._before_disconnect()
            await self._client.stop()

    async def examine(self) -> Sequence[Finding]:
        """See ``Examining``: version, eviction policy, persistence."""
        return await examine(self._client.call, primary=_PRIMARY, stores=self._stores)

    async def _before_disconnect(self) -> None:
        """Close what needs the connection."""

    async def _restore(self, connection: PipelinedConnection) -> None:
        """Recreate, on a new connection, what the server may have lost."""

    def _tell(self, state: ConnectionState) -> None:
        for observer in self._observers:
            observer.connection_changed(self._name, state)

    def _key(self, queue: str) -> str:
        return key_of(self._prefix, queue)


class StoredTransport(RedisServerTransport, ABC):
    """A transport that stores messages: in streams or in lists."""

    _form_of: ClassVar[FormOf]
    """How messages are written for the script that stores them."""

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
            raise no_such_queue(queue, self._client.where)
        await self._declare(await self._client.connection(), queue)

    async def _restore(self, connection: PipelinedConnection) -> None:
        async def restore(queue: str) -> None:
            try:
                await self._declare(connection, queue)
            except (NotConnectedError, ConnectionFailedError, SendUnconfirmedError):
                raise
            except TransportError as error:  # a full server; the other queues are of use
                log.error("cannot declare %s again, continuing without it: %s", queue, error)

        await asyncio.gather(*map(restore, self._declared))

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``Transport``. One call per queue and batch, and all of them travel together."""

        async def send(some: Sequence[Message]) -> Outcomes:
            return await store(self._client, self._key, some, type(self)._form_of)

        outcomes = await send(messages)
        if any(outcomes):
            await self._try_again(messages, outcomes, send, lambda message: message.queue)
        return outcomes

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``Transport``. Each is atomic, except a retry in a queue of another name: there the
        successor is stored first."""

        async def settle(some: Sequence[Settlement]) -> Outcomes:
            return await self._batch(await self._client.connection(), some).settle()

        outcomes = await settle(settlements)
        if any(outcomes):
            await self._try_again(settlements, outcomes, settle, target_of)
        return outcomes

    async def _try_again(
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
            raise no_such_queue(queue, self._client.where)
        ready, delayed, in_flight = found
        return QueueDepth(ready=ready, delayed=delayed, in_flight=in_flight)

    async def _purge(self, script: Script, queue: str) -> int:
        total = 0
        while deleted := await self._client.run(script, [self._key(queue)]):
            if deleted < 0:
                raise no_such_queue(queue, self._client.where)
            total += deleted
        return total


def consumer_name(lease: float) -> str:
    """A unique name that shows in ``XINFO CONSUMERS`` which process it is.

    It ends with the lease in milliseconds, for others that want to claim what this one holds.
    """
    who = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return f"{who}~{round(lease * 1000)}"
