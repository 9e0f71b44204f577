"""Where resumable subscribers keep the results of their steps between attempts.

A checkpoint belongs to one envelope, by its id, which retries and redrives keep. It is cleared once
the message is settled as done, and kept for a limited time while the message is a dead letter, so
that a redrive does not repeat what was done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from matador.transports.clock import Clock, SystemClock

DEAD_LETTER_TTL = 7 * 86400.0
"""Seconds for which the checkpoint of a dead letter is kept: seven days."""


class CheckpointStore(Protocol):
    """Keeps step results. Implement it to keep them elsewhere.

    Values are bytes that the store does not look into. ``save`` must be durable when it returns.
    Errors may be of any kind; they are raised as ``CheckpointStoreError`` to the subscriber.
    """

    @property
    def persistent(self) -> bool:
        """Does what is saved survive until the next attempt?"""
        ...

    async def open(self) -> None:
        """Called once before use."""
        ...

    async def close(self) -> None:
        """Called once after use."""
        ...

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        """All stored steps of an envelope, empty if there are none."""
        ...

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        """Store the result of a step; one stored before is replaced."""
        ...

    async def keep(self, envelope_id: str, ttl: float) -> None:
        """Keep the steps of an envelope for ``ttl`` seconds from now, then forget them."""
        ...

    async def delete(self, envelope_id: str) -> None:
        """Forget the steps of an envelope; it is no error if there are none."""
        ...


class NoCheckpointStore:
    """Keeps nothing: ``io()`` works, but every attempt starts from the beginning. The default."""

    persistent = False

    async def open(self) -> None:
        """See ``CheckpointStore``."""

    async def close(self) -> None:
        """See ``CheckpointStore``."""

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        """See ``CheckpointStore``."""
        return {}

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        """See ``CheckpointStore``."""

    async def keep(self, envelope_id: str, ttl: float) -> None:
        """See ``CheckpointStore``."""

    async def delete(self, envelope_id: str) -> None:
        """See ``CheckpointStore``."""


class MemoryCheckpointStore:
    """Keeps steps in this process: for tests, and for subscribers that may forget on a crash.

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
        """Forget everything."""
        self._steps.clear()
        self._expiry.clear()

    async def open(self) -> None:
        """See ``CheckpointStore``."""

    async def close(self) -> None:
        """See ``CheckpointStore``. What is stored stays, for the next application."""

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        """See ``CheckpointStore``."""
        self._expire()
        return dict(self._steps.get(envelope_id, {}))

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        """See ``CheckpointStore``."""
        self._steps.setdefault(envelope_id, {})[step] = value
        self._expiry.pop(envelope_id, None)  # it is being worked on again

    async def keep(self, envelope_id: str, ttl: float) -> None:
        """See ``CheckpointStore``."""
        if envelope_id in self._steps:
            self._expiry[envelope_id] = self._clock.time() + ttl

    async def delete(self, envelope_id: str) -> None:
        """See ``CheckpointStore``."""
        self._steps.pop(envelope_id, None)
        self._expiry.pop(envelope_id, None)

    def _expire(self) -> None:
        if not self._expiry:
            return
        now = self._clock.time()
        for envelope_id in [key for key, due in self._expiry.items() if due <= now]:
            self._steps.pop(envelope_id, None)
            del self._expiry[envelope_id]
