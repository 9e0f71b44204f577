"""A subscription that blocks on the server, on a connection of its own: for streams and lists."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matador.errors import (
    ConnectionFailedError,
    NotConnectedError,
    SendFailedError,
    TransportError,
)
from matador.model.message import Delivery
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.transport import BaseSubscription
from matador.transports.redis.client import Kind, RedisClient, script
from matador.transports.redis_client.connection import Argument, PipelinedConnection
from matador.transports.redis_client.errors import has_lost_group

log = logging.getLogger("matador.transports.redis")

_RETRY_AFTER = 0.05  # seconds
_LAST_CALL = 2.0  # seconds for a read to end when the subscription does
_OUTAGE = (NotConnectedError, SendFailedError, ConnectionFailedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSource:
    """A queue from the view of one consumer.

    Attributes:
        base: the queue's key.
        lease: milliseconds.
        block: seconds for which a read blocks on the server.
        give_back: releases deliveries that no ``receive`` returned.
        declare: creates the queue again after the server has lost it.
        closed: called when a subscription has ended.
    """

    client: RedisClient
    kind: Kind
    queue: str
    base: str
    consumer: str
    lease: int
    block: float
    give_back: Callable[[Sequence[Delivery]], Awaitable[None]]
    declare: Callable[[str], Awaitable[None]]
    closed: Callable[[BlockingSubscription], Awaitable[None]]

    async def run(self, name: str, *arguments: Argument) -> Any:
        """The result of a script."""
        return await self.client.run(script(name, self.kind), [self.base], arguments)


class BlockingSubscription(BaseSubscription, ABC):
    """A subscription with blocking reads.

    A blocking read outlives a ``receive`` that is canceled: it is unblocked, and messages that it
    delivers nevertheless go to the next ``receive`` or back to the queue.
    """

    def __init__(self, source: QueueSource) -> None:
        super().__init__(source.queue)
        self._source = source
        self._client = source.client
        self._missed = False
        self._connection: PipelinedConnection | None = None
        self._client_id = 0
        self._blocked: asyncio.Future[Any] | None = None
        self._fetching: asyncio.Task[list[Delivery]] | None = None
        self._receivers = 0
        self._chores: set[asyncio.Future[None]] = set()

    @abstractmethod
    async def _fetch_once(self, limit: int) -> list[Delivery]:
        """Wait for messages; empty after the blocking time."""

    @abstractmethod
    def _arrived(self) -> Iterable[str]:
        """The deliveries that arrived and are in flight, for the script ``give_back_unseen``."""

    def claimable(self) -> None:
        """Called when a message was released or is stale. Only streams have to claim it."""

    # -- receiving ---------------------------------------------------------------------------------

    async def receive(self, limit: int) -> Sequence[Delivery]:
        while self._active:
            if self._fetching is None:
                self._fetching = asyncio.create_task(self._fetch(limit))
            fetching = self._fetching
            self._receivers += 1
            try:
                await asyncio.wait([fetching])  # a canceled receive does not cancel the read
            except asyncio.CancelledError:
                self._receivers -= 1
                self._leave_behind(fetching)
                raise
            self._receivers -= 1
            if self._fetching is not fetching:
                continue  # close() has taken it over, or another receive
            self._fetching = None
            deliveries = fetching.result()
            if len(deliveries) > limit:
                self._do(self._source.give_back(deliveries[limit:]))
                deliveries = deliveries[:limit]
            if deliveries:
                return deliveries
        return ()

    def _leave_behind(self, fetching: asyncio.Task[list[Delivery]]) -> None:
        """Unblock a read without a waiting ``receive``, and release what it delivers."""

        def ended(_: object) -> None:
            if self._receivers == 0 and self._fetching is fetching:
                self._fetching = None
                self._do(self._release(fetching))

        if self._receivers == 0:
            self._interrupt()
            fetching.add_done_callback(ended)

    async def close(self) -> None:
        if not self._active:
            return
        self._active = False
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            await self._end(fetching)
        await self._drop()
        for chore in list(self._chores):
            await asyncio.wait([chore], timeout=_LAST_CALL)
        await self._source.closed(self)

    async def _end(self, fetching: asyncio.Task[list[Delivery]]) -> None:
        self._interrupt()
        done, _ = await asyncio.wait([fetching], timeout=_LAST_CALL)
        if not done:
            fetching.cancel()
            await asyncio.wait([fetching])
        await self._release(fetching)

    async def _release(self, fetching: asyncio.Task[list[Delivery]]) -> None:
        """Give back the deliveries of a read without a waiting ``receive``."""
        if not fetching.cancelled() and fetching.exception() is None and fetching.result():
            await self._source.give_back(fetching.result())

    # -- fetching: one at a time -------------------------------------------------------------------

    async def _fetch(self, limit: int) -> list[Delivery]:
        """Wait for messages; empty after the blocking time. Survives a lost connection."""
        backoff = Backoff(_RETRY_AFTER, 1.0)
        while True:
            try:
                if self._missed:
                    await self._release_unseen()
                    self._missed = False
                return await self._fetch_once(limit)
            except _OUTAGE as error:
                log.debug("reading %s: %s", self.queue, error)
                self._missed = True
                await self._drop()
                if not self._active:
                    return []
                await backoff.sleep()
                await self._client.wait_connected()

    async def _run(self, name: str, *arguments: Argument) -> Any:
        """The result of a script for this consumer; empty if the queue had to be created again."""
        found = await self._source.run(name, self._source.consumer, *arguments)
        if found is None:
            await self._source.declare(self.queue)
        return () if found is None else found

    async def _release_unseen(self) -> None:
        """Release deliveries that were sent to this process over a lost connection and never
        arrived."""
        released = await self._run("give_back_unseen", *self._arrived())
        if released:
            log.info("%s: released messages lost with the connection: %d", self.queue, released)
            self.claimable()

    async def _block_on(self, *command: Argument) -> Any:
        """The reply to a blocking command; None if no message came."""
        connection = await self._connected()
        if not self._wanted():
            return None
        self._blocked = connection.call(*command, patience=self._source.block)
        try:
            return await self._blocked
        except Exception as error:
            if not has_lost_group(error):
                raise self._client.translated(connection, error) from error
        finally:
            self._blocked = None
        await self._source.declare(self.queue)
        return None

    def _wanted(self) -> bool:
        """Whether the read should still block."""
        return self._active and self._receivers > 0

    async def _connected(self) -> PipelinedConnection:
        if self._connection is None or self._connection.lost.done():
            await self._drop()
            self._connection = connection = await self._client.open()
            try:
                self._client_id = await connection.call("CLIENT", "ID")
            except Exception as error:
                raise self._client.translated(connection, error) from error
        return self._connection

    def _interrupt(self) -> None:
        """End a blocking read."""
        if self._blocked is not None:
            self._do(self._unblock(self._blocked))

    async def _unblock(self, blocked: asyncio.Future[Any]) -> None:
        """Make the server reply to a blocking read at once."""
        while not blocked.done():
            try:
                await self._client.call("CLIENT", "UNBLOCK", self._client_id)
            except TransportError:
                return  # not permitted, or not connected: it ends by itself soon
            # The read may not block yet: the server may see this command before the read.
            await asyncio.wait([blocked], timeout=_RETRY_AFTER)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _do(self, work: Awaitable[None]) -> None:
        """Run ``work`` in the background; ``close`` waits for it."""
        task = asyncio.ensure_future(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
