"""Hears what is published, on a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from redis import exceptions as redis_errors

from matador.transports.redis.answers import Answers
from matador.transports.redis.channel import pack
from matador.transports.redis.opening import Opener, transport_of


class Listener:
    """Listens to channels until it is closed, or its connection is lost.

    Args:
        heard: called with the name of a channel and what was published there.
        lost: called with the reason when the connection is lost.
    """

    def __init__(
        self,
        opener: Opener,
        *,
        heard: Callable[[bytes, bytes], None],
        lost: Callable[[BaseException], None],
    ) -> None:
        self._opener = opener
        self._on_heard = heard
        self._on_lost = lost
        self._confirmed: dict[bytes, asyncio.Future[None]] = {}
        self._last = 0.0
        self._closing = False
        self._watching: asyncio.Task[None] | None = None

    async def start(self, channels: Iterable[str]) -> None:
        """Connect, and listen to these channels.

        Raises:
            ConnectionFailedError: the server cannot be reached, or refuses.
        """
        self._connection = await self._opener.connection()
        self._transport = transport_of(self._connection)
        Answers(self._transport, self._answered, self._ended)
        self._last = asyncio.get_running_loop().time()
        self._watching = asyncio.create_task(self._watch(), name="matador-redis-listen")
        await self.listen(channels)

    async def listen(self, channels: Iterable[str]) -> None:
        """Listen to more channels; returns once nothing published there is missed."""
        names = [name.encode() for name in channels]
        if not names:
            return
        loop = asyncio.get_running_loop()
        waiting = [self._confirmed.setdefault(name, loop.create_future()) for name in names]
        self._transport.write(pack(["SUBSCRIBE", *names]))
        try:
            async with asyncio.timeout(self._opener.timeout):
                await asyncio.gather(*map(asyncio.shield, waiting))
        except TimeoutError as error:
            raise redis_errors.TimeoutError("no answer to SUBSCRIBE") from error

    def forget(self, channel: str) -> None:
        """Listen to a channel no more."""
        if self._confirmed.pop(channel.encode(), None) is not None and not self._closing:
            self._transport.write(pack(["UNSUBSCRIBE", channel]))

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        self._closing = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._transport.abort()
            with contextlib.suppress(Exception):
                await self._connection.disconnect()

    def _answered(self, answer: Any) -> None:
        self._last = asyncio.get_running_loop().time()
        if isinstance(answer, Exception):
            self._ended(answer)
        elif answer[0] == b"message":
            self._on_heard(answer[1], answer[2])
        elif answer[0] == b"subscribe":
            confirmed = self._confirmed.get(answer[1])
            if confirmed is not None and not confirmed.done():
                confirmed.set_result(None)

    def _ended(self, error: BaseException) -> None:
        for confirmed in self._confirmed.values():
            if not confirmed.done():
                confirmed.set_exception(redis_errors.ConnectionError(str(error)))
                confirmed.exception()
        if not self._closing:
            self._closing = True
            self._on_lost(error)

    async def _watch(self) -> None:
        heartbeat = self._opener.heartbeat
        while True:
            await asyncio.sleep(heartbeat / 4)
            silent = asyncio.get_running_loop().time() - self._last
            if silent > 1.5 * heartbeat:
                self._transport.abort()
                self._ended(redis_errors.TimeoutError("no answer in time"))
                return
            if silent > heartbeat / 2:
                self._transport.write(pack(["PING"]))
