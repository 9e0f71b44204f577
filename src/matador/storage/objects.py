"""A place in an object store or in HDFS, reached through delta-rs, as the tables are.

So the log and the files share one set of credentials, and no other library is needed. An object
appears completely when it is finished; an unfinished object never appears.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
from collections.abc import Generator
from functools import lru_cache
from typing import Any, BinaryIO, cast

from matador.errors import MatadorError, MissingExtraError, ObjectStoreError
from matador.storage.base import StoredFile
from matador.storage.options import NO_OPTIONS, StorageOptions

_BUFFER = 256 * 1024
_PART = 8 * 1024 * 1024  # bytes of an object that is read whole, at a time
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 600
_QUERY = re.compile(r"(?<=\S)\?\S+")
_REASON = re.compile(r"<Code>([^<]*)</Code>.*?<Message>([^<]*)")
_SPARK_SCHEMES = {"s3": "s3a"}


class ObjectStorage:
    """A prefix in a store. See ``Storage``. Not shown with its options: these are secret."""

    __slots__ = ("_folder", "_options", "_url")

    def __init__(self, url: str, options: StorageOptions = NO_OPTIONS, folder: str = "") -> None:
        self._url = url
        self._options = options
        self._folder = folder

    def __repr__(self) -> str:
        return f"ObjectStorage({self.root!r})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ObjectStorage)
            and self.root == other.root
            and self._options == other._options
        )

    def __hash__(self) -> int:
        return hash((self.root, self._options))

    @property
    def root(self) -> str:
        """The URL."""
        return f"{self._url}/{self._folder}".rstrip("/")

    @property
    def is_local(self) -> bool:
        """Always false."""
        return False

    @property
    def scheme(self) -> str:
        """``s3``, ``gs``, ``az``, ``abfs``, ``abfss`` or ``hdfs``."""
        return self._url.partition(":")[0]

    @property
    def given(self) -> StorageOptions:
        """The options that the user has given."""
        return self._options

    @property
    def options(self) -> StorageOptions:
        """The options for delta-rs. Allows an endpoint with http://, which the user chose."""
        if self.scheme == "hdfs" or "allow_http" in self._options:
            return self._options
        return StorageOptions(self.scheme, {"allow_http": "true", **self._options})

    def spark_url(self, name: str) -> str:
        """The address of a file or folder for Spark with the connector of the store."""
        scheme = _SPARK_SCHEMES.get(self.scheme, self.scheme)
        return f"{scheme}{self.root.removeprefix(self.scheme)}/{name}"

    def child(self, name: str) -> ObjectStorage:
        """A folder in this one."""
        return ObjectStorage(self._url, self._options, self._name(name))

    def make(self) -> None:
        """Nothing to do: folders are parts of names."""

    def reader(self, name: str) -> BinaryIO:
        """Open an object for reading."""
        with self._errors(name):
            raw = _Reading(self._store.open_input_file(self._name(name)), self._errors, name)
        return io.BufferedReader(raw, _BUFFER)

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if there is none."""
        try:
            with self.reader(name) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def create(self, name: str) -> BinaryIO:
        """Open a new object for writing; it appears with ``finish``."""
        with self._errors(name):
            made = self._store.open_output_stream(self._name(name))
        return cast("BinaryIO", _Writing(made, self._errors, name))

    def finish(self, name: str, file: BinaryIO) -> int:
        """Complete an object from ``create``. Returns its size."""
        return cast("_Writing", file).complete()

    def write(self, name: str, content: bytes) -> None:
        """Replace an object."""
        file = self.create(name)
        file.write(content)
        self.finish(name, file)

    def size(self, name: str) -> int | None:
        """The size of an object; None if there is none."""
        with self._errors(name):
            (found,) = self._store.get_file_info([self._name(name)])
        return found.size if found.is_file else None

    def files(self, folder: str = "") -> list[StoredFile]:
        """The objects of a folder, without those below; hidden ones are left out."""
        return sorted(
            StoredFile(one.base_name, one.size, one.mtime_ns or 0)
            for one in self._list(folder)
            if one.is_file and not one.base_name.startswith(".")
        )

    def folders(self, folder: str = "") -> list[str]:
        """The names of the folders of a folder."""
        return sorted(one.base_name for one in self._list(folder) if not one.is_file)

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        with contextlib.suppress(FileNotFoundError), self._errors(name):
            self._store.delete_file(self._name(name))

    def delete_folder(self, name: str) -> None:
        """Delete all objects of a folder."""
        with contextlib.suppress(FileNotFoundError), self._errors(name):
            self._store.delete_dir(self._name(name))

    def sync(self, *names: str) -> None:
        """Nothing to do: an object is durable when it appears."""

    # -- internals --------------------------------------------------------------------------------

    @property
    def _store(self) -> Any:
        return _connected(self._url, self.options, os.getpid())

    def _name(self, name: str) -> str:
        return f"{self._folder}/{name}".strip("/")

    def _list(self, folder: str) -> list[Any]:
        with self._errors(folder):
            return self._store.get_file_info_selector(self._name(folder), True, False)

    @contextlib.contextmanager
    def _errors(self, name: str) -> Generator[None]:
        """Raise store errors with the place, in one line, without colors and secrets."""
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.root}/{name}".rstrip("/")) from error
        except MatadorError:
            raise
        except Exception as error:  # noqa: BLE001 - delta-rs raises several kinds
            raise store_error(error, self._options, f"{self.root}/{name}".rstrip("/")) from None


def store_error(error: BaseException, options: StorageOptions, where: str) -> ObjectStoreError:
    """An error of a store, in one line, without colors and secrets."""
    said: list[str] = []
    for line in _COLORS.sub("", str(error)).splitlines():
        if (reason := _REASON.search(line)) is not None:  # the rest of the XML does not help
            said.append(f"{reason[1]}: {reason[2]}")
            break
        if text := _QUERY.sub("", line.strip(" ↳\t")):
            said.append(text)
    return ObjectStoreError(f"{where}: {options.hidden_in('; '.join(said)[:_LONGEST])}")


@lru_cache(maxsize=32)
def _connected(url: str, options: StorageOptions, process: int) -> Any:
    """The store of delta-rs. It belongs to this process: it has threads, which a fork loses."""
    try:
        internal: Any = importlib.import_module("deltalake._internal")
    except ModuleNotFoundError as error:
        raise MissingExtraError(url, "store") from error
    return internal.DeltaFileSystemHandler(url, dict(options))


class _Reading(io.RawIOBase):
    """An object as a file of Python."""

    def __init__(self, source: Any, errors: Any, name: str) -> None:
        self._source = source
        self._errors = errors
        self._of = name
        self._size = int(source.size())
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at, _PART)
        if wanted <= 0:
            return 0
        with self._errors(self._of):
            self._source.seek(self._at)
            found = bytes(self._source.read(wanted))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


class _Writing(io.RawIOBase):
    """A new object as a file of Python. Closed without ``complete``, it never appears."""

    def __init__(self, target: Any, errors: Any, name: str) -> None:
        self._target = target
        self._errors = errors
        self._of = name
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, content: Any) -> int:
        data = bytes(content)
        with self._errors(self._of):
            self._target.write(data)
        self._size += len(data)
        return len(data)

    def complete(self) -> int:
        """Complete the object, so that it appears; returns its size."""
        with self._errors(self._of):
            self._target.close()
        self.close()
        return self._size
