"""Checkpoint stores: keep the step results of resumable subscribers between attempts.

A checkpoint belongs to the id of an envelope, which retries and redrives keep. It is deleted once
the message is completed. While the message is a dead letter, it is kept for a limited time, so that
a redrive does not repeat completed steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from matador.transports.clock import Clock, SystemClock

DEAD_LETTER_TTL = 7 * 86400.0
"""How long the checkpoint of a dead letter is kept, in seconds: seven days."""


class CheckpointStore(Protocol):
    """Stores step results. Implement it for other storage.

    Values are opaque bytes. They must be durable when ``save`` returns. After an exception the call
    is repeated until the store answers. A ``ValueError``, ``TypeError`` or ``OverflowError`` of
    ``save`` means that it can never store the value: the handler gets a ``CheckpointStoreError``.
    """

    @property
    def persistent(self) -> bool:
        """Whether saved steps are available to the next attempt."""
        ...

    async def open(self) -> None:
        """Called once before use."""
        ...

    async def close(self) -> None:
        """Called once after use."""
        ...

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        """All stored steps of an envelope; empty if there are none."""
        ...

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        """Store the result of a step, replacing an earlier one."""
        ...

    async def keep(self, envelope_id: str, ttl: float) -> None:
        """Delete the steps of an envelope after ``ttl`` seconds."""
        ...

    async def delete(self, envelope_id: str) -> None:
        """Delete the steps of an envelope, if there are any."""
        ...


class NoCheckpointStore:
    """Stores nothing: every attempt starts from the beginning. The default."""

    persistent = False

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        return {}

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        pass

    async def keep(self, envelope_id: str, ttl: float) -> None:
        pass

    async def delete(self, envelope_id: str) -> None:
        pass


class MemoryCheckpointStore(NoCheckpointStore):
    """Stores steps in this process: for tests, or if losing them in a crash is acceptable.

    Example:
        >>> store = MemoryCheckpointStore()
        >>> app = Matador("memory://", schema=schema, checkpoints=store)
    """

    persistent = True

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._steps: dict[str, dict[str, bytes]] = {}
        self._expiry: dict[str, float] = {}

    def __len__(self) -> int:
        self._expire()
        return len(self._steps)

    def __iter__(self) -> Iterator[str]:
        self._expire()
        return iter(list(self._steps))

    def clear(self) -> None:
        """Delete everything."""
        self._steps.clear()
        self._expiry.clear()

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        self._expire()
        return dict(self._steps.get(envelope_id, {}))

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        self._steps.setdefault(envelope_id, {})[step] = value
        self._expiry.pop(envelope_id, None)  # it is being handled again

    async def keep(self, envelope_id: str, ttl: float) -> None:
        if envelope_id in self._steps:
            self._expiry[envelope_id] = self._clock.time() + ttl

    async def delete(self, envelope_id: str) -> None:
        self._steps.pop(envelope_id, None)
        self._expiry.pop(envelope_id, None)

    def _expire(self) -> None:
        if not self._expiry:
            return
        now = self._clock.time()
        for envelope_id in [key for key, due in self._expiry.items() if due <= now]:
            self._steps.pop(envelope_id, None)
            del self._expiry[envelope_id]
