"""A supervised connection to a Redis server: what the clients of both transports share."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from matador.errors import MatadorError, NotConnectedError, TimeoutError
from matador.model.backoff import ReconnectBackoff
from matador.model.message import ConnectionState
from matador.transports.redis_client.errors import is_gone, is_moved_on, translate
from matador.transports.supervisor import ConnectionSupervisor

_SHORT_OUTAGE = 1.0


class ServerConnection(Protocol):
    """A connection, or a pool of connections, that is used until it is lost."""

    @property
    def lost(self) -> asyncio.Future[BaseException]:
        """Done, with the reason, when the connection is lost."""
        ...

    def fail(self, error: BaseException) -> None:
        """Mark the connection as lost, for this reason."""
        ...

    async def drain(self) -> None:
        """Wait until every command in flight has been answered."""
        ...

    async def close(self) -> None:
        """Drop the connection. Idempotent."""
        ...


AnyConnection = TypeVar("AnyConnection", bound=ServerConnection)


class ServerClient(ABC, Generic[AnyConnection]):
    """Keeps a connection to a server, and makes a new one when it is lost.

    Args:
        where: the server in a few words, without credentials.
        restore: called on every new connection before it is used, to recreate what the server may
            have lost.
        on_state: told every change of state.
        backoff: the delays between attempts to reconnect.
    """

    def __init__(
        self,
        where: str,
        *,
        restore: Callable[[AnyConnection], Awaitable[None]] | None = None,
        on_state: Callable[[ConnectionState], None] = lambda _: None,
        backoff: ReconnectBackoff | None = None,
    ) -> None:
        self.where = where
        self._restore_more = restore
        self._connection: AnyConnection | None = None
        self._supervisor: ConnectionSupervisor[AnyConnection] = ConnectionSupervisor(
            self._connect,
            self._wait_lost,
            self._restore,
            backoff=backoff,
            on_state=on_state,
        )

    @abstractmethod
    async def open(self) -> AnyConnection:
        """Open a new connection.

        Raises:
            ConnectionFailedError: the server cannot be reached, or refuses.
        """

    @property
    def state(self) -> ConnectionState:
        """The state of the connection."""
        return self._supervisor.state

    async def start(self) -> None:
        """Connect, and stay connected from then on."""
        try:
            await self._supervisor.start()
        except BaseException:
            await self._drop()
            raise

    async def stop(self) -> None:
        """Finish the commands in flight, and disconnect."""
        try:
            if self.state.status == "connected":
                await self._supervisor.connection.drain()
        finally:  # also if it is canceled: otherwise, the supervisor would connect again
            try:
                await self._supervisor.stop()
            finally:
                await self._drop()

    async def wait_connected(self) -> AnyConnection:
        """Wait for a connection.

        Raises:
            NotConnectedError: there will be none.
        """
        return await self._supervisor.wait_connected()

    async def connection(self) -> AnyConnection:
        """The connection; waits up to a second for one that is being re-established.

        Raises:
            NotConnectedError: there is none.
        """
        try:
            return self._supervisor.connection
        except NotConnectedError:
            if self.state.status not in ("connected", "reconnecting"):
                raise self.state.refusal(
                    f"not connected to {self.where}; connect first"
                ) from self.state.error
        try:
            return await self._supervisor.wait_connected(_SHORT_OUTAGE)
        except TimeoutError:
            raise NotConnectedError(
                f"lost the connection to {self.where}; reconnecting"
            ) from self.state.error

    def translated(
        self, connection: AnyConnection, error: BaseException, what: str = ""
    ) -> MatadorError:
        """Translate an error of a connection; drop the connection if it is unusable."""
        if is_gone(error) or is_moved_on(error):
            connection.fail(error)
        return translate(error, f"{self.where}{what}")

    # -- for the supervisor ------------------------------------------------------------------------

    async def _connect(self) -> AnyConnection:
        await self._drop()
        self._connection = await self.open()
        return self._connection

    async def _wait_lost(self, connection: AnyConnection) -> BaseException:
        return await asyncio.shield(connection.lost)

    async def _restore(self, connection: AnyConnection) -> None:
        if self._restore_more is None:
            return
        try:
            await self._restore_more(connection)
        except BaseException:
            await self._drop()
            raise

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        closing = asyncio.create_task(connection.close())
        try:
            await asyncio.shield(closing)
        finally:  # a caller that is canceled leaves no connection open
            await asyncio.wait([closing])
