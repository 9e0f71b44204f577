"""A time limit that can be paused."""

from __future__ import annotations

from collections.abc import Callable

from matador.transports.clock import Alarm, Alarms


class Countdown:
    """Calls ``end`` once the total time between ``resume`` and ``pause`` reaches the limit. Starts
    paused."""

    __slots__ = ("_alarm", "_alarms", "_end", "_left", "_pauses", "_since")

    def __init__(self, left: float, alarms: Alarms, end: Callable[[], object]) -> None:
        self._left = left
        self._alarms = alarms
        self._end = end
        self._pauses = 1
        self._since = 0.0
        self._alarm: Alarm | None = None

    def resume(self) -> None:
        """Continue, unless another pause is active."""
        self._pauses -= 1
        if self._pauses == 0:
            self._since = self._alarms.monotonic()
            self._alarm = self._alarms.call_later(self._left, self._end)

    def pause(self) -> None:
        """Pause until there were as many calls of ``resume``."""
        self._pauses += 1
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
            self._left = max(0.0, self._left - (self._alarms.monotonic() - self._since))
