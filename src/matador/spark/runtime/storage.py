"""Where a lake is, and how its files are read and written, by the driver and by executors.

A file is on disk, with its name, before ``finish`` returns. New files are readable by their owner
alone: they contain payloads. Everything that knows that a lake is a folder is here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from matador.observe.paths import local_path
from matador.spark.runtime.files import private_file, private_folder, sync


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder that the driver and all executors see under the same path. Pickled."""

    root: str

    @staticmethod
    def of(where: str | os.PathLike[str], what: str) -> Storage:
        """The storage that a user has named; ``what`` names it in errors."""
        return Storage(str(local_path(where, what).absolute()))

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.root)

    def spark_url(self, name: str) -> str:
        """The address of a file or folder for Spark."""
        return f"file:{self.path / name}"  # not as_uri(): Spark decodes no %3D

    def child(self, name: str) -> Storage:
        """A folder in this one."""
        return Storage(f"{self.root}/{name}")

    def make(self) -> None:
        """Create the folder, unless it exists."""
        private_folder(self.path)

    def reader(self, name: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return (self.path / name).open("rb")

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str) -> BinaryIO:
        """Open a new file for writing. Close it with ``finish``."""
        path = self.path / name
        private_folder(path.parent)
        return private_file(path)

    def finish(self, name: str, file: BinaryIO) -> int:
        """Close a file from ``create``: it is durable then. Returns its size."""
        with file:
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        sync((self.path / name).parent)
        return size

    def sync(self, *names: str) -> None:
        """Make files, and the entries of their folders, durable: delta-rs does not."""
        paths = [self.path / name for name in names]
        for path in dict.fromkeys((*paths, *(one.parent for one in paths))):
            sync(path)
