"""Limits that all workers of a queue of jobs share: how often jobs start, and how many of one key
run at once."""

from __future__ import annotations

from dataclasses import dataclass

from matador.errors import ConfigurationError
from matador.model.options import Seconds, optional_whole_number, seconds, set_fields, whole_number

_SHORTEST = 0.001  # seconds
_LONGEST = 366 * 86_400.0
_MOST = 2**53  # what a worker in another language can count


@dataclass(frozen=True, slots=True, init=False)
class RateLimit:
    """A maximum number of jobs per period, over all workers of a queue.

    Jobs are counted in windows: the first job starts a window, and the first job after its ``per``
    seconds starts the next one. Every attempt counts, retries included.

    Args:
        max: how many jobs may start in a window.
        per: the length of a window in seconds.

    Raises:
        ConfigurationError: an argument is wrong.

    Example:
        >>> RateLimit(100, per=60)
        RateLimit(max=100, per=60.0)
    """

    max: int
    per: float

    def __init__(self, max: int, *, per: Seconds) -> None:
        if whole_number(max, "RateLimit: max", minimum=1) > _MOST:
            raise ConfigurationError(f"RateLimit: max must be at most {_MOST}, got {max}")
        length = seconds(per, "RateLimit: per", minimum=_SHORTEST)
        if length > _LONGEST:
            raise ConfigurationError(
                f"RateLimit: per must be at most {_LONGEST:.0f} seconds, got {per!r}"
            )
        set_fields(self, max=max, per=length)

    @property
    def milliseconds(self) -> int:
        """The length of a window."""
        return round(self.per * 1000)


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits that a worker obeys when it receives jobs.

    Attributes:
        rate: how often jobs start. None: no limit.
        per_key: how many jobs with the same ``job.concurrencyKey`` run at once. None: no limit.
    """

    rate: RateLimit | None = None
    per_key: int | None = None

    def __post_init__(self) -> None:
        optional_whole_number(self.per_key, "JobLimits: per_key", minimum=1)


NO_LIMITS = JobLimits()
