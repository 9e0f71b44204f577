"""One transport in memory for all that use the same URL in an event loop."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from matador.transports.memory.transport import MemoryTransport

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, MemoryTransport]] = (
    WeakKeyDictionary()
)


def shared_memory(url: str) -> MemoryTransport:
    """The transport in memory of this event loop, so that its users find each other.

    Raises:
        RuntimeError: there is no running event loop.
    """
    found = _shared.setdefault(asyncio.get_running_loop(), {})
    if url not in found:
        found[url] = MemoryTransport.from_url(url)
    return found[url]
