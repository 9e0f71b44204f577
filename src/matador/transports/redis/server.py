"""What the transports of all modes share: options, the link to the server, states, observers."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence

from matador.errors import (
    ConnectionFailedError,
    NotConnectedError,
    SendUnconfirmedError,
    TransportError,
)
from matador.model.message import ConnectionState, Finding
from matador.model.options import Seconds, seconds
from matador.transports.base import TransportObserver
from matador.transports.redis.channel import Channel
from matador.transports.redis.examining import examine
from matador.transports.redis.keys import key_of
from matador.transports.redis.link import Link
from matador.transports.redis.opening import Opener
from matador.transports.redis.url import parse_url

log = logging.getLogger("matador.transports.redis")

_DEFAULTS = {"lease": 30.0, "timeout": 10.0, "heartbeat": 5.0}


class ServerTransport:
    """A transport that lives on a Redis server. See ``RedisTransport`` for the arguments."""

    _keeps = True
    """Are messages stored on the server?"""

    def __init__(
        self,
        url: str,
        *,
        lease: Seconds | None = None,
        timeout: Seconds | None = None,
        heartbeat: Seconds | None = None,
        prefix: str | None = None,
        name: str = "redis",
    ) -> None:
        given = parse_url(url)
        options = {**_DEFAULTS, **given.options}

        def chosen(name: str, value: Seconds | None) -> float:
            return seconds(options[name] if value is None else value, name, minimum=0.1)

        self._lease = chosen("lease", lease)
        self._heartbeat = chosen("heartbeat", heartbeat)
        self._prefix = prefix or given.prefix or "matador"
        self._name = name
        # How long a read waits on the server: a dead connection must not go unnoticed meanwhile.
        self._block = self._heartbeat / 2
        self._observers: list[TransportObserver] = []
        self._connecting = asyncio.Lock()
        self._opener = Opener(
            given,
            name=f"matador-{name}",
            timeout=chosen("timeout", timeout),
            heartbeat=self._heartbeat,
        )
        self._link = Link(self._opener, restore=self._restore, on_state=self._tell)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._link.where!r}, {self.state.status})"

    @property
    def name(self) -> str:
        """See ``Transport``."""
        return self._name

    @property
    def state(self) -> ConnectionState:
        """See ``Transport``."""
        return self._link.state

    def observe(self, observer: TransportObserver) -> None:
        """See ``Transport``."""
        self._observers.append(observer)

    async def connect(self) -> None:
        """See ``Transport``."""
        async with self._connecting:
            await self._link.start()

    async def disconnect(self) -> None:
        """See ``Transport``. What is still held goes to others when its lease has passed."""
        async with self._connecting:
            await self._before_disconnect()
            await self._link.stop()

    async def examine(self) -> Sequence[Finding]:
        """See ``Examining``: the version, what happens when the memory is full, the disk."""
        return await examine(self._link, keeps=self._keeps)

    async def _before_disconnect(self) -> None:
        """Close what needs the connection."""

    async def _restore(self, channel: Channel) -> None:
        """Bring back on a new connection what the server may have lost."""

    def _tell(self, state: ConnectionState) -> None:
        for observer in self._observers:
            observer.connection_changed(self._name, state)

    def _key(self, queue: str) -> str:
        return key_of(self._prefix, queue)


async def restore_each(queues: Iterable[str], declare: Callable[[str], Awaitable[None]]) -> None:
    """Declare queues on a new connection; one that cannot be (a full server) stops no other.

    Raises:
        TransportError: the connection is of no use.
    """

    async def restore(queue: str) -> None:
        try:
            await declare(queue)
        except (NotConnectedError, ConnectionFailedError, SendUnconfirmedError):
            raise
        except TransportError as error:
            log.error("%s cannot be declared again, going on without: %s", queue, error)

    await asyncio.gather(*map(restore, queues))


def consumer_name(lease: float) -> str:
    """A name nobody else has, and that tells who it is in ``XINFO CONSUMERS``.

    It ends with the lease in milliseconds: others go by it before they claim what this one holds.
    """
    who = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return f"{who}~{round(lease * 1000)}"
