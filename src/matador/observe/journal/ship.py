"""Ships finished segments of a journal to an object store, or to another folder.

A segment appears in the target completely, under its own name, so shipping it twice does no harm,
and a killed shipper continues where it stopped. A local segment is deleted only on request, and
only after its copy was read back and compared byte by byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from matador.errors import StorageLockedError
from matador.observe.journal.segments import finished, make_folder, open_segment, recover
from matador.storage import Storage
from matador.storage.files import locked

log = logging.getLogger("matador.journal")

LOCK = ".ship.lock"
_BLOCK = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ShipResult:
    """The numbers of segments and bytes that were shipped, were already in the target, and were
    deleted locally."""

    shipped: int = 0
    bytes: int = 0
    present: int = 0
    deleted: int = 0


class Shipper:
    """Ships one journal. Used by one thread; of several processes, one ships at a time.

    ``delete`` removes local segments whose copies are confirmed.
    """

    def __init__(self, folder: Path, target: Storage, *, delete: bool = False) -> None:
        self._folder = folder
        self._target = target
        self._delete = delete
        self._there: dict[str, int] | None = None

    def run(
        self, stop: Callable[[], bool] = lambda: False, progress: Callable[[], None] | None = None
    ) -> ShipResult:
        """Ship all finished segments; ends early, between two segments, if ``stop`` returns True.

        Raises:
            ObjectStoreError: the store cannot be reached or refuses access. Shipped segments stay.
            StorageLockedError: another process ships this journal.
        """
        make_folder(self._folder)
        result = ShipResult()
        with _alone(self._folder):
            recover(self._folder)
            if self._there is None:
                self._there = {one.name: one.size for one in self._target.files()}
            for path in finished(self._folder):
                if stop():
                    break
                result = self._ship(path, result, self._there)
                if progress is not None:
                    progress()
        return result

    def _ship(self, path: Path, result: ShipResult, there: dict[str, int]) -> ShipResult:
        try:
            opened = open_segment(path)
        except FileNotFoundError:
            return result  # removed just now
        except OSError as error:  # the others are shipped nevertheless
            log.error("segment %s cannot be read, and is not shipped: %s", path, error)
            return result
        with os.fdopen(opened, "rb") as source:
            size = os.fstat(source.fileno()).st_size
            if there.get(path.name) == size:
                result = replace(result, present=result.present + 1)
            else:
                if path.name in there:
                    log.warning(
                        "%s has another size in %s, and is shipped again",
                        path.name,
                        self._target.root,
                    )
                self._copy(path.name, source, size)
                there[path.name] = size
                result = replace(result, shipped=result.shipped + 1, bytes=result.bytes + size)
            if not self._delete:
                return result
            source.seek(0)
            try:
                with self._target.reader(path.name) as copy:
                    is_same = _digest(copy) == _digest(source)
            except FileNotFoundError:
                is_same = False
        if not is_same:  # nothing is deleted; the next run ships it again
            del there[path.name]
            log.error("the copy of %s in %s differs", path.name, self._target.root)
            return result
        path.unlink(missing_ok=True)
        return replace(result, deleted=result.deleted + 1)

    def _copy(self, name: str, source: BinaryIO, size: int) -> None:
        file = self._target.create(name)
        while block := source.read(_BLOCK):
            file.write(block)
        written = self._target.finish(name, file)
        found = self._target.size(name)
        if not written == found == size:
            raise OSError(
                f"{self._target.root}/{name} has {found} bytes after {size} were written; the "
                "segment is kept, and shipped again the next time"
            )


@contextlib.contextmanager
def _alone(folder: Path) -> Generator[None]:
    try:
        with locked(folder / LOCK):
            yield
    except StorageLockedError as error:
        raise StorageLockedError(f"another process is shipping the journal {folder}") from error


def _digest(file: BinaryIO) -> bytes:
    found = hashlib.sha256()
    while block := file.read(_BLOCK):
        found.update(block)
    return found.digest()
