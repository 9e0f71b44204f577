"""Watches over one queue that is being consumed, for as long as it is.

Has the queue tended (delayed messages let in when they are due, what is past its time forgotten,
what was left behind found). It sleeps until the next message is due; a bell, a small stream beside
the queue, wakes it when an earlier one is stored, or when something was given back. Every process
that consumes the queue does this: the scripts let each message in once, whoever dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from redis import exceptions as redis_errors

from matador.errors import TransportError
from matador.transports.redis.channel import Channel
from matador.transports.redis.link import Link
from matador.transports.redis_client.errors import is_gone

log = logging.getLogger("matador.transports.redis")

_PAUSE = 0.5  # after an error, if the connection is there


class Watcher:
    """The watch over one queue.

    Args:
        link: the server.
        base: the queue's key.
        tend: looks after the queue; gives the milliseconds until it must again, -1: any time.
        longest: seconds; it looks at the queue at least that often.
    """

    def __init__(
        self,
        link: Link,
        base: str,
        *,
        tend: Callable[[], Awaitable[int]],
        longest: float,
    ) -> None:
        self._link = link
        self._base = base
        self._tend = tend
        self._longest = longest
        self._channel: Channel | None = None
        self._heard: bytes | str = "$"
        self._task = asyncio.create_task(self._run(), name=f"matador-watch-{base}")

    async def close(self) -> None:
        """Stop watching."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._drop()

    async def _run(self) -> None:
        while True:
            try:
                await self._watch()
            except TransportError as error:
                log.debug("watching %s: %s", self._base, error)
                await self._drop()
                await asyncio.sleep(_PAUSE)
                with contextlib.suppress(TransportError):
                    await self._link.wait_connected()
            except Exception:
                log.exception("watching %s failed; going on", self._base)
                await asyncio.sleep(_PAUSE)

    async def _watch(self) -> None:
        if self._channel is None or self._channel.lost.done():
            await self._drop()
            self._channel = await self._link.open()
            # Whatever rings from here on is heard; what rang before is seen by looking.
            self._heard = await self._last_ring(self._channel)
        due = await self._tend()
        wait = self._longest if due < 0 else min(self._longest, due / 1000)
        await self._listen(self._channel, wait)

    async def _listen(self, channel: Channel, wait: float) -> None:
        """Wait until somebody rings, or ``wait`` seconds."""
        if wait <= 0:
            return
        block = max(1, round(wait * 1000))
        bell = f"{self._base}:bell"
        try:
            rung = await channel.call(
                "XREAD", "BLOCK", block, "STREAMS", bell, self._heard, patience=wait
            )
        except redis_errors.RedisError as error:
            await self._without_bell(channel, error, wait)
            return
        if rung:
            self._heard = rung[0][1][-1][0]

    async def _without_bell(self, channel: Channel, error: Exception, wait: float) -> None:
        """The bell is of no use, but the connection is: look from time to time."""
        if is_gone(error):
            raise self._link.translated(channel, error) from error
        log.warning("%s: its bell cannot be heard, looking now and then: %s", self._base, error)
        await asyncio.sleep(min(wait, _PAUSE))

    async def _last_ring(self, channel: Channel) -> bytes | str:
        bell = f"{self._base}:bell"
        try:
            rings = await channel.call("XREVRANGE", bell, "+", "-", "COUNT", 1)
        except redis_errors.RedisError as error:
            await self._without_bell(channel, error, 0.0)
            return "$"
        return rings[0][0] if rings else "0-0"

    async def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
