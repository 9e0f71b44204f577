"""Checkpoints in Redis: shared by all worker processes, on as many machines as there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from matador.errors import CheckpointStoreError, TransportError
from matador.model.options import Seconds, seconds

if TYPE_CHECKING:
    from matador.transports.redis.stores import CheckpointRows

_LONGEST = 30 * 86400.0


class RedisCheckpointStore:
    """Keeps steps in a Redis server, one hash an envelope. Needs the extra ``redis``.

    A step is as safe as the server: switch its append-only file on (``matador doctor`` looks).
    The connection is made again when it is lost. Safe to use from several processes at once.

    Args:
        url: as for ``RedisTransport``; it may be the same server.
        ttl: seconds after its last step for which a checkpoint is kept that nobody cleared.
        prefix: what the names of all keys begin with.

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
        # Here, so that nobody else needs the library.
        from matador.transports.redis.stores import CheckpointRows

        rows = CheckpointRows(self._url, prefix=self._prefix)
        try:
            await rows.open()
        except TransportError as error:
            raise CheckpointStoreError(str(error)) from error
        self._rows = rows

    async def close(self) -> None:
        """See ``CheckpointStore``."""
        rows, self._rows = self._rows, None
        if rows is not None:
            await rows.close()

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        """See ``CheckpointStore``."""
        rows = self._opened
        try:
            return await rows.load(envelope_id)
        except TransportError as error:
            raise CheckpointStoreError(str(error)) from error

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        """See ``CheckpointStore``."""
        rows = self._opened
        try:
            await rows.save(envelope_id, step, value, self._ttl)
        except TransportError as error:
            raise CheckpointStoreError(str(error)) from error

    async def keep(self, envelope_id: str, ttl: float) -> None:
        """See ``CheckpointStore``. The server's clock counts."""
        rows = self._opened
        try:
            await rows.keep(envelope_id, ttl)
        except TransportError as error:
            raise CheckpointStoreError(str(error)) from error

    async def delete(self, envelope_id: str) -> None:
        """See ``CheckpointStore``."""
        rows = self._opened
        try:
            await rows.delete(envelope_id)
        except TransportError as error:
            raise CheckpointStoreError(str(error)) from error

    @property
    def _opened(self) -> CheckpointRows:
        if self._rows is None:
            raise CheckpointStoreError(f"{self!r}: open it first")
        return self._rows
