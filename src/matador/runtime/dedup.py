"""Handles the same thing once: the first does the work, the others get its result.

What "the same" is, is for the caller to say, as a key. A key is held while its work runs, for a
lease that is renewed, so that the work of a process that died is done by another one. A result is
kept for a limited time, and what failed is forgotten at once: it may be tried again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from matador.model.options import Seconds, seconds, whole_number
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.duplicates")

_RENEWALS = 3  # a lease is renewed so many times before it would pass
_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.25  # seconds between looks at work in another process

Standing: TypeAlias = Literal["new", "running", "done"]


@dataclass(frozen=True, slots=True)
class Begun:
    """What is known of a key: it is new and now held by who asked, another one works, or done."""

    standing: Standing
    result: bytes = b""


class DuplicateStore(Protocol):
    """Remembers keys for a time. Implement it to share them by other means.

    Every call is atomic. ``owner`` is a word for one run of the work, used by nobody else.
    """

    async def open(self) -> None:
        """Called once before use."""
        ...

    async def close(self) -> None:
        """Called once after use."""
        ...

    async def begin(self, key: str, owner: str, lease: float) -> Begun:
        """Hold a new key for ``lease`` seconds, or say how it stands."""
        ...

    async def hold(self, key: str, owner: str, lease: float) -> bool:
        """Hold a key for another lease from now; False: another one holds it, or it is done."""
        ...

    async def finish(self, key: str, owner: str, result: bytes, ttl: float) -> bool:
        """Keep a result for ``ttl`` seconds; False: another one was quicker, and its counts."""
        ...

    async def forget(self, key: str, owner: str) -> None:
        """Let the key be new again, if it is still held by ``owner``."""
        ...


@dataclass(slots=True)
class _Entry:
    until: float
    owner: str | None
    result: bytes = b""


class MemoryDuplicateStore:
    """Remembers the keys of this process, the most recently used ones. The default.

    Args:
        max_keys: so many at most; those unused for longest go first, but none that is held.
        clock: tells the time.
    """

    def __init__(self, *, max_keys: int = 10_000, clock: Clock | None = None) -> None:
        self._most = whole_number(max_keys, "MemoryDuplicateStore: max_keys", minimum=1)
        self._clock = clock or SystemClock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    async def open(self) -> None:
        """See ``DuplicateStore``."""

    async def close(self) -> None:
        """See ``DuplicateStore``."""

    async def begin(self, key: str, owner: str, lease: float) -> Begun:
        """See ``DuplicateStore``."""
        entry = self._found(key)
        if entry is not None and entry.owner is None:
            return Begun("done", entry.result)
        if entry is not None and entry.owner != owner:
            return Begun("running")
        self._put(key, _Entry(self._clock.monotonic() + lease, owner))
        return Begun("new")

    async def hold(self, key: str, owner: str, lease: float) -> bool:
        """See ``DuplicateStore``."""
        if not self._is_free_for(key, owner):
            return False
        self._put(key, _Entry(self._clock.monotonic() + lease, owner))
        return True

    async def finish(self, key: str, owner: str, result: bytes, ttl: float) -> bool:
        """See ``DuplicateStore``."""
        if not self._is_free_for(key, owner):
            return False
        self._put(key, _Entry(self._clock.monotonic() + ttl, None, result))
        return True

    async def forget(self, key: str, owner: str) -> None:
        """See ``DuplicateStore``."""
        if self._is_free_for(key, owner):
            self._entries.pop(key, None)

    def _found(self, key: str) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.until <= self._clock.monotonic():
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry

    def _is_free_for(self, key: str, owner: str) -> bool:
        entry = self._found(key)
        return entry is None or entry.owner == owner

    def _put(self, key: str, entry: _Entry) -> None:
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self._entries) > self._most:
            oldest = next((one for one in self._entries if self._may_go(one)), None)
            if oldest is None:
                return  # all are held: they are as many as run at once
            del self._entries[oldest]

    def _may_go(self, key: str) -> bool:
        entry = self._entries[key]
        return entry.owner is None or entry.until <= self._clock.monotonic()


@dataclass(frozen=True, slots=True)
class Handled:
    """The result of some work, and whether it was done before or by another one."""

    result: bytes
    duplicate: bool


class Deduplicator:
    """Runs work once a key, here and wherever the store is shared.

    Args:
        store: what remembers; of this process by default.
        ttl: seconds for which a result is kept.
        lease: seconds after which the work of a process that died is begun by another.
        sleep: how time is passed.

    Example:
        >>> once = Deduplicator(ttl=3600)
        >>> handled = await once.run("order-7", charge)
        >>> handled.duplicate
        False
    """

    def __init__(
        self,
        store: DuplicateStore | None = None,
        *,
        ttl: Seconds = 300.0,
        lease: Seconds = 30.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sleep = sleep
        self._store: DuplicateStore = MemoryDuplicateStore() if store is None else store
        self._ttl = seconds(ttl, "Deduplicator: ttl", minimum=0.001)
        self._lease = seconds(lease, "Deduplicator: lease", minimum=0.1)
        self._running: dict[str, asyncio.Future[bytes]] = {}

    async def open(self) -> None:
        """Open the store."""
        await self._store.open()

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    async def run(self, key: str, work: Callable[[], Awaitable[bytes]]) -> Handled:
        """The result of ``work`` for a key, which is run unless it was or is being run.

        Duplicates in this process share its exception, too; those in others run it themselves then.
        If the one who runs it is cancelled, one of those who wait runs it.
        """
        while (running := self._running.get(key)) is not None:
            await asyncio.wait([running])
            if not running.cancelled():
                return Handled(running.result(), duplicate=True)
        mine: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._running[key] = mine
        try:
            handled = await self._run(key, work)
        except asyncio.CancelledError:
            mine.cancel()
            raise
        except BaseException as error:
            mine.set_exception(error)
            mine.exception()  # looked at: nobody else may be waiting
            raise
        else:
            mine.set_result(handled.result)
            return handled
        finally:
            del self._running[key]

    async def _run(self, key: str, work: Callable[[], Awaitable[bytes]]) -> Handled:
        owner = uuid.uuid4().hex
        pause = _FIRST_LOOK
        while True:
            begun = await self._store.begin(key, owner, self._lease)
            if begun.standing == "done":
                return Handled(begun.result, duplicate=True)
            if begun.standing == "new":
                break
            await self._sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK)
        holding = asyncio.create_task(self._hold(key, owner))
        try:
            result = await work()
        except BaseException:
            await _ended(holding)
            await self._store.forget(key, owner)
            raise
        await _ended(holding)
        if not await self._store.finish(key, owner, result, self._ttl):
            log.warning("%s: another one did the same meanwhile; its result is kept", key)
        return Handled(result, duplicate=False)

    async def _hold(self, key: str, owner: str) -> None:
        while True:
            await self._sleep(self._lease / _RENEWALS)
            try:
                kept = await self._store.hold(key, owner, self._lease)
            except Exception:
                log.warning("%s: could not be held; tried again", key, exc_info=True)
            else:
                if not kept:
                    log.warning("%s: another one does the same, as its lease had passed", key)
                    return


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
