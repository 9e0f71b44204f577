"""Watches over one queue that is being consumed, for as long as it is.

Lets in delayed messages when they are due, forgets what is past its time, and notices what waits to
be claimed. It sleeps until the next message is due; a bell, a small stream beside the queue, wakes
it when an earlier one is stored, or when something was given back. Every process that consumes the
queue does this: the scripts make sure that each message is let in once, whoever dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from matador.errors import TransportError
from matador.transports.redis.channel import Channel
from matador.transports.redis.link import Link
from matador.transports.redis.scripts import script

log = logging.getLogger("matador.transports.redis")

_PAUSE = 0.5  # after an error, if the connection is there
_PRUNE_EVERY = 60.0
_UNSEEN = 3_600_000  # milliseconds; consumers not seen for that long are gone


class Watcher:
    """The watch over one queue.

    Args:
        link: the server.
        base: the queue's key.
        lease: seconds.
        longest: seconds; it looks at the queue at least that often.
        on_claimable: called when something waits to be claimed.
    """

    def __init__(
        self,
        link: Link,
        base: str,
        *,
        lease: float,
        longest: float,
        on_claimable: Callable[[], None],
    ) -> None:
        self._link = link
        self._base = base
        self._lease = round(lease * 1000)
        self._longest = min(longest, lease / 4)
        self._on_claimable = on_claimable
        self._channel: Channel | None = None
        self._heard: bytes | str = "$"
        self._pruned = asyncio.get_running_loop().time()
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
        wait = await self._tend()
        await self._listen(self._channel, wait)

    async def _tend(self) -> float:
        found = await self._link.run(script("tend"), [self._base], [self._lease])
        if found is None:  # the server was emptied; who reads the queue makes it again
            return self._longest
        due, claimable = found
        if claimable:
            self._on_claimable()
        now = asyncio.get_running_loop().time()
        if now > self._pruned + _PRUNE_EVERY:
            self._pruned = now
            await self._link.run(script("prune"), [self._base], [_UNSEEN])
        return self._longest if due < 0 else min(self._longest, due / 1000)

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
        except Exception as error:
            raise self._link.translated(channel, error) from error
        if rung:
            self._heard = rung[0][1][-1][0]

    async def _last_ring(self, channel: Channel) -> bytes | str:
        bell = f"{self._base}:bell"
        try:
            rings = await channel.call("XREVRANGE", bell, "+", "-", "COUNT", 1)
        except Exception as error:
            raise self._link.translated(channel, error) from error
        return rings[0][0] if rings else "0-0"

    async def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
