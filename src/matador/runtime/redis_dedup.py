"""Duplicates by way of Redis: known to all processes, on as many machines as there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matador.errors import NotConnectedError
from matador.runtime.dedup import Begun

if TYPE_CHECKING:
    from matador.transports.redis.stores import DuplicateRows


class RedisDuplicateStore:
    """Remembers keys in a Redis server, for a whole fleet. Needs the extra ``redis``.

    The server forgets keys by itself when their time has passed. The connection is made again when
    it is lost; what is asked meanwhile fails with an error of transports.

    Args:
        url: as for ``RedisTransport``; it may be the same server.
        prefix: what the names of all keys begin with.

    Example:
        >>> once = Deduplicator(RedisDuplicateStore("redis://localhost"), ttl=3600)
    """

    def __init__(self, url: str, *, prefix: str | None = None) -> None:
        self._url = url
        self._prefix = prefix
        self._rows: DuplicateRows | None = None

    def __repr__(self) -> str:
        where = "not open" if self._rows is None else self._rows.where
        return f"RedisDuplicateStore({where})"

    async def open(self) -> None:
        """See ``DuplicateStore``.

        Raises:
            MissingExtraError: the client library is not installed.
            ConnectionFailedError: the server cannot be reached.
        """
        if self._rows is not None:
            return
        # Here, so that nobody else needs the library.
        from matador.transports.redis.stores import DuplicateRows

        rows = DuplicateRows(self._url, prefix=self._prefix)
        await rows.open()
        self._rows = rows

    async def close(self) -> None:
        """See ``DuplicateStore``."""
        rows, self._rows = self._rows, None
        if rows is not None:
            await rows.close()

    async def begin(self, key: str, owner: str, lease: float) -> Begun:
        """See ``DuplicateStore``."""
        standing, *result = await self._opened.begin(key, owner, lease)
        if standing == b"done":
            return Begun("done", result[0])
        return Begun("new" if standing == b"new" else "running")

    async def hold(self, key: str, owner: str, lease: float) -> bool:
        """See ``DuplicateStore``."""
        return await self._opened.hold(key, owner, lease)

    async def finish(self, key: str, owner: str, result: bytes, ttl: float) -> bool:
        """See ``DuplicateStore``."""
        return await self._opened.finish(key, owner, result, ttl)

    async def forget(self, key: str, owner: str) -> None:
        """See ``DuplicateStore``."""
        await self._opened.forget(key, owner)

    @property
    def _opened(self) -> DuplicateRows:
        if self._rows is None:
            raise NotConnectedError(f"{self!r}: open it first")
        return self._rows
