"""The link to the server: one supervised connection for commands, and scripts that run over it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis import exceptions as redis_errors

from matador.errors import MatadorError, NotConnectedError, TimeoutError
from matador.model.backoff import ReconnectBackoff
from matador.model.message import ConnectionState
from matador.transports.redis.channel import Argument, Channel
from matador.transports.redis.opening import Opener
from matador.transports.redis.scripts import Script
from matador.transports.redis_client.errors import is_gone, is_moved_on, translate
from matador.transports.supervisor import ConnectionSupervisor

# Quick at first: a server that restarts is back within a second or two.
BACKOFF = ReconnectBackoff(base_delay=0.1, max_delay=2.0)
_SHORT_OUTAGE = 1.0


class Link:
    """Commands and scripts for the server, over a connection that is made again when it is lost.

    Args:
        opener: makes connections.
        restore: called on every new connection, before it is used: brings back what a server that
            lost its memory has forgotten.
        on_state: told every change of state.
    """

    def __init__(
        self,
        opener: Opener,
        *,
        restore: Callable[[Channel], Awaitable[None]],
        on_state: Callable[[ConnectionState], None],
    ) -> None:
        self._opener = opener
        self._restore_more = restore
        self._channel: Channel | None = None
        self._supervisor = ConnectionSupervisor(
            self._connect, _wait_lost, self._restore, backoff=BACKOFF, on_state=on_state
        )

    @property
    def where(self) -> str:
        """The server in a few words, without credentials."""
        return self._opener.where

    @property
    def state(self) -> ConnectionState:
        """Where the connection stands."""
        return self._supervisor.state

    async def start(self) -> None:
        """Connect, and stay connected from then on."""
        await self._supervisor.start()

    async def stop(self) -> None:
        """Finish what is under way, and drop the connection."""
        if self.state.status == "connected":
            await self._supervisor.connection.drain()
        await self._supervisor.stop()
        await self._drop()

    async def open(self) -> Channel:
        """A connection of its own, for whoever has to wait for the server on it."""
        return await self._opener.open()

    async def wait_connected(self) -> None:
        """Wait until there is a connection.

        Raises:
            NotConnectedError: there will be none.
        """
        await self._supervisor.wait_connected()

    def check(self) -> None:
        """Is it connected, or about to be again?

        Raises:
            NotConnectedError: it is not, and nobody works on it.
        """
        if self.state.status not in ("connected", "reconnecting"):
            raise NotConnectedError(f"not connected to {self.where}") from self.state.error

    async def channel(self) -> Channel:
        """The connection for commands; waits a moment for one that is just being made again.

        Raises:
            NotConnectedError: there is none.
        """
        try:
            return self._supervisor.connection
        except NotConnectedError:
            self.check()
        try:
            return await self._supervisor.wait_connected(_SHORT_OUTAGE)
        except TimeoutError:
            raise NotConnectedError(
                f"the connection to {self.where} is lost and being made again"
            ) from self.state.error

    async def call(self, *arguments: Argument) -> Any:
        """The answer to a command.

        Raises:
            NotConnectedError: it was not sent.
            TransportError: it failed.
        """
        channel = await self.channel()
        try:
            return await channel.call(*arguments)
        except Exception as error:
            raise self.translated(channel, error) from error

    async def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument] = ()
    ) -> Any:
        """What a script gives. See ``call`` for errors."""
        channel = await self.channel()
        return await self.run_on(channel, script, keys, arguments)

    async def run_on(
        self,
        channel: Channel,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[Argument] = (),
    ) -> Any:
        """``run`` over a certain connection."""
        rest = (len(keys), *keys, *arguments)
        try:
            try:
                return await channel.call("EVALSHA", script.sha, *rest)
            except redis_errors.NoScriptError:
                # A new server, or one whose scripts were flushed. Nothing was done yet.
                return await channel.call("EVAL", script.source, *rest)
        except Exception as error:
            raise self.translated(channel, error, f", {keys[0]}") from error

    def translated(self, channel: Channel, error: Exception, what: str = "") -> MatadorError:
        """What an error on a connection stands for; one that is of no use is given up."""
        if is_moved_on(error) or is_gone(error):
            channel.fail(error)
        return translate(error, f"{self.where}{what}")

    # -- for the supervisor ------------------------------------------------------------------------

    async def _connect(self) -> Channel:
        await self._drop()
        self._channel = await self._opener.open()
        return self._channel

    async def _restore(self, channel: Channel) -> None:
        try:
            await self._restore_more(channel)
        except BaseException:
            await self._drop()
            raise

    async def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


async def _wait_lost(channel: Channel) -> BaseException:
    return await asyncio.shield(channel.lost)
