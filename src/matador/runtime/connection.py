"""The connection of a service: a transport object or a URL, and its users."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from matador.errors import (
    ConfigurationError,
    ConnectionFailedError,
    LifecycleError,
    NotStartedError,
)
from matador.model.message import TopologyNote
from matador.model.topology import Topology
from matador.policy.recovery import Recovery
from matador.runtime.deadline import GRACE, Deadline
from matador.transports.base import Transport, TransportObserver
from matador.transports.credentials import without_secrets
from matador.transports.kit.backoff import Backoff
from matador.transports.urls import transport_from_url

log = logging.getLogger("matador")


class Connection:
    """A transport that services share.

    A transport object belongs to the caller: it is connected, but disconnected only with
    ``owned=True``. A transport made from a URL is disconnected with its last user. All users of
    ``memory://`` in one event loop share one transport, so that they exchange messages.

    Args:
        given: a URL or a transport.
        where: the owner, for errors.
        recovery: how a transport that is made from a URL reconnects.
        owned: whether the transport is disconnected with its last user. None: if it was made from
            a URL.

    Raises:
        ConfigurationError: it is neither, or the URL is malformed.
    """

    def __init__(
        self,
        given: str | Transport,
        where: str,
        *,
        recovery: Recovery | None = None,
        owned: bool | None = None,
    ) -> None:
        self._where = where
        self._made_with = given, recovery, owned
        self._url: str | None = None
        self._transport: Transport | None = None
        if isinstance(given, Transport):
            self._transport = given
        elif not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(
                f"{where}: give a URL or a transport, got {without_secrets(repr(given))}"
            )
        elif is_memory(given) and owned is None:
            self._url, owned = given, False  # found in the event loop that opens it
        else:
            options: dict[str, Any] = {}
            is_file = given.lower().startswith("sqlite:")
            if recovery is not None and recovery.reconnect and not is_file:
                options["reconnect"] = recovery.reconnect
            self._transport = transport_from_url(given, **options)
        self._owned = isinstance(given, str) if owned is None else owned
        self._users: dict[int, Callable[[], None]] = {}
        self._noted: set[TopologyNote] = set()

    def another(self) -> Connection:
        """A connection for another event loop: a separate one if it was made with a URL.

        Raises:
            LifecycleError: it was made with a transport object, which is connected now.
        """
        given, recovery, owned = self._made_with
        used = self.given
        if used and not used.capabilities.in_process and used.state.status != "disconnected":
            raise LifecycleError(
                f"{self._where}: its transport object is connected already, in another event loop "
                f"or process; give a URL, so that each has its own connection"
            )
        return Connection(given, self._where, recovery=recovery, owned=owned)

    @property
    def given(self) -> Transport | None:
        """The transport object that was given, if this connection does not disconnect it."""
        return None if self._owned or self._url is not None else self._transport

    @property
    def transport(self) -> Transport:
        """The transport.

        Raises:
            NotStartedError: it is an in-memory transport that is not open yet.
        """
        if self._transport is None:
            raise NotStartedError(f"{self._where} has not been started")
        return self._transport

    @property
    def is_known(self) -> bool:
        """Whether the transport is known yet."""
        return self._transport is not None

    async def open(self, user: TransportObserver, timeout: float = 0.0) -> Transport:
        """Connect, and notify ``user`` about the connection until it calls ``close``.

        ``timeout``: seconds for which to retry if the broker cannot be reached.

        Raises:
            ConnectionFailedError: the broker cannot be reached, or refuses.
        """
        if self._url is not None:
            from matador.transports.memory import shared_memory  # the adapter loads on first use

            self._transport = shared_memory(self._url)
        transport = self.transport
        if id(user) not in self._users:
            self._users[id(user)] = transport.observe(user)
        try:
            await connect_within(transport, timeout)
        except BaseException:
            self._users.pop(id(user))()
            raise
        return transport

    async def apply(self, topology: Topology) -> Sequence[TopologyNote]:
        """Create what is missing on the broker. Logs once what it does not support."""
        notes = await self.transport.apply_topology(topology)
        for note in notes:
            if note not in self._noted:
                self._noted.add(note)
                queue = "" if note.queue is None else f"{note.queue}: "
                log.warning("%s: topology: %s%s", self._where, queue, note.text)
        return notes

    async def close(
        self,
        user: TransportObserver,
        deadline: Deadline | None = None,
        *,
        disconnect: bool = False,
    ) -> None:
        """Release the connection for ``user``. The last user of an owned transport disconnects it.

        Takes a few seconds at most, or until ``deadline``.
        """
        unobserve = self._users.pop(id(user), None)
        try:
            if self._transport is not None and (disconnect or (self._owned and not self._users)):
                deadline = deadline or Deadline(GRACE, self._where)
                await deadline.do_last(self._transport.disconnect(), "disconnect")
        finally:
            if unobserve is not None:
                unobserve()


async def connect_within(transport: Transport, timeout: float) -> None:
    """Connect a transport, and try again for ``timeout`` seconds.

    Raises:
        ConnectionFailedError: the broker cannot be reached, or refuses.
    """
    until = asyncio.get_running_loop().time() + timeout
    pauses = Backoff(0.1, 2.0)
    while True:
        try:
            await transport.connect()
            return
        except ConnectionFailedError as error:
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                raise
            pause = min(pauses.next(), left)
            log.warning("%s; trying again for %.0f s", error, left)
        await asyncio.sleep(pause)


def is_memory(url: str) -> bool:
    """Whether it is the URL of an in-memory transport."""
    return url.lower().startswith("memory:")
