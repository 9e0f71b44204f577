"""Checkpoints in Redis: shared by all worker processes, on any number of machines."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from matador.errors import CheckpointStoreError, TransportError
from matador.model.options import Seconds, seconds

if TYPE_CHECKING:
    from matador.transports.redis.stores import CheckpointRows

_LONGEST = 30 * 86400.0


class RedisCheckpointStore:
    """Stores steps in Redis, one hash per envelope. Needs the extra ``redis``.

    Steps are as durable as the server: enable its append-only file (``matador doctor`` checks it).
    A lost connection is restored. Safe to use from several processes.

    Args:
        url: as for ``RedisTransport``; it may be the same server.
        ttl: seconds after the last step until an abandoned checkpoint expires.
        prefix: the prefix of all keys.

    Example:
        >>> store = RedisCheckpointStore("redis://localhost", ttl=86400)
        >>> app = Matador("redis://localhost", schema=schema, checkpoints=store)
    """

    persistent = True

    def __init__(self, url: str, *, ttl: Seconds = _LONGEST, prefix: str | None = None) -> None:
        self._url = url
        self._ttl = seconds(ttl, "RedisCheckpointStore: ttl", minimum=0.001)
        self._prefix = prefix
        self._rows: CheckpointRows | None = None

    def __repr__(self) -> str:
        where = "not open" if self._rows is None else self._rows.where
        return f"RedisCheckpointStore({where})"

    async def open(self) -> None:
        """See ``CheckpointStore``.

        Raises:
            MissingExtraError: the client library is not installed.
            CheckpointStoreError: the server cannot be reached.
        """
        if self._rows is not None:
            return
        # Imported here, so that only this store needs the library.
        from matador.transports.redis.stores import CheckpointRows

        rows = CheckpointRows(self._url, prefix=self._prefix)
        with _translated():
            await rows.open()
        self._rows = rows

    async def close(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            await rows.close()

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        with _translated():
            return await self._opened.load(envelope_id)

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        with _translated():
            await self._opened.save(envelope_id, step, value, self._ttl)

    async def keep(self, envelope_id: str, ttl: float) -> None:
        """Uses the clock of the server."""
        with _translated():
            await self._opened.keep(envelope_id, ttl)

    async def delete(self, envelope_id: str) -> None:
        with _translated():
            await self._opened.delete(envelope_id)

    @property
    def _opened(self) -> CheckpointRows:
        if self._rows is None:
            raise CheckpointStoreError(f"{self!r}: open it first")
        return self._rows


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except TransportError as error:
        raise CheckpointStoreError(str(error)) from error
