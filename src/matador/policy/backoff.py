"""How long to wait before the next attempt. All retries of Matador compute their delays here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from matador.errors import ConfigurationError
from matador.model.options import Seconds, optional_seconds, seconds, set_fields


def growing_delay(
    attempt: int, base: float, multiplier: float = 2.0, longest: float | None = None
) -> float:
    """``base`` × ``multiplier`` ^ (attempt - 1) seconds, at most ``longest``.

    Example:
        >>> [growing_delay(attempt, 1.0, longest=3.0) for attempt in (1, 2, 3)]
        [1.0, 2.0, 3.0]
    """
    try:
        grown = base * multiplier ** (max(1, attempt) - 1)
    except OverflowError:
        grown = float("inf") if base else 0.0
    if longest is not None:
        return min(grown, longest)
    return min(grown, 1e9)  # thirty years: no broker keeps a message for longer


class Delays(Protocol):
    """Computes the delay after a failed attempt."""

    def wait(self, attempt: int) -> float:
        """Seconds to wait after the failed attempt with that number, starting at 1."""
        ...


@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """Retry after the same delay each time.

    Example:
        >>> Fixed(5).wait(attempt=3)
        5.0
    """

    delay: float
    jitter: float

    def __init__(self, delay: Seconds, *, jitter: float = 0.0) -> None:
        set_fields(self, delay=seconds(delay, "Fixed: delay"), jitter=share(jitter, "Fixed"))

    def wait(self, attempt: int) -> float:
        """Seconds to wait after the failed attempt with that number, starting at 1.

        Example:
            >>> Fixed(0.5).wait(attempt=3)
            0.5
        """
        return self.delay

    @property
    def text(self) -> str:
        """The form used in a header."""
        return f"fixed:{round(self.delay * 1000)}{_jitter(self.jitter)}"


@dataclass(frozen=True, slots=True, init=False)
class Exponential:
    """Retry after a delay that doubles each time, up to ``max_delay``.

    Example:
        >>> [Exponential(1, max_delay=3).wait(attempt) for attempt in (1, 2, 3)]
        [1.0, 2.0, 3.0]
    """

    delay: float
    max_delay: float | None
    jitter: float

    def __init__(
        self, delay: Seconds = 1.0, *, max_delay: Seconds | None = None, jitter: float = 0.0
    ) -> None:
        longest = optional_seconds(max_delay, "Exponential: max_delay")
        set_fields(
            self,
            delay=seconds(delay, "Exponential: delay"),
            max_delay=longest,
            jitter=share(jitter, "Exponential"),
        )

    def wait(self, attempt: int) -> float:
        """Seconds to wait after the failed attempt with that number, starting at 1.

        Example:
            >>> Exponential(0.5).wait(attempt=3)
            2.0
        """
        return growing_delay(attempt, self.delay, longest=self.max_delay)

    @property
    def text(self) -> str:
        """The form used in a header."""
        longest = "" if self.max_delay is None else f":{round(self.max_delay * 1000)}"
        return f"exponential:{round(self.delay * 1000)}{longest}{_jitter(self.jitter)}"


Backoff: TypeAlias = Fixed | Exponential
"""The delays between the attempts of a job."""


def _jitter(jitter: float) -> str:
    return f"~{jitter:g}" if jitter else ""


def share(value: object, where: str) -> float:
    """A number from 0 to 1.

    Raises:
        ConfigurationError: it is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigurationError(f"{where}: jitter must be from 0 to 1, got {value!r}")
    return float(value)
