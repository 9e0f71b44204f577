"""The audit log: one line of JSON for every action, on disk before the action begins."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from matador.errors import HistoryError

_TAIL: Final = 512 * 1024
"""How many bytes at the end of the file are read for the page."""


class AuditLog:
    """Appends lines to a file that only its owner can read. Thread-safe.

    Raises:
        HistoryError: by ``add``, if the line is not on disk: the action must not be carried out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def add(self, who: str, action: str, **details: Any) -> None:
        """Record an action. Returns when it is on disk."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": at, "who": who, "action": action, **details}, default=str)
        data = line.encode("utf-8", "replace") + b"\n"
        try:
            with self._lock:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                file = os.open(self.path, flags, 0o600)
                try:
                    # One write: lines of two processes do not mix. A line that a full disk has cut
                    # off is ended first, or this one would be part of it.
                    data = b"\n" + data if self._is_torn() else data
                    written = os.write(file, data)
                    if written != len(data):
                        raise OSError("the disk is full")
                    os.fsync(file)
                finally:
                    os.close(file)
        except OSError as error:
            raise HistoryError(
                f"the audit log {self.path} cannot be written ({error}), so nothing was done"
            ) from error

    def _is_torn(self) -> bool:
        """Whether the last line is incomplete."""
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return size > 0 and file.read(1) != b"\n"

    def last(self, limit: int) -> list[dict[str, Any]]:
        """The latest actions, the latest first. Lines that cannot be read are left out."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL))
                lines = file.read(_TAIL).splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise HistoryError(f"the audit log {self.path} cannot be read: {error}") from error
        found: list[dict[str, Any]] = []
        for line in reversed(lines):
            try:
                entry: Any = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)  # pyright: ignore[reportUnknownArgumentType]
            if len(found) == limit:
                break
        return found
