"""Who reads the tables batch by batch, and how far each of them is.

Compaction merges only batches that all of them are past, into the highest number of those merged;
so "all batches after my position" is right for each of them, always.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from matador.spark.files import private_folder, write_json
from matador.spark.layout import Layout


class _Position(msgspec.Struct, frozen=True):
    batch: int


class Consumers:
    """The positions of all consumers of a lake. Each consumer advances only its own."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.checkpoints / "consumers"

    def position(self, name: str) -> int:
        """The last batch a consumer is done with; -1 if it has not begun."""
        path = self._path(name)
        return _read(path) if path.exists() else -1

    def advance(self, name: str, batch: int) -> None:
        """A consumer is done with all batches up to this one."""
        private_folder(self._folder)
        write_json(self._path(name), _Position(batch))

    def slowest(self) -> int | None:
        """The last batch that all consumers are done with; None if there are no consumers."""
        return min((_read(path) for path in self._folder.glob("[!.]*.json")), default=None)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _read(path: Path) -> int:
    return msgspec.json.decode(path.read_bytes(), type=_Position).batch
