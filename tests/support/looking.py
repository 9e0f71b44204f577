"""A transport to look at queues from outside, with the same messages as the services on its URL."""

from __future__ import annotations

from matador.runtime.connection import is_memory
from matador.transports.base import Transport
from matador.transports.memory import shared_memory
from matador.transports.urls import transport_from_url


async def connected(url: str) -> Transport:
    """A connected transport. One in memory is that of the event loop."""
    transport: Transport = shared_memory(url) if is_memory(url) else transport_from_url(url)
    await transport.connect()
    return transport


async def disconnect(transport: Transport, url: str) -> None:
    """Disconnect a transport, unless services share it."""
    if not is_memory(url):
        await transport.disconnect()
