"""Shows how far a long run is: a line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time

_EVERY_ON_TERMINAL = 0.2
_EVERY_IN_LOG = 10.0


class Progress:
    """Tells how it goes, and how fast."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._started = time.monotonic()
        self._next = 0.0

    def show(self, text: str, count: int) -> None:
        """Say how it goes, if it is time to; ``count`` things are done so far."""
        now = time.monotonic()
        if now < self._next:
            return
        seconds = now - self._started
        self._next = now + (_EVERY_ON_TERMINAL if self._terminal else _EVERY_IN_LOG)
        line = f"{seconds:5.0f} s  {text}, {count / max(seconds, 1):,.0f}/s"
        print(f"\r\033[K{line}" if self._terminal else line, end="" if self._terminal else "\n")
        sys.stdout.flush()

    def finish(self) -> None:
        """End the line."""
        if self._terminal:
            print("\r\033[K", end="")
