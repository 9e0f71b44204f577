"""One in-memory transport per URL and event loop, shared by its users."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from matador.transports.memory.transport import MemoryTransport

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, MemoryTransport]] = (
    WeakKeyDictionary()
)


def shared_memory(url: str) -> MemoryTransport:
    """The in-memory transport of this event loop for a URL, so that its users share messages.

    Raises:
        RuntimeError: there is no running event loop.
    """
    found = _shared.setdefault(asyncio.get_running_loop(), {})
    if url not in found:
        found[url] = MemoryTransport.from_url(url)
    return found[url]
