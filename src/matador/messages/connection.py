"""The connection of a client, server, publisher or subscriber: whose it is, and who ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from matador.errors import ConfigurationError, NotStartedError
from matador.model.message import TopologyNote
from matador.model.topology import Topology
from matador.policy.recovery import Recovery
from matador.runtime.deadline import GRACE, Deadline
from matador.transports.base import Transport, TransportObserver
from matador.transports.memory import MemoryTransport
from matador.transports.urls import transport_from_url

log = logging.getLogger("matador.messages")

_in_memory: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, MemoryTransport]] = (
    WeakKeyDictionary()
)


class Connection:
    """A transport, given by itself or by its URL.

    A transport that was given belongs to whoever gave it, who may share it: it is connected, and
    never disconnected. One that was made from a URL is disconnected by ``close``. All that use
    ``memory://`` in one event loop share one transport, so that they find each other.

    Args:
        given: a URL or a transport.
        where: the owner, for errors.
        recovery: how a transport that is made from a URL reconnects.
    """

    def __init__(
        self, given: str | Transport, where: str, recovery: Recovery | None = None
    ) -> None:
        if not isinstance(given, str | Transport):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"{where}: url must be a URL or a transport, got {given!r}")
        self._given = given
        self._where = where
        self._recovery = recovery
        self._transport: Transport | None = None
        self._notes: set[TopologyNote] = set()
        if isinstance(given, str) and not _is_memory(given):
            self._made(given)  # a wrong URL is an error at once, not when it is first used

    @property
    def transport(self) -> Transport:
        """The transport.

        Raises:
            NotStartedError: ``open`` was not called.
        """
        if self._transport is None:
            raise NotStartedError(f"{self._where} has not been started")
        return self._transport

    @property
    def owned(self) -> bool:
        """Is the transport disconnected by ``close``?"""
        return isinstance(self._given, str) and not _is_memory(self._given)

    async def open(self, observer: TransportObserver | None = None) -> Callable[[], None]:
        """Connect, and tell ``observer`` about it until the returned function is called.

        Raises:
            ConnectionFailedError: the broker cannot be reached, or refuses.
        """
        given = self._given
        if isinstance(given, Transport):
            transport = given
        elif _is_memory(given):
            transport = _shared_memory(given)
        else:
            transport = self._made(given)
        end = transport.observe(observer) if observer is not None else lambda: None
        try:
            await transport.connect()
        except BaseException:
            end()
            raise
        self._transport = transport
        return end

    async def apply(self, topology: Topology) -> Sequence[TopologyNote]:
        """Create what is missing on the broker, and log once what it does not support."""
        notes = await self.transport.apply_topology(topology)
        for note in notes:
            if note not in self._notes:
                self._notes.add(note)
                queue = "" if note.queue is None else f"{note.queue}: "
                log.warning("%s: %s%s", self._where, queue, note.text)
        return notes

    async def close(self, deadline: Deadline | None = None) -> None:
        """Disconnect, if the transport is its own; in a few seconds, or by the deadline."""
        transport, self._transport = self._transport, None
        if transport is not None and self.owned:
            deadline = deadline or Deadline(GRACE, self._where)
            await deadline.do_last(transport.disconnect(), "disconnect")

    def _made(self, url: str) -> Transport:
        options: dict[str, Any] = {}
        if self._recovery is not None and _reconnects(url):
            options["reconnect"] = self._recovery.reconnect
        return transport_from_url(url, **options)


def _is_memory(url: str) -> bool:
    return url.lower().startswith("memory:")


def _reconnects(url: str) -> bool:
    scheme = url.partition("://")[0].lower()
    return scheme in ("amqp", "amqps") or scheme.startswith("redis")


def _shared_memory(url: str) -> MemoryTransport:
    """One for all that use this URL in this event loop."""
    found = _in_memory.setdefault(asyncio.get_running_loop(), {})
    if url not in found:
        found[url] = MemoryTransport.from_url(url)
    return found[url]
