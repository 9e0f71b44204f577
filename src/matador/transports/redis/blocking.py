"""A subscription that blocks on the server, on a connection of its own: for streams and lists."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from matador.errors import (
    ConnectionFailedError,
    NotConnectedError,
    SendFailedError,
    TransportError,
)
from matador.model.message import Delivery
from matador.transports.kit.backoff import Backoff
from matador.transports.redis.client import RedisClient
from matador.transports.redis.connection import Argument, PipelinedConnection
from matador.transports.redis_client.errors import is_gone

log = logging.getLogger("matador.transports.redis")

_RETRY_AFTER = 0.05  # seconds
_LAST_CALL = 2.0  # seconds for a read to end when the subscription does
_OUTAGE = (NotConnectedError, SendFailedError, ConnectionFailedError)


class BlockingSubscription(ABC):
    """See ``matador.transports.base.Subscription``.

    A read that blocks on the server outlives a ``receive`` that is cancelled: it is unblocked, and
    what it delivers all the same goes to the next ``receive`` or back to the queue.
    """

    def __init__(
        self,
        client: RedisClient,
        queue: str,
        *,
        block: float,
        give_back: Callable[[Sequence[Delivery]], Awaitable[None]],
    ) -> None:
        self._client = client
        self._queue = queue
        self._block = block
        self._give_back = give_back
        self._active = True
        self._missed = False
        self._connection: PipelinedConnection | None = None
        self._client_id = 0
        self._blocked: asyncio.Future[Any] | None = None
        self._fetching: asyncio.Task[list[Delivery]] | None = None
        self._receivers = 0
        self._chores: set[asyncio.Future[None]] = set()

    @property
    def queue(self) -> str:
        """See ``Subscription``."""
        return self._queue

    @property
    def active(self) -> bool:
        """See ``Subscription``."""
        return self._active

    @abstractmethod
    async def _fetch_once(self, limit: int) -> list[Delivery]:
        """The messages that are there, or none after a while."""

    @abstractmethod
    async def _release_unseen(self) -> None:
        """Release what was sent to us on a connection that was lost, and never arrived."""

    @abstractmethod
    async def _leave(self) -> None:
        """Clean up; the connection is closed already."""

    # -- receiving ---------------------------------------------------------------------------------

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``."""
        while self._active:
            if self._fetching is None:
                self._fetching = asyncio.create_task(self._fetch(limit))
            fetching = self._fetching
            self._receivers += 1
            try:
                await asyncio.wait([fetching])  # does not cancel it when we are cancelled
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
                self._do(self._give_back(deliveries[limit:]))
                deliveries = deliveries[:limit]
            if deliveries:
                return deliveries
        return ()

    def _leave_behind(self, fetching: asyncio.Task[list[Delivery]]) -> None:
        """If nobody waits any more: unblock the read, release what it delivers."""

        def ended(_: object) -> None:
            if self._receivers == 0 and self._fetching is fetching:
                self._fetching = None
                if not fetching.cancelled() and fetching.exception() is None:
                    deliveries = fetching.result()
                    if deliveries:
                        self._do(self._give_back(deliveries))

        if self._receivers == 0:
            self._interrupt()
            fetching.add_done_callback(ended)

    async def close(self) -> None:
        """See ``Subscription``."""
        if not self._active:
            return
        self._active = False
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            await self._end(fetching)
        await self._drop()
        for chore in list(self._chores):
            await asyncio.wait([chore], timeout=_LAST_CALL)
        await self._leave()

    async def _end(self, fetching: asyncio.Task[list[Delivery]]) -> None:
        self._interrupt()
        done, _ = await asyncio.wait([fetching], timeout=_LAST_CALL)
        if not done:
            fetching.cancel()
            await asyncio.wait([fetching])
        elif fetching.exception() is None and fetching.result():
            await self._give_back(fetching.result())

    # -- fetching: one at a time -------------------------------------------------------------------

    async def _fetch(self, limit: int) -> list[Delivery]:
        """The messages that are there, or none after a while. Survives a lost connection."""
        backoff = Backoff(_RETRY_AFTER, 1.0)
        while True:
            try:
                if self._missed:
                    await self._release_unseen()
                    self._missed = False
                return await self._fetch_once(limit)
            except _OUTAGE as error:
                log.debug("reading %s: %s", self._queue, error)
                self._missed = True
                await self._drop()
                if not self._active:
                    return []
                await backoff.sleep()
                await self._client.wait_connected()

    async def _block_on(self, *command: Argument) -> Any:
        """The reply to a command that blocks; raises the error of redis-py."""
        connection = await self._connected()
        if not self._wanted():
            return None
        self._blocked = connection.call(*command, patience=self._block)
        try:
            return await self._blocked
        except Exception as error:
            if is_gone(error):
                raise self._client.translated(connection, error) from error
            raise
        finally:
            self._blocked = None

    def _wanted(self) -> bool:
        """Whether there is still a reason to block."""
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
        """End a read that blocks."""
        if self._blocked is not None:
            self._do(self._unblock(self._blocked))

    async def _unblock(self, blocked: asyncio.Future[Any]) -> None:
        """Have the server reply to a read at once."""
        while not blocked.done():
            try:
                await self._client.call("CLIENT", "UNBLOCK", self._client_id)
            except TransportError:
                return  # not permitted, or not connected: it ends by itself soon
            # Perhaps it does not block yet: the server may see this command before the read.
            await asyncio.wait([blocked], timeout=_RETRY_AFTER)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _do(self, work: Awaitable[None]) -> None:
        """Do something in the background; ``close`` waits for it."""
        task = asyncio.ensure_future(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
