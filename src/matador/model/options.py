"""Helpers that check options."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import TypeAlias

from matador.errors import ConfigurationError

Seconds: TypeAlias = float | timedelta
"""A duration: seconds, or a ``timedelta``."""


LONGEST = 2.5155e11
"""Seconds, nearly 8,000 years. A time that far away is still a valid date."""


def suggestion(given: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` if a known name is similar to the given one, else nothing."""
    close = get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def seconds(value: Seconds, what: str, *, minimum: float = 0.0) -> float:
    """A valid duration in seconds.

    Raises:
        ConfigurationError: not a finite number of seconds, or below ``minimum``.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise ConfigurationError(f"{what} must be seconds or a timedelta, got {value!r}")
    try:
        number = float(number)
    except OverflowError:  # an int with hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise ConfigurationError(f"{what} must be a finite number of seconds, got {_short(value)}")
    if number > LONGEST:
        raise ConfigurationError(f"{what} must be at most {LONGEST:g} seconds, got {_short(value)}")
    if number < minimum:
        raise ConfigurationError(f"{what} must be at least {minimum:g} seconds, got {value!r}")
    return number


def _short(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # Python does not convert ints of more than 4,300 digits
        return "a number with thousands of digits"


def optional_seconds(value: Seconds | None, what: str, *, minimum: float = 0.0) -> float | None:
    """``seconds``, or None for None."""
    return None if value is None else seconds(value, what, minimum=minimum)


def whole_number(value: int, what: str, *, minimum: int) -> int:
    """A valid whole number.

    Raises:
        ConfigurationError: not an ``int``, or below ``minimum``.
    """
    if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise ConfigurationError(f"{what} must be a whole number, got {value!r}")
    if value < minimum:
        raise ConfigurationError(f"{what} must be at least {minimum}, got {value}")
    return value


def optional_whole_number(value: int | None, what: str, *, minimum: int) -> int | None:
    """``whole_number``, or None for None."""
    return None if value is None else whole_number(value, what, minimum=minimum)


def one_of(value: str, what: str, choices: Sequence[str]) -> None:
    """Check a choice.

    Raises:
        ConfigurationError: the value is not one of ``choices``.
    """
    if value not in choices:
        allowed = " or ".join(repr(choice) for choice in choices)
        hint = suggestion(str(value), choices)
        raise ConfigurationError(f"{what} must be {allowed}, got {value!r}{hint}")


def set_fields(frozen: object, **values: object) -> None:
    """Set the fields of a frozen dataclass, in its ``__init__``."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
