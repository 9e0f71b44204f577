"""Where a lake is, and how its files are read and written, by the driver and by executors.

New local files are readable by their owner alone: they contain payloads.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matador.errors import ConfigurationError
from matador.observe.paths import local_path, scheme_of
from matador.spark.runtime.files import private_file, private_folder, sync

_fs: Any = importlib.import_module("pyarrow.fs")

# What delta-rs and Spark call the same kind of storage; the first name is that of delta-rs.
_SCHEMES = {
    "s3": ("s3", "s3a"),
    "s3a": ("s3", "s3a"),
    "gs": ("gs", "gs"),
    "abfs": ("abfss", "abfss"),
    "abfss": ("abfss", "abfss"),
    "hdfs": ("hdfs", "hdfs"),
}


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder: a local path or the URL of an object store. Pickled and sent to executors.

    ``options`` are those of delta-rs, such as ``AWS_ENDPOINT_URL``. They are passed on as they are.
    """

    root: str
    options: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    @staticmethod
    def of(where: str | os.PathLike[str], what: str, options: dict[str, str]) -> Storage:
        """The storage that a user has named; ``what`` names it in errors."""
        scheme = scheme_of(where)
        if scheme is None or scheme == "file":
            return Storage(str(local_path(where, what).absolute()), options)
        if scheme not in _SCHEMES:
            known = ", ".join(f"{name}://" for name in _SCHEMES)
            raise ConfigurationError(
                f"{what}: {scheme}:// is not supported; use a local path, file:// or one of {known}"
            )
        rest = os.fspath(where).split(":", 1)[1].strip("/")
        return Storage(f"{_SCHEMES[scheme][0]}://{rest}", options)

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of a mounted file system."""
        return "://" not in self.root

    @property
    def path(self) -> Path:
        """The local folder."""
        if not self.is_local:
            raise ConfigurationError(f"{self.root} is not a folder of this machine")
        return Path(self.root)

    @property
    def private_cache(self) -> Path:
        """A local folder for what can be computed again: in the lake itself if that is local."""
        if self.is_local:
            return self.path
        name = hashlib.sha256(self.root.encode()).hexdigest()[:16]
        return Path.home() / ".cache" / "matador" / "lakes" / name

    def url(self, name: str = "") -> str:
        """The address of a file or folder for delta-rs."""
        return f"{self.root}/{name}" if name else self.root

    def spark_url(self, name: str) -> str:
        """The address of a file or folder for Spark."""
        if self.is_local:
            return f"file:{Path(self.root, name)}"  # Spark decodes no %3D
        scheme, rest = self.root.split("://", 1)
        spark = next(one[1] for one in _SCHEMES.values() if one[0] == scheme)
        return f"{spark}://{rest}/{name}"

    def child(self, name: str) -> Storage:
        """A folder in this one."""
        return Storage(self.url(name), self.options)

    def make(self) -> None:
        """Create the folder, unless it exists; object stores have none."""
        if self.is_local:
            private_folder(self.path)

    def reader(self, name: str) -> Any:
        """Open a file for reading, for pyarrow.

        Raises:
            FileNotFoundError: there is no such file.
        """
        filesystem, path = self._filesystem(name)
        return filesystem.open_input_file(path)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            with self.reader(name) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def create(self, name: str) -> Any:
        """Open a new file for writing. Close it with ``finish``."""
        if self.is_local:
            path = self.path / name
            private_folder(path.parent)
            return private_file(path)
        filesystem, path = self._filesystem(name)
        return filesystem.open_output_stream(path)

    def finish(self, name: str, file: Any) -> int:
        """Close a file from ``create``: it is durable then. Returns its size."""
        size = int(file.tell())
        if self.is_local:
            file.flush()
            os.fsync(file.fileno())
        file.close()
        if self.is_local:
            sync((self.path / name).parent)
        return size

    def sync(self, *names: str) -> None:
        """Make files, and the entries of their folders, durable: delta-rs does not."""
        if self.is_local:
            paths = [self.path / name for name in names]
            for path in dict.fromkeys((*paths, *(one.parent for one in paths))):
                sync(path)

    def _filesystem(self, name: str) -> tuple[Any, str]:
        if self.is_local:
            return _fs.LocalFileSystem(), str(self.path / name)
        scheme, rest = self.root.split("://", 1)
        return _remote(scheme, rest, self.options), f"{rest}/{name}"


def _remote(scheme: str, rest: str, options: dict[str, str]) -> Any:
    """The pyarrow file system for an object store, with the same options as delta-rs."""
    given = {name.lower(): value for name, value in {**_environment(), **options}.items()}
    if scheme == "s3":
        endpoint = given.get("aws_endpoint_url") or given.get("aws_endpoint")
        settings: dict[str, Any] = {
            "access_key": given.get("aws_access_key_id"),
            "secret_key": given.get("aws_secret_access_key"),
            "session_token": given.get("aws_session_token"),
            "region": given.get("aws_region") or given.get("aws_default_region"),
            "endpoint_override": endpoint,
            "scheme": "http" if (endpoint or "").startswith("http://") else "https",
        }
        return _fs.S3FileSystem(**{name: one for name, one in settings.items() if one})
    filesystem, _ = _fs.FileSystem.from_uri(f"{scheme}://{rest}")
    return filesystem


def _environment() -> dict[str, str]:
    """The usual variables, which delta-rs reads by itself."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
