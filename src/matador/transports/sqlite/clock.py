"""The clock of a database: shared by all processes of a machine, unaffected when the time is set.

Delays stored by the time of day would end early or late when the machine's clock is set. So the
file stores the difference between the time of day and the machine's uptime when it is first opened,
and "now" is the uptime plus that difference. After a reboot a new difference is stored, chosen so
that the time never goes back behind the latest time in the file.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from matador.transports.clock import Clock
from matador.transports.sqlite.database import LATEST

_NOISE = 0.001  # milliseconds; more than the error of a float that counts them
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_STORED = "SELECT clock_offset FROM meta WHERE boot_id = ?"
_STORE = (
    "INSERT INTO meta (id, boot_id, clock_offset) VALUES (1, ?, ?) ON CONFLICT (id) "
    "DO UPDATE SET boot_id = excluded.boot_id, clock_offset = excluded.clock_offset"
)
_SEEN = (
    f"SELECT max(ifnull((SELECT last_time FROM meta WHERE last_time <= {LATEST}), 0), ifnull("
    f"(SELECT stored_at FROM messages WHERE stored_at <= {LATEST} ORDER BY seq DESC LIMIT 1), 0))"
)
"""The latest time in the file; not one that another program wrote and that cannot be a date."""


class Machine:
    """This machine, or in tests a ``Clock`` in its place. Times are in seconds.

    ``boot_id`` identifies the period over which ``uptime`` counts. Without one (not Linux), only
    the time of day is used.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.boot_id: str | None = None
        if clock is not None:
            self.boot_id = f"given clock {os.getpid()}-{id(clock)}"
            self.wall, self.uptime = clock.time, clock.monotonic
        elif hasattr(time, "CLOCK_BOOTTIME"):
            with suppress(OSError):
                self.boot_id = _BOOT_ID.read_text("ascii").strip()

    def wall(self) -> float:
        """The time of day, in seconds since 1970."""
        return time.time()

    def uptime(self) -> float:
        """Seconds since the machine was started, the same in all processes. Includes sleep."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class DatabaseClock:
    """Milliseconds since 1970, as this database counts them. Thread-safe once it is anchored."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._offset: float | None = None

    def now(self) -> int:
        """The current time of the database in milliseconds."""
        return int(self._milliseconds())

    def after(self, seconds: float) -> int:
        """What ``now`` is once so many seconds have passed. It rounds down, so this rounds up."""
        return math.ceil(self._milliseconds() + seconds * 1000 - _NOISE)

    def _milliseconds(self) -> float:
        if self._offset is None:
            return self._machine.wall() * 1000
        return (self._machine.uptime() + self._offset) * 1000

    def adopt(self, connection: sqlite3.Connection) -> bool:
        """Use the difference stored in the file; False if there is none for this boot."""
        boot_id = self._machine.boot_id
        if boot_id is not None:
            row = connection.execute(_STORED, (boot_id,)).fetchone()
            if row is None:
                return False
            (self._offset,) = row
        return True

    def anchor(self, connection: sqlite3.Connection) -> None:
        """Store a difference, unless another process just did. Call in a write transaction."""
        if self.adopt(connection):
            return
        (seen,) = connection.execute(_SEEN).fetchone()
        start = max(self._machine.wall(), seen / 1000)
        self._offset = start - self._machine.uptime()
        connection.execute(_STORE, (self._machine.boot_id, self._offset))

    def remember(self, connection: sqlite3.Connection) -> None:
        """Store the current time, for the next boot. Call in a write transaction."""
        connection.execute("UPDATE meta SET last_time = ?", (self.now(),))
