"""The client of the server: opens and supervises connections, runs commands and scripts."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from redis import exceptions as redis_errors
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from matador.model.message import ConnectionState
from matador.transports.redis.options import RedisAddress
from matador.transports.redis_client.client import ServerClient
from matador.transports.redis_client.connection import (
    Argument,
    ListeningConnection,
    PipelinedConnection,
)
from matador.transports.redis_client.errors import translate

Kind: TypeAlias = Literal["stream", "list"]
"""The data structure that stores messages."""
_WITHOUT_QUEUE = {"declare", "complete", "settle", "renew", "prune", "give_back_unseen"}
"""The scripts that also work if the queue does not exist."""
_OF_ROUTES = {"publish", "routes_apply", "routes_delete", "routes_load", "routes_unbind"}
"""The scripts of exchanges and bindings, whose first key is not that of a queue."""
Made = TypeVar("Made", bound=PipelinedConnection)


class Script(NamedTuple):
    """A script, and the hash under which the server caches it."""

    source: str
    sha: str


@cache
def script(name: str, kind: Kind | None = "stream") -> Script:
    """The script in ``lua``, after the functions that scripts of this kind share."""
    parts = [name]
    if kind is not None:
        needed = [] if name in _WITHOUT_QUEUE else ["queue"]
        if name in _OF_ROUTES:
            needed = ["routes_common"]
        parts = ["common", f"{kind}_common", *needed, f"list_{name}" if kind == "list" else name]
    folder = files("matador.transports.redis") / "lua"
    source = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in parts)
    # Not for security: the server identifies scripts by this hash.
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


class RedisClient(ServerClient[PipelinedConnection]):
    """Runs commands and scripts over a connection that is restored when it is lost.

    Args:
        address: a server, the Sentinels that name it, or a socket.
        name: the client name that ``CLIENT LIST`` shows.
        restore, on_state: see ``ServerClient``.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        name: str,
        restore: Callable[[PipelinedConnection], Awaitable[None]] | None = None,
        on_state: Callable[[ConnectionState], None] = lambda _: None,
    ) -> None:
        super().__init__(address.where, restore=restore, on_state=on_state, backoff=address.backoff)
        self._address = address
        self._name = name

    async def open(self) -> PipelinedConnection:
        """Open a separate connection, for commands that block on the server."""
        return await self._open(PipelinedConnection)

    async def listen(self, heard: Callable[[bytes, bytes], None]) -> ListeningConnection:
        """Open a connection for ``SUBSCRIBE``."""
        connection = await self._open(ListeningConnection)
        connection.heard = heard
        return connection

    async def call(self, *arguments: Argument) -> Any:
        """The reply to a command.

        Raises:
            NotConnectedError: it was not sent.
            TransportError: it failed.
        """
        connection = await self.connection()
        try:
            return await connection.call(*arguments)
        except Exception as error:
            raise self.translated(connection, error) from error

    async def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument] = ()
    ) -> Any:
        """The result of a script. See ``call`` for errors."""
        return await self.run_on(await self.connection(), script, keys, arguments)

    async def run_on(
        self,
        connection: PipelinedConnection,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[Argument] = (),
    ) -> Any:
        """Like ``run``, over the given connection."""
        rest = (len(keys), *keys, *arguments)
        try:
            try:
                return await connection.call("EVALSHA", script.sha, *rest)
            except redis_errors.NoScriptError:
                # A new server, or one whose scripts were flushed. Nothing was done yet.
                return await connection.call("EVAL", script.source, *rest)
        except Exception as error:
            raise self.translated(connection, error, f", {keys[0]}") from error

    # -- opening connections -----------------------------------------------------------------------

    async def _open(self, made: type[Made]) -> Made:
        address = self._address
        try:
            connection = await self._make()
            try:
                async with asyncio.timeout(address.timeout):  # a server may accept and not answer
                    await connection.connect()
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
        except Exception as error:
            raise translate(error, self.where, opening=True) from error
        return made(connection, timeout=address.timeout, heartbeat=address.heartbeat)

    async def _make(self) -> AbstractConnection:
        address = self._address
        options: dict[str, Any] = {
            "db": address.db,
            "username": address.user,
            "password": address.password,
            "client_name": self._name,
            "protocol": 2,
            # ``PipelinedConnection`` has the timeouts: it knows what each command waits for.
            "socket_timeout": None,
        }
        if address.socket is not None:
            return UnixDomainSocketConnection(path=address.socket, **options)
        host, port = await self._find_primary() if address.primary else address.hosts[0]
        options |= {"socket_connect_timeout": address.timeout, "socket_keepalive": True}
        if hasattr(sockets, "TCP_USER_TIMEOUT"):  # for what was written and never acknowledged
            wait = max(1, round(2 * address.heartbeat * 1000))
            options["socket_keepalive_options"] = {sockets.TCP_USER_TIMEOUT: wait}
        if address.tls:
            return SSLConnection(host=host, port=port, **options, **address.tls_options)
        return Connection(host=host, port=port, **options)

    async def _find_primary(self) -> tuple[str, int]:
        address = self._address
        sentinels: Any = Sentinel(
            address.hosts,
            sentinel_kwargs={
                "username": address.sentinel_username,
                "password": address.sentinel_password,
                "ssl": address.tls,
                "socket_timeout": address.timeout,
                "socket_connect_timeout": address.timeout,
                "retry": Retry(NoBackoff(), 0),  # the next one is asked instead
                **(address.tls_options if address.tls else {}),
            },
        )
        try:
            host, port = await sentinels.discover_master(address.primary)
        finally:
            for sentinel in sentinels.sentinels:
                await sentinel.aclose()
        return str(host), int(port)
