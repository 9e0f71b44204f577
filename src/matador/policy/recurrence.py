"""When a recurring job is due: a pure function of its schedule and of the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import ceil
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from matador.errors import ConfigurationError
from matador.model.job import JobSchedule
from matador.model.options import suggestion

MOST_MISSED = 1000
"""The maximum number of jobs added for missed times; earlier times are left out."""

GRACE = 60.0
"""A time that is late by at most this many seconds does not count as missed."""

_SHORTEST = 0.001

CRON_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Names of common cron expressions."""


def cron_expression(cron: str, where: str) -> str:
    """The five or six fields of a cron expression, which may be given by its name.

    Raises:
        ConfigurationError: there is no such name.

    Example:
        >>> cron_expression("@daily", "schedule")
        '0 0 * * *'
    """
    if not isinstance(cron, str) or not cron.strip().startswith("@"):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        return cron
    found = CRON_NAMES.get(cron.strip().lower())
    if found is None:
        raise ConfigurationError(
            f"{where}: cron={cron!r} is not one of {', '.join(CRON_NAMES)}"
            f"{suggestion(cron, CRON_NAMES)}"
        )
    return found


def check_recurrence(
    cron: str | None, every: float | None, timezone: str, where: str, now: float
) -> None:
    """Raise ``ConfigurationError`` unless the arguments define a valid recurrence."""
    if (cron is None) == (every is None):
        raise ConfigurationError(f"{where}: give either cron= or every=")
    if every is not None and every < _SHORTEST:
        raise ConfigurationError(f"{where}: every must be at least {_SHORTEST} s, got {every!r}")
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise ConfigurationError(
            f"{where}: no time zone {timezone!r}; write one like 'Europe/Berlin' or 'UTC'"
        ) from None
    if cron is not None:
        try:
            next(CronSim(cron, datetime.fromtimestamp(now, zone)))
        except (CronSimError, AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"{where}: cron={cron!r} is not a cron expression ({error}); "
                f"write five fields, like '0 7 * * mon-fri', or a name, like '@daily'"
            ) from None
        except StopIteration:
            raise ConfigurationError(f"{where}: cron={cron!r} never matches a time") from None


def next_time(schedule: JobSchedule, after: float) -> float:
    """The first time of a schedule after a moment.

    Times of ``every`` are counted from ``next_at``. With daylight saving, a time that does not
    exist is due after the clock change, and a time that exists twice is due once, unless the
    expression has a ``*`` in its minutes or hours, or has six fields.

    Example:
        >>> next_time(JobSchedule(key="k", name="n", every=10.0, next_at=100.0), after=125)
        130.0
    """
    if schedule.every is not None:
        if after < schedule.next_at:
            return schedule.next_at
        steps = ceil((after - schedule.next_at) / schedule.every)
        found = schedule.next_at + steps * schedule.every
        return found if found > after else found + schedule.every
    assert schedule.cron is not None
    moment = datetime.fromtimestamp(after, ZoneInfo(schedule.timezone))
    return next(CronSim(schedule.cron, moment)).astimezone(UTC).timestamp()


def first_time(schedule: JobSchedule, now: float) -> float:
    """When a new schedule is due first: one with ``every`` at once."""
    return now if schedule.every is not None else next_time(schedule, now)


def due_times(schedule: JobSchedule, now: float) -> tuple[list[float], float]:
    """The times for which a job must be added now, and the next one after them.

    Example:
        >>> due_times(JobSchedule(key="k", name="n", every=10.0, next_at=100.0), now=125)
        ([120.0], 130.0)
    """
    if now < schedule.next_at:
        return [], schedule.next_at
    if schedule.every is not None:
        last = next_time(schedule, now) - schedule.every
        first = max(schedule.next_at, last - (MOST_MISSED - 1) * schedule.every)
        count = round((last - first) / schedule.every) + 1
        times = [first + index * schedule.every for index in range(count)]
        following = last + schedule.every
    else:
        times, following = _cron_times(schedule, now)
    if schedule.missed == "all":
        return times, following
    if schedule.missed == "skip":
        return [one for one in times[-1:] if now - one <= GRACE], following
    return times[-1:], following


def _cron_times(schedule: JobSchedule, now: float) -> tuple[list[float], float]:
    assert schedule.cron is not None
    zone = ZoneInfo(schedule.timezone)
    # Search backward from now, so that times missed long ago cost nothing.
    until = datetime.fromtimestamp(now, zone) + timedelta(seconds=1)
    earlier = CronSim(schedule.cron, until, reverse=True)
    times: list[float] = []
    for moment in earlier:
        time = moment.astimezone(UTC).timestamp()
        if time < schedule.next_at or len(times) >= MOST_MISSED:
            break
        if time <= now:
            times.append(time)
    if not times:  # the expression was changed meanwhile
        times = [schedule.next_at]
    return times[::-1], next_time(schedule, now)
