"""Opens connections: to a server, to the one that Sentinels name, or to a socket."""

from __future__ import annotations

import asyncio
import socket as sockets
from typing import Any, cast

from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.sentinel import Sentinel

from matador.transports.redis.channel import Channel
from matador.transports.redis.url import RedisUrl
from matador.transports.redis_client.address import tls_options
from matador.transports.redis_client.errors import translate


class Opener:
    """Knows how to reach the server; every call makes a connection of its own.

    Args:
        url: where it is.
        name: what the server is told we are (``CLIENT LIST`` shows it).
        timeout: seconds for connecting, and until an answer is given up.
        heartbeat: seconds after which a silent connection is asked whether it lives.
    """

    def __init__(self, url: RedisUrl, *, name: str, timeout: float, heartbeat: float) -> None:
        self._url = url
        self._name = name
        self.timeout = timeout
        self.heartbeat = heartbeat

    @property
    def where(self) -> str:
        """The server in a few words, without credentials."""
        return self._url.where

    async def open(self) -> Channel:
        """A new connection, ready for commands.

        Raises:
            ConnectionFailedError: the server cannot be reached, or refuses.
        """
        connection = await self.connection()
        transport = transport_of(connection)
        return Channel(connection, transport, timeout=self.timeout, heartbeat=self.heartbeat)

    async def connection(self) -> AbstractConnection:
        """A new connection as redis-py makes it. See ``open``."""
        try:
            connection = await self._connection()
            await connection.connect()
        except Exception as error:
            raise translate(error, self.where, opening=True) from error
        return connection

    async def _connection(self) -> AbstractConnection:
        url = self._url
        if url.socket is not None:
            return UnixDomainSocketConnection(path=url.socket, **self._options())
        if url.primary is None:
            host, port = url.hosts[0]
        else:
            host, port = await self._find_primary(url.primary)
        made: Connection = (SSLConnection if url.tls else Connection)(
            host=host, port=port, **self._options(), **self._tcp_options(), **self._tls_options()
        )
        return made

    async def _find_primary(self, primary: str) -> tuple[str, int]:
        url = self._url
        sentinels: Any = Sentinel(
            url.hosts,
            sentinel_kwargs={
                "username": url.sentinel_username,
                "password": url.sentinel_password,
                "ssl": url.tls,
                "socket_timeout": self.timeout,
                "socket_connect_timeout": self.timeout,
                **self._tls_options(),
            },
        )
        try:
            host, port = await sentinels.discover_master(primary)
        finally:
            for sentinel in sentinels.sentinels:
                await sentinel.aclose()
        return str(host), int(port)

    def _options(self) -> dict[str, Any]:
        url = self._url
        return {
            "db": url.db,
            "username": url.username,
            "password": url.password,
            "client_name": self._name,
            "protocol": 2,
            # Answers are waited for by the channel, which knows what it waits for.
            "socket_timeout": None,
        }

    def _tcp_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "socket_connect_timeout": self.timeout,
            "socket_keepalive": True,
        }
        if hasattr(sockets, "TCP_USER_TIMEOUT"):  # what was written and never acknowledged
            wait = max(1, round(2 * self.heartbeat * 1000))
            options["socket_keepalive_options"] = {sockets.TCP_USER_TIMEOUT: wait}
        return options

    def _tls_options(self) -> dict[str, Any]:
        return tls_options(self._url) if self._url.tls else {}


def transport_of(connection: AbstractConnection) -> asyncio.Transport:
    """The bytes of a connection. redis-py keeps them to itself: there is no public way."""
    writer = cast("asyncio.StreamWriter", getattr(connection, "_writer"))  # noqa: B009
    return cast("asyncio.Transport", writer.transport)
