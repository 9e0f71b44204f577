"""Small helpers with which options are checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches
from typing import TypeAlias

from matador.errors import ConfigurationError

Seconds: TypeAlias = float | timedelta
"""A duration: seconds, or a ``timedelta``."""


def suggestion(given: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` if something known is close to what was given, else nothing."""
    close = get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def seconds(value: Seconds, what: str, *, minimum: float = 0.0) -> float:
    """A duration as seconds, checked.

    Raises:
        ConfigurationError: not a finite number of seconds, or below ``minimum``.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise ConfigurationError(f"{what} must be seconds or a timedelta, got {value!r}")
    try:
        number = float(number)
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise ConfigurationError(f"{what} must be a finite number of seconds, got {_short(value)}")
    if number < minimum:
        raise ConfigurationError(f"{what} must be at least {minimum:g} seconds, got {value!r}")
    return number


def _short(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # Python does not write whole numbers of more than 4,300 digits
        return "a number of thousands of digits"


def optional_seconds(value: Seconds | None, what: str, *, minimum: float = 0.0) -> float | None:
    """``seconds``, or None for None."""
    return None if value is None else seconds(value, what, minimum=minimum)


def whole_number(value: int, what: str, *, minimum: int) -> int:
    """A whole number, checked.

    Raises:
        ConfigurationError: not an ``int``, or below ``minimum``.
    """
    if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise ConfigurationError(f"{what} must be a whole number, got {value!r}")
    if value < minimum:
        raise ConfigurationError(f"{what} must be at least {minimum}, got {value}")
    return value
