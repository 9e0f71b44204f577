"""Moves the time of day of one process, and of no other.

libfaketime does it for the whole process, C code included (``apt-get install libfaketime``). Where
it is not installed, the process moves what Python takes for the time of day. The monotonic clock
stays as it is: the time of day of a machine can be set, its uptime cannot.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_LIBRARIES = "/usr/lib*/**/faketime/libfaketime.so.1"


def find_faketime() -> Path | None:
    """The library that moves clocks, if it is installed."""
    return next(iter(sorted(Path("/").glob(_LIBRARIES.lstrip("/")))), None)


def faketime_environment(library: Path, when: str) -> dict[str, str]:
    """Environment variables under which a process has another time of day.

    ``when``: ``+3600s``, ``-3600s``, or ``@2026-10-25 02:59:58`` to start there.
    """
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": when,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def move_clock(seconds: float) -> None:
    """Move the time of day in this process, as far as Python code asks for it.

    Under libfaketime, only repair what that breaks: while it leaves the monotonic clock alone, it
    refuses to sleep until a moment of that clock, which is how Python sleeps.
    """
    if "FAKETIME" in os.environ:
        time.sleep = lambda seconds: threading.Event().wait(float(seconds))
    if seconds:
        real = time.time
        time.time = lambda: real() + seconds
