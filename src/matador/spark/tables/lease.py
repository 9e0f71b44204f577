"""A lease: keeps other processes from doing the same work, in a store that has no locks.

It is the number of a transaction in a small Delta table: the time until which it is held. Its
holder renews it. If the holder dies, the lease ends by itself. The clocks of the machines may
differ by less than half a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from typing import Self

from matador.errors import StorageLockedError
from matador.spark.runtime.arrow import pa
from matador.spark.tables.delta import CommitConflictError, DeltaTable
from matador.storage import Storage

log = logging.getLogger("matador.lake")

HELD_UNTIL = "matador.lease"
"""The application whose transaction has the expiry time: milliseconds since 1970."""

LENGTH = 60.0
"""Seconds for which a lease is held without being renewed."""

_COLUMNS = pa.schema([pa.field("holder", pa.string())])


class Lease:
    """The lease of a folder. A context manager, used once.

    Raises:
        StorageLockedError: on entry, another process holds it.
    """

    def __init__(self, folder: Storage, *, length: float = LENGTH) -> None:
        self._folder = folder
        self._table = DeltaTable(folder, "lease", _COLUMNS, partitioned=False)
        self._length = length
        self._until = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="matador-lease", daemon=True)
        self.is_lost = False

    def __enter__(self) -> Self:
        self._table.open()
        while True:
            held_until = self._table.transaction(HELD_UNTIL) or 0
            if held_until > _now():
                raise StorageLockedError(
                    f"another process is writing to {self._folder.root}; if it has died, this is "
                    f"free at {datetime.fromtimestamp(held_until / 1000, UTC):%H:%M:%S} UTC"
                )
            try:
                self._note(_now() + int(self._length * 1000))
                break
            except CommitConflictError:
                continue  # another process was faster to take or release it
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()
        if not self.is_lost:
            try:
                self._note(_now())
            except Exception as error:  # noqa: BLE001 - it ends by itself
                log.warning("cannot give the lease of %s back: %s", self._folder.root, error)

    def check(self) -> None:
        """Raise ``StorageLockedError`` if the lease was lost."""
        if self.is_lost:
            raise StorageLockedError(
                f"this process was stopped for too long, and another one may write to "
                f"{self._folder.root} now; start again to continue"
            )

    def _renew(self) -> None:
        while not self._ended.wait(self._length / 4):
            try:
                if self._table.refresh().transaction(HELD_UNTIL) == self._until:
                    self._note(_now() + int(self._length * 1000))
                    continue
            except CommitConflictError:
                continue  # the next read shows the holder
            except Exception as error:  # noqa: BLE001 - the store may answer next time
                if _now() < self._until:
                    log.warning("cannot renew the lease of %s: %s", self._folder.root, error)
                    continue
            self.is_lost = True
            log.error("the lease of %s is lost", self._folder.root)
            return

    def _note(self, until: int) -> None:
        self._table.commit((), (), {HELD_UNTIL: until})
        self._until = until


def _now() -> int:
    return time.time_ns() // 1_000_000
