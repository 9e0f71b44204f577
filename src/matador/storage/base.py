"""The protocol of file storage that the driver and all executors share.

A file appears completely and is durable when ``finish`` or ``write`` returns. An unfinished file
never appears, or is unreferenced.
"""

from __future__ import annotations

from typing import BinaryIO, NamedTuple, Protocol

from matador.storage.options import StorageOptions


class StoredFile(NamedTuple):
    """A file in a listing. ``modified``: nanoseconds since 1970, according to the store."""

    name: str
    size: int
    modified: int


class Storage(Protocol):
    """A folder of files by name; ``/`` separates the folders in it. Pickled, and compared."""

    @property
    def root(self) -> str:
        """The path or URL. It contains no secret."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of the file system."""
        ...

    @property
    def options(self) -> StorageOptions:
        """The options of delta-rs to access it. Contains secrets: never print it."""
        ...

    def child(self, name: str) -> Storage:
        """A folder in this one."""
        ...

    def spark_url(self, name: str) -> str:
        """The address of a file or folder for Spark."""
        ...

    def make(self) -> None:
        """Create the folder if necessary."""
        ...

    def reader(self, name: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        ...

    def create(self, name: str) -> BinaryIO:
        """Open a new file for writing. Close it with ``finish``; otherwise it never appears."""
        ...

    def finish(self, name: str, file: BinaryIO) -> int:
        """Close a file from ``create``: it is then complete and durable. Returns its size."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Replace a file: after a crash it has the old content or the new."""
        ...

    def size(self, name: str) -> int | None:
        """The size of a file; None if there is none."""
        ...

    def files(self, folder: str = "") -> list[StoredFile]:
        """The files of a folder, without those below; none if there is no such folder."""
        ...

    def folders(self, folder: str = "") -> list[str]:
        """The names of the folders of a folder; none if there is no such folder."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        ...

    def delete_folder(self, name: str) -> None:
        """Delete a folder and all that is in it, if it exists."""
        ...

    def sync(self, *names: str) -> None:
        """Make files durable that another library wrote; does nothing if they always are."""
        ...
