"""Time, passed in: transports and the pipeline ask a clock, tests move one."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where time and new ids come from."""

    def time(self) -> float:
        """Seconds since 1970. May jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. Never jumps."""
        ...

    def now(self) -> datetime:
        """The current time in UTC."""
        ...

    def new_id(self) -> str:
        """A new UUID."""
        ...


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    def time(self) -> float:
        """See ``Clock``."""
        return time.time()

    def monotonic(self) -> float:
        """See ``Clock``."""
        return time.monotonic()

    def now(self) -> datetime:
        """See ``Clock``."""
        return datetime.now(UTC)

    def new_id(self) -> str:
        """See ``Clock``."""
        return str(uuid.uuid4())
