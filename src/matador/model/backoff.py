"""The delays between attempts to reconnect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from matador.errors import ConfigurationError
from matador.model.options import Seconds, one_of, seconds, set_fields, whole_number

BackoffStrategy: TypeAlias = Literal["immediate", "linear", "exponential"]
"""``immediate``: the first attempt at once, the others after the base delay. ``linear``: 1, 2, 3 …
times the base delay. ``exponential``: 1, 2, 4 … times, or by another multiplier."""

_LARGEST = 1000


@dataclass(frozen=True, slots=True, init=False)
class ReconnectBackoff:
    """The delays between attempts to connect.

    Attributes:
        strategy: how the delays grow.
        base_delay: seconds before the second attempt.
        max_delay: the maximum delay in seconds.
        multiplier: the factor between exponential delays.
        jitter: the random share of each delay, from 0 to 1, so that a thousand workers do not
            reconnect in the same instant. With 1, a delay is anything from 0 to its full length.
        max_attempts: attempts to restore a lost connection; 0: no limit.

    Example:
        >>> ReconnectBackoff(base_delay=0.5, max_delay=30).delay(attempt=3)
        2.0
    """

    strategy: BackoffStrategy
    base_delay: float
    max_delay: float
    multiplier: float
    jitter: float
    max_attempts: int

    def __init__(
        self,
        strategy: BackoffStrategy = "exponential",
        *,
        base_delay: Seconds = 0.5,
        max_delay: Seconds = 30.0,
        multiplier: float = 2.0,
        jitter: float = 0.5,
        max_attempts: int = 0,
    ) -> None:
        where = "ReconnectBackoff"
        one_of(strategy, f"{where}: strategy", get_args(BackoffStrategy))
        if not 0 <= jitter <= 1:
            raise ConfigurationError(f"{where}: jitter must be from 0 to 1, got {jitter!r}")
        base = seconds(base_delay, f"{where}: base_delay")
        longest = seconds(max_delay, f"{where}: max_delay")
        if longest < base:
            raise ConfigurationError(
                f"{where}: max_delay ({longest:g} s) must be at least base_delay ({base:g} s)"
            )
        if not 1 <= multiplier <= _LARGEST:
            raise ConfigurationError(
                f"{where}: multiplier must be from 1 to {_LARGEST}, got {multiplier!r}"
            )
        attempts = whole_number(max_attempts, f"{where}: max_attempts", minimum=0)
        set_fields(self, strategy=strategy, base_delay=base, max_delay=longest)
        set_fields(self, multiplier=float(multiplier), jitter=float(jitter), max_attempts=attempts)

    def delay(self, attempt: int, random: float = 0.0) -> float:
        """Seconds to wait after the failed attempt with that number, starting at 1.

        ``random``: from 0 to 1; shortens the delay by up to the share ``jitter``.
        """
        return min(self._grown(attempt), self.max_delay) * (1.0 - self.jitter * random)

    def gives_up(self, attempt: int) -> bool:
        """Whether the failed attempt with that number, starting at 1, was the last one."""
        return 0 < self.max_attempts <= attempt

    def _grown(self, attempt: int) -> float:
        match self.strategy:
            case "immediate":
                return 0.0 if attempt == 1 else self.base_delay
            case "linear":
                return self.base_delay * attempt
            case "exponential":
                try:
                    return self.base_delay * self.multiplier ** (attempt - 1)
                except OverflowError:
                    return self.max_delay if self.base_delay else 0.0
