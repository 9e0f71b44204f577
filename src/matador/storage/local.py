"""A folder of the file system, local or mounted.

A file is on disk, with its name, before ``finish`` returns. New files are readable by their owner
alone: they contain payloads.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from matador.storage.base import StoredFile
from matador.storage.files import private_file, private_folder, replace_file, sync
from matador.storage.options import NO_OPTIONS, StorageOptions


@dataclass(frozen=True, slots=True)
class FolderStorage:
    """A folder that the driver and all executors see under the same path. See ``Storage``."""

    root: str

    @property
    def is_local(self) -> bool:
        """Always true."""
        return True

    @property
    def options(self) -> StorageOptions:
        """Empty."""
        return NO_OPTIONS

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.root)

    def spark_url(self, name: str) -> str:
        """The address of a file or folder for Spark."""
        return f"file:{self.path / name}"  # not as_uri(): Spark decodes no %3D

    def child(self, name: str) -> FolderStorage:
        """A folder in this one."""
        return FolderStorage(f"{self.root}/{name}")

    def make(self) -> None:
        """Create the folder, unless it exists."""
        private_folder(self.path)

    def reader(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return (self.path / name).open("rb")

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            with open(f"{self.root}/{name}", "rb") as file:  # noqa: PTH123 - twice as quick
                return file.read()
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

    def write(self, name: str, content: bytes) -> None:
        """Replace a file: after a crash it has the old content or the new."""
        path = self.path / name
        private_folder(path.parent)
        replace_file(path, content)

    def size(self, name: str) -> int | None:
        """The size of a file; None if there is none."""
        try:
            return (self.path / name).stat().st_size
        except FileNotFoundError:
            return None

    def files(self, folder: str = "") -> list[StoredFile]:
        """The files of a folder, without those below; hidden ones and links are left out."""
        try:
            with os.scandir(self.path / folder) as entries:
                found = [
                    (entry.name, entry.stat(follow_symlinks=False))
                    for entry in entries
                    if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
                ]
        except FileNotFoundError:
            return []
        return [StoredFile(name, one.st_size, one.st_mtime_ns) for name, one in sorted(found)]

    def folders(self, folder: str = "") -> list[str]:
        """The names of the folders of a folder."""
        try:
            return sorted(one.name for one in (self.path / folder).iterdir() if one.is_dir())
        except FileNotFoundError:
            return []

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        (self.path / name).unlink(missing_ok=True)

    def delete_folder(self, name: str) -> None:
        """Delete a folder and all that is in it, if it exists."""
        shutil.rmtree(self.path / name, ignore_errors=True)

    def sync(self, *names: str) -> None:
        """Make files, and the entries of their folders, durable: delta-rs does not."""
        paths = [self.path / name for name in names]
        for path in dict.fromkeys((*paths, *(one.parent for one in paths))):
            sync(path)
