"""Duplicate detection: its options, and the protocol of the store of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from matador.model.arguments import check_arguments
from matador.model.options import Seconds, seconds, whole_number


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """The part of a message that is passed to the key function of ``Deduplication``.

    Attributes:
        id: its id, the same in every attempt.
        name: the key of an event, the name of a job, the command of a call, or a routing key.
        queue: the full name of the queue that it is in.
        data: the payload: of an event in its type, of other messages as plain data.
        headers: its headers, and the metadata of an event or a job.
        correlation_id: the correlation id.

    Example:
        >>> Deduplication(key=lambda message: message.headers["x-request-id"])
    """

    id: str
    name: str
    queue: str
    data: Any
    headers: Mapping[str, Any]
    correlation_id: str | None = None


class DuplicateStore(Protocol):
    """Remembers keys for a limited time. Implement it to share keys in another store.

    Every call is atomic. ``owner`` identifies one run of the work.
    """

    async def open(self) -> None:
        """Called once before use."""
        ...

    async def close(self) -> None:
        """Called once after use."""
        ...

    async def begin(self, key: str, owner: str, lease: float) -> bytes | bool:
        """Hold a key for ``lease`` seconds from now: True if it was new, or held by ``owner``.

        False if another owner holds it, and its result if the work is done.
        """
        ...

    async def finish(self, key: str, owner: str, result: bytes, ttl: float) -> bool:
        """Keep a result for ``ttl`` seconds. False: another owner finished first, and its result is
        kept."""
        ...

    async def forget(self, key: str, owner: str) -> None:
        """Delete a key, if ``owner`` still holds it."""
        ...

    async def clear(self) -> None:
        """Delete all keys."""
        ...


@dataclass(frozen=True, slots=True)
class Deduplication:
    """The options of duplicate detection. Immutable, and checked when it is made.

    Args:
        ttl: seconds for which a result is kept.
        max_keys: how many keys a process remembers; those unused for longest are dropped first. A
            store of your own has its own limit.
        key: returns the key of a message, a ``KeyedMessage``. By default, and if it raises an
            error, the key is the id of the message, or the SHA-256 hash of its body if there is no
            id.
        store: remembers the keys; this process by default.

    Raises:
        ConfigurationError: an option is invalid.

    Example:
        >>> Deduplication(ttl=3600, key=lambda message: message.data["order"]).max_keys
        10000
    """

    ttl: Seconds = 300.0
    max_keys: int = 10_000
    key: Callable[[KeyedMessage], object] | None = None
    store: DuplicateStore | None = None

    def __post_init__(self) -> None:
        checked = seconds(self.ttl, "Deduplication: ttl", minimum=0.001)
        object.__setattr__(self, "ttl", checked)
        whole_number(self.max_keys, "Deduplication: max_keys", minimum=1)
        check_arguments("Deduplication", store=self.store)
