"""Maintains a queue while it is consumed: delayed, stale and expired messages.

It sleeps until the next message is due. The bell, a small stream beside the queue, wakes it when a
message that is due earlier is stored, or when one is released. Every process that consumes the
queue does this: the scripts move each message exactly once, even if a process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from redis import exceptions as redis_errors

from matador.errors import TransportError
from matador.transports.redis.blocking import BlockingSubscription, QueueSource
from matador.transports.redis_client.connection import PipelinedConnection
from matador.transports.redis_client.errors import is_gone

log = logging.getLogger("matador.transports.redis")

_PAUSE = 0.5  # after an error, if the connection is there
_PRUNE_EVERY = 60.0
_UNSEEN = 3_600_000  # milliseconds; consumers idle for that long are gone


class QueueUpkeep:
    """Runs the upkeep of one queue repeatedly. Notifies its subscriptions of messages to claim.

    For lists, it also shows that the consumer is alive, so it must run at least once per lease.
    """

    def __init__(self, source: QueueSource) -> None:
        self._source = source
        self._client = source.client
        self._base = source.base
        self._longest = min(source.block, source.lease / 4000)
        self._connection: PipelinedConnection | None = None
        self._heard: bytes | str = "0-0"
        self._resumed: int | None = None
        self._pruned = asyncio.get_running_loop().time()
        self.subscriptions: set[BlockingSubscription] = set()
        self._task = asyncio.create_task(self._run(), name=f"matador-upkeep-{self._base}")

    def wake(self) -> None:
        """Run the upkeep now: there may be messages to claim."""
        for subscription in self.subscriptions:
            subscription.claimable()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._drop()

    async def _run(self) -> None:
        while True:
            try:
                await self._once()
            except TransportError as error:
                log.debug("upkeep of %s: %s", self._base, error)
                await self._drop()
                await asyncio.sleep(_PAUSE)
                with contextlib.suppress(TransportError):
                    await self._client.wait_connected()
            except Exception:
                log.exception("upkeep of %s failed; retrying", self._base)
                await asyncio.sleep(_PAUSE)

    async def _once(self) -> None:
        if self._connection is None or self._connection.lost.done():
            await self._drop()
            self._connection = await self._client.open()
            self._heard = "0-0"  # an old ring costs one upkeep more
        due = await self._upkeep()
        wait = self._longest if due < 0 else min(self._longest, due / 1000)
        await self._listen(self._connection, wait)

    async def _upkeep(self) -> int:
        """Do the upkeep; the milliseconds until the next message is due, -1: none is delayed."""
        source = self._source
        found = await source.run("upkeep", source.consumer, source.lease)
        if found is None:  # the queue is gone; a subscription that claims declares it again
            self.wake()
            return -1
        due, claimable, problem, resumed = found
        if resumed != self._resumed:  # a pause has ended, which a blocking read does not notice
            claimable, self._resumed = 1, resumed
        if problem:
            log.error(
                "%s: upkeep of delayed or stale messages failed: %s", self._base, problem.decode()
            )
        if claimable:
            self.wake()
        now = asyncio.get_running_loop().time()
        if now > self._pruned + _PRUNE_EVERY:
            self._pruned = now
            await source.run("prune", "", _UNSEEN)
        return due

    async def _listen(self, connection: PipelinedConnection, wait: float) -> None:
        """Wait for the bell, or ``wait`` seconds."""
        if wait <= 0:
            return
        block, bell = max(1, round(wait * 1000)), f"{self._base}:bell"
        try:
            rung = await connection.call(
                "XREAD", "BLOCK", block, "STREAMS", bell, self._heard, patience=wait
            )
        except redis_errors.RedisError as error:
            if is_gone(error):
                raise self._client.translated(connection, error) from error
            log.warning("%s: cannot listen to its bell, polling instead: %s", self._base, error)
            await asyncio.sleep(min(wait, _PAUSE))
        else:
            if rung:
                self._heard = rung[0][1][-1][0]

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
