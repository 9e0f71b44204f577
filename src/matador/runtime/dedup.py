"""Runs the work for a key once: the first caller runs it, the others get its result.

A key is held while its work runs, for a lease that is renewed, so that another process takes over
from a dead one. A result is kept for a limited time. Failures are not kept.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TypeVar

from matador.model.options import Seconds, seconds, whole_number
from matador.policy.dedup import Deduplication, KeyedMessage
from matador.runtime.stores import patiently
from matador.transports.clock import Clock, SystemClock
from matador.transports.kit.backoff import Backoff

log = logging.getLogger("matador.duplicates")

T = TypeVar("T")

_RENEWALS = 3  # how often a lease is renewed before it would end
_NOTES = 10  # the number of leases for which a waiting mark is kept
_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.25  # seconds between polls for work in another process
_PATIENCE = 10.0  # seconds until a message goes back to its queue because the store is unavailable


def _mark(delivery: str) -> str:
    """The key that marks a delivery as waiting in the store."""
    return f"waits:{delivery}"


@dataclass(slots=True)
class _Entry:
    until: float
    owner: str | None
    result: bytes = b""


class MemoryDuplicateStore:
    """Remembers keys in this process. The default.

    Beyond ``max_keys``, the least recently used keys are dropped first, but never a held one.
    """

    def __init__(self, *, max_keys: int = 10_000, clock: Clock | None = None) -> None:
        self._most = whole_number(max_keys, "MemoryDuplicateStore: max_keys", minimum=1)
        self._clock = clock or SystemClock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def begin(self, key: str, owner: str, lease: float) -> bytes | bool:
        entry = self._found(key)
        if entry is not None and entry.owner is None:
            return entry.result
        return self._put(key, owner, _Entry(lease, owner))

    async def finish(self, key: str, owner: str, result: bytes, ttl: float) -> bool:
        return self._put(key, owner, _Entry(ttl, None, result))

    async def forget(self, key: str, owner: str) -> None:
        entry = self._found(key)
        if entry is not None and entry.owner == owner:
            del self._entries[key]

    async def clear(self) -> None:
        self._entries.clear()

    def _found(self, key: str) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is None or entry.until <= self._clock.monotonic():
            return None
        self._entries.move_to_end(key)
        return entry

    def _put(self, key: str, owner: str, entry: _Entry) -> bool:
        """Store an entry from now on, unless the key belongs to another owner."""
        found = self._found(key)
        if found is not None and found.owner != owner:
            return False
        now = self._clock.monotonic()
        entry.until += now
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self._entries) > self._most:
            ended = (k for k, e in self._entries.items() if e.owner is None or e.until <= now)
            oldest = next(ended, None)
            if oldest is None:
                break  # all are held, because that many run at the same time
            del self._entries[oldest]
        return True


def in_memory(options: Deduplication | None, clock: Clock) -> Deduplication | None:
    """The same options with a store in memory, for tests."""
    if options is None:
        return None
    return replace(options, store=MemoryDuplicateStore(max_keys=options.max_keys, clock=clock))


@dataclass(frozen=True, slots=True)
class Handled:
    """The result of some work; ``duplicate`` if another call has done it."""

    result: bytes
    duplicate: bool


class Deduplicator:
    """Runs the work for a key once, in all processes that share the store.

    ``runs`` and ``duplicates`` count the calls that ran their work, and those that were duplicates.

    Args:
        options: see ``Deduplication``.
        lease: seconds after which another process takes over from a dead one.
        sleep: sleeps for some seconds.

    Example:
        >>> once = Deduplicator(Deduplication(ttl=3600))
        >>> handled = await once.run("order-7", charge)
    """

    def __init__(
        self,
        options: Deduplication | None = None,
        *,
        lease: Seconds = 30.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._options = options = options or Deduplication()
        self._sleep = sleep
        store = options.store
        self._store = MemoryDuplicateStore(max_keys=options.max_keys) if store is None else store
        self._ttl = seconds(options.ttl, "Deduplication: ttl")
        self._lease = seconds(lease, "Deduplicator: lease", minimum=0.1)
        self._running: dict[str, asyncio.Future[bytes]] = {}
        self.runs = self.duplicates = 0

    async def open(self) -> None:
        """Open the store."""
        await self._store.open()

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    async def clear(self) -> None:
        """Delete all keys."""
        await self._store.clear()

    def key_of(
        self, message_id: str | None, body: bytes, message: Callable[[], KeyedMessage]
    ) -> str:
        """The key of a message: see ``Deduplication.key``."""
        if self._options.key is not None:
            try:
                return str(self._options.key(message()))
            except Exception:
                log.warning("the key function failed; using the message id", exc_info=True)
        return message_id or sha256(body).hexdigest()

    async def waited(self, deliveries: Iterable[str]) -> int:
        """How many of these deliveries ended while they waited for another process.

        Their process died before they ran, so they do not make the message a suspect.

        Raises:
            StoreUnavailableError: the store is unavailable.
        """
        owner, count = uuid.uuid4().hex, 0
        for delivery in deliveries:
            mark = _mark(delivery)
            begun = await self._patiently(
                lambda mark=mark: self._store.begin(mark, owner, self._lease), "look", _PATIENCE
            )
            if begun is True:
                await self._forget(mark, owner)
            count += begun is False
        return count

    async def run(
        self, key: str, work: Callable[[], Awaitable[bytes]], delivery: str | None = None
    ) -> Handled:
        """Run ``work``, or return its result if it has run, or is running, for this key.

        ``delivery`` identifies this delivery of a message, for ``waited``. Duplicates in this
        process share its exception, too; those in others run it themselves. If the call that runs
        it is canceled, one of the waiting calls takes over.
        """
        while (running := self._running.get(key)) is not None:
            await asyncio.wait([running])
            if not running.cancelled():
                self.duplicates += 1
                return Handled(running.result(), duplicate=True)
        mine = self._running[key] = asyncio.get_running_loop().create_future()
        try:
            handled = await self._run(key, work, delivery)
        except asyncio.CancelledError:
            mine.cancel()
            raise
        except BaseException as error:
            mine.set_exception(error)
            mine.exception()  # there may be no other waiter
            raise
        finally:
            del self._running[key]
        mine.set_result(handled.result)
        return handled

    async def _run(
        self, key: str, work: Callable[[], Awaitable[bytes]], delivery: str | None
    ) -> Handled:
        owner = uuid.uuid4().hex
        looks = Backoff(_FIRST_LOOK, _LONGEST_LOOK)

        def begin() -> Awaitable[bytes | bool]:
            return self._store.begin(key, owner, self._lease)

        begun = await self._patiently(begin, "begin", _PATIENCE)
        if begun is False:
            mark = None if delivery is None else await self._note_waiting(delivery, owner)
            try:
                while begun is False:
                    await self._sleep(looks.next())  # until it is done, or its lease has ended
                    begun = await self._patiently(begin, "begin", _PATIENCE)
            finally:
                if mark is not None:
                    await self._forget(mark, owner)
        if begun is not True:
            self.duplicates += 1
            return Handled(begun, duplicate=True)
        self.runs += 1
        holding = asyncio.create_task(self._hold(key, owner))
        try:
            result = await work()
        except BaseException:
            holding.cancel()
            await self._forget(key, owner)
            raise
        holding.cancel()
        await self._finish(key, owner, result)
        return Handled(result, duplicate=False)

    async def _note_waiting(self, delivery: str, owner: str) -> str | None:
        """Mark a delivery as waiting; if its process dies meanwhile, the mark stays."""
        mark = _mark(delivery)
        try:
            await self._store.begin(mark, owner, max(self._ttl, _NOTES * self._lease))
        except Exception as error:  # noqa: BLE001 - it waits nevertheless
            log.warning("%s: could not mark it as waiting: %s", delivery, error)
            return None
        return mark

    async def _finish(self, key: str, owner: str, result: bytes) -> None:
        """Store a result, and wait while the store is unavailable, because the work must not run
        again.

        A worker that has to stop meanwhile acknowledges the message without storing the result.
        """
        try:
            stored = await self._patiently(
                lambda: self._store.finish(key, owner, result, self._ttl), "store a result"
            )
        except asyncio.CancelledError:
            log.error("%s: the result was not stored before the worker stopped", key)
            return
        if not stored:
            log.warning("%s: another process did the same work; its result is kept", key)

    async def _forget(self, key: str, owner: str) -> None:
        try:
            await self._store.forget(key, owner)
        except Exception as error:  # noqa: BLE001 - its lease ends by itself
            log.warning("%s: the key is free again in %g s: %s", key, self._lease, error)

    def _patiently(
        self, call: Callable[[], Awaitable[T]], what: str, limit: float | None = None
    ) -> Awaitable[T]:
        return patiently(call, f"the store of duplicates: {what}", limit, self._sleep)

    async def _hold(self, key: str, owner: str) -> None:
        while True:
            await self._sleep(self._lease / _RENEWALS)
            try:
                kept = await self._store.begin(key, owner, self._lease)
            except Exception:
                log.warning("%s: could not renew the lease; retrying", key, exc_info=True)
            else:
                if kept is not True:
                    log.warning("%s: the lease ended, and another process does the work", key)
                    return
