"""The clock of a database: one for all processes of a machine, unmoved when the time is set.

A delay that was stored with the time of day would fire early, or an hour late, when somebody sets
the machine's clock. So the database keeps, for as long as the machine is up, the distance between
the time of day and the machine's uptime as it was when the file was first opened; its "now" is the
uptime plus that distance. After a reboot only the time of day is left, and a new distance is taken,
never one that goes back behind what the file has seen.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Protocol

from matador.transports.clock import Clock

_LATEST = 253_402_300_799_000  # the end of the year 9999; no date can be later
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Machine(Protocol):
    """Where a database clock gets its time from."""

    @property
    def boot_id(self) -> str | None:
        """Names the period over which ``uptime`` counts; None: there is no such thing."""
        ...

    def wall(self) -> float:
        """The time of day, in seconds since 1970."""
        ...

    def uptime(self) -> float:
        """Seconds since the machine was started, the same in all its processes."""
        ...


class ThisMachine:
    """The machine we run on. Where it has no boot id (not Linux), only the time of day is used."""

    def __init__(self) -> None:
        try:
            self._boot_id: str | None = _BOOT_ID.read_text("ascii").strip()
        except OSError:
            self._boot_id = None
        # Counts on while the machine sleeps, as delays should.
        self._uptime_clock = getattr(time, "CLOCK_BOOTTIME", None)

    @property
    def boot_id(self) -> str | None:
        """See ``Machine``."""
        return self._boot_id if self._uptime_clock is not None else None

    def wall(self) -> float:
        """See ``Machine``."""
        return time.time()

    def uptime(self) -> float:
        """See ``Machine``."""
        return time.clock_gettime(self._uptime_clock) if self._uptime_clock is not None else 0.0


class GivenClock:
    """A ``Clock`` as a machine: its monotonic time is the uptime of a machine of its own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @property
    def boot_id(self) -> str | None:
        """See ``Machine``."""
        return f"given clock {os.getpid()}-{id(self._clock)}"

    def wall(self) -> float:
        """See ``Machine``."""
        return self._clock.time()

    def uptime(self) -> float:
        """See ``Machine``."""
        return self._clock.monotonic()


class DatabaseClock:
    """Milliseconds since 1970 as this database counts them. Any thread may ask, once anchored."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._offset: float | None = None

    def now(self) -> int:
        """The current time of the database in milliseconds."""
        if self._offset is None:
            return int(self._machine.wall() * 1000)
        return int((self._machine.uptime() + self._offset) * 1000)

    def adopt(self, connection: sqlite3.Connection) -> bool:
        """Take over the distance that the file holds; False if it holds none for this boot."""
        boot_id = self._machine.boot_id
        stored = _stored(connection)
        if boot_id is not None:
            if stored.get("boot_id") != boot_id:
                return False
            self._offset = float(stored["offset"])
        return True

    def anchor(self, connection: sqlite3.Connection) -> None:
        """Store a distance, unless somebody just did. Call within a write transaction."""
        if self.adopt(connection):
            return
        stored = _stored(connection)
        seen = int(stored.get("last_time", 0))
        # Of a row that another program wrote, only what can be a time.
        for (newest,) in connection.execute(
            "SELECT stored_at FROM messages WHERE stored_at BETWEEN 0 AND ? "
            "ORDER BY seq DESC LIMIT 1",
            (_LATEST,),
        ):
            seen = max(seen, newest)
        start = max(self._machine.wall(), seen / 1000)
        self._offset = start - self._machine.uptime()
        connection.executemany(
            "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)",
            [("boot_id", self._machine.boot_id), ("offset", repr(self._offset))],
        )

    def remember(self, connection: sqlite3.Connection) -> None:
        """Store how late it is, for the next boot. Call within a write transaction."""
        connection.execute(
            "INSERT OR REPLACE INTO meta (name, value) VALUES ('last_time', ?)", (str(self.now()),)
        )


def _stored(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, value FROM meta"))
