"""Notes what is done to files, in order: what was synced before what was told or renamed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class DiskSpy:
    """The calls that make files durable or visible, by the name of the file; they are made, too.

    ``steps`` has pairs such as ``("fsync", "a.jsonl")``; a test may add its own.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, str]] = []
        for name in ("rename", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._noting(name, getattr(os, name)))
        sync = os.fsync

        def fsync(file: int) -> None:
            self.steps.append(("fsync", Path(f"/proc/self/fd/{file}").readlink().name))
            sync(file)

        monkeypatch.setattr(os, "fsync", fsync)

    def _noting(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noted(path: Any, *more: Any, **options: Any) -> None:
            target = more[0] if more else path
            call(path, *more, **options)
            self.steps.append((name, Path(target).name))

        return noted

    def at(self, what: str, name: str) -> int:
        """When something was first done to a file."""
        return self.steps.index((what, name))
