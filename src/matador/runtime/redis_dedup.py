"""Duplicate detection over all processes: the keys are stored in Redis."""

from __future__ import annotations


class RedisDuplicateStore:
    """Remembers keys in a Redis server, for all processes. Needs the extra ``redis``.

    The server deletes expired keys. A lost connection is restored; calls fail with a
    ``TransportError`` meanwhile.

    Args:
        url: as for ``RedisTransport``; it may be the same server.
        prefix: the prefix of all keys.

    Raises:
        MissingExtraError: the client library is not installed.
        ConfigurationError: the address is malformed.

    Example:
        >>> store = RedisDuplicateStore("redis://localhost")
        >>> once = Deduplicator(Deduplication(ttl=3600, store=store))
    """

    def __init__(self, url: str, *, prefix: str | None = None) -> None:
        # Imported here, so that only this store needs the library.
        from matador.transports.redis.stores import DuplicateRows

        self._rows = DuplicateRows(url, prefix=prefix)

    def __repr__(self) -> str:
        return f"RedisDuplicateStore({self._rows.where})"

    async def open(self) -> None:
        """Raises ``ConnectionFailedError`` if there is no such server."""
        await self._rows.open()

    async def close(self) -> None:
        await self._rows.close()

    async def begin(self, key: str, owner: str, lease: float) -> bytes | bool:
        found: bytes | int = await self._rows.run("begin", key, owner, lease)
        return found if isinstance(found, bytes) else bool(found)

    async def finish(self, key: str, owner: str, result: bytes, ttl: float) -> bool:
        return bool(await self._rows.run("finish", key, owner, ttl, result))

    async def forget(self, key: str, owner: str) -> None:
        await self._rows.run("forget", key, owner)

    async def clear(self) -> None:
        await self._rows.clear()
