"""Files that are replaced atomically and durably, moved in one step, and locked by one process.

New files are readable by their owner alone: they contain payloads.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from matador.errors import StorageLockedError


def write_json(path: Path, content: Any) -> None:
    """Replace a file atomically: after a crash it has the old content or the new."""
    hidden = path.with_name(f".{path.name}.new")
    with private_file(hidden) as file:
        file.write(msgspec.json.encode(content))
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(path)
    sync_folder(path.parent)


def private_file(path: Path) -> BinaryIO:
    """Open a file for writing, readable by its owner alone; existing content is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def private_folder(path: Path) -> Path:
    """Create a folder and its parents, unless they exist."""
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def sync_tree(folder: Path) -> None:
    """Make all files below a folder durable: Spark does not sync what it writes."""
    for path in folder.rglob("*"):
        if path.is_file():
            sync_file(path)
        else:
            sync_folder(path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def move(source: Path, target: Path) -> None:
    """Move a file or folder to its place, unless an earlier run has done so."""
    if source.exists():
        remove(target)
        source.rename(target)
        sync_folder(target.parent)


def remove(path: Path) -> None:
    """Remove a file or folder, if it exists.

    A folder is renamed first, so that no reader sees a part of it.
    """
    if path.is_dir():
        hidden = path.with_name(f".removed-{path.name}")
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
        shutil.rmtree(hidden)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold a lock that the kernel releases when this process ends, however it ends.

    Raises:
        StorageLockedError: another process holds it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageLockedError(
                f"another process is writing to {path.parent.parent}; wait until it is done"
            ) from error
        yield
    finally:
        os.close(handle)
