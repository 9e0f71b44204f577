"""A clock that only moves when a test advances it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from uuid import UUID

from matador.errors import ConfigurationError
from matador.model.options import Seconds, seconds
from matador.transports.clock import sleep

_START = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class ManualAlarm:
    """A pending call of ``ManualClock.advance``."""

    callback: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A ``Clock`` with ``Alarms`` for tests: deterministic times, ids and wake-ups.

    Example:
        >>> clock = ManualClock()
        >>> clock.advance(90)
        >>> clock.now().isoformat()
        '2030-01-01T00:01:30+00:00'
    """

    def __init__(self, start: datetime = _START) -> None:
        if start.tzinfo is None:
            raise ConfigurationError("ManualClock: start must have a time zone")
        self._start = start
        self._passed = 0.0
        self._set_by = 0.0
        self._ids = 0
        self._alarms: list[tuple[float, int, ManualAlarm]] = []
        self._alarm_count = 0

    def time(self) -> float:
        return self._start.timestamp() + self._passed + self._set_by

    def monotonic(self) -> float:
        """Seconds since the clock was made; 0 at first."""
        return self._passed

    def now(self) -> datetime:
        return self._start.astimezone(UTC) + timedelta(seconds=self._passed + self._set_by)

    def new_id(self) -> str:
        """The next of ``00000000-0000-4000-8000-000000000001``, ``…2`` and so on."""
        self._ids += 1
        return str(UUID(int=(4 << 76) | (2 << 62) | self._ids))

    def call_later(self, delay: float, callback: Callable[[], object]) -> ManualAlarm:
        """See ``Alarms``: called by the ``advance`` that reaches its time."""
        alarm = ManualAlarm(callback)
        self._alarm_count += 1
        heappush(self._alarms, (self._passed + max(0.0, delay), self._alarm_count, alarm))
        return alarm

    async def sleep(self, delay: float) -> None:
        """Wait until the clock has moved by ``delay`` seconds; for code that takes a ``sleep``."""
        await sleep(self, delay)

    @property
    def alarms(self) -> int:
        """How many calls are pending, including sleeps."""
        return sum(not alarm.cancelled for _, _, alarm in self._alarms)

    @property
    def next_alarm(self) -> float | None:
        """When the next call is due, by ``monotonic``; None: no call is pending."""
        while self._alarms and self._alarms[0][2].cancelled:
            heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def advance(self, by: Seconds) -> None:
        """Move the clock. Alarms that fall due are called in order, each at its own time.

        This includes alarms that other alarms set. Tasks that are woken run when the caller next
        awaits something.
        """
        end = self._passed + seconds(by, "ManualClock.advance")
        while self._alarms and self._alarms[0][0] <= end:
            when, _, alarm = heappop(self._alarms)
            self._passed = max(self._passed, when)
            if not alarm.cancelled:
                alarm.callback()
        self._passed = end

    def set_back(self, by: Seconds) -> None:
        """Set the time of day back, as an administrator might; ``monotonic`` does not change."""
        self._set_by -= seconds(by, "ManualClock.set_back")
