"""Reads ``sqlite:///file`` addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from matador.errors import ConfigurationError
from matador.model.options import suggestion
from matador.transports.sqlite.database import Synchronous

_FORMS = "sqlite:///relative.db or sqlite:////absolute/path.db"
_OPTIONS = ("synchronous", "lease", "busy_timeout")


@dataclass(frozen=True, slots=True)
class SqliteUrl:
    """An address, taken apart; None: not given."""

    path: str
    synchronous: Synchronous | None = None
    lease: float | None = None
    busy_timeout: float | None = None


def parse_url(url: str) -> SqliteUrl:
    """Take an address apart.

    Raises:
        ConfigurationError: it is malformed, has no path, or an option nobody knows.

    Example:
        >>> parse_url("sqlite:///shop.db?lease=60").lease
        60.0
    """
    parts = urlsplit(url)
    # These two are not repeated: they may be another broker's, with a password.
    if parts.scheme != "sqlite":
        raise ConfigurationError(f"not an SQLite address ({parts.scheme}://); write {_FORMS}")
    if parts.netloc:
        raise ConfigurationError(
            f"the address names a host, {parts.hostname!r}, but SQLite is a file; "
            f"write {_FORMS} (three slashes, or four)"
        )
    path = unquote(parts.path.removeprefix("/"))
    if not path or path == ":memory:":
        raise ConfigurationError(
            f"{url!r} names no file; write {_FORMS}, or memory:// for messages that need not last"
        )
    if parts.fragment:
        raise ConfigurationError(f"{url!r} has a '#'; write %23 if it belongs to the path")
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise ConfigurationError(
                f"{url!r}: unknown option {name!r}{suggestion(name, _OPTIONS)} (known: {known})"
            )
        if name in options:
            raise ConfigurationError(f"{url!r}: option {name!r} is there twice")
        options[name] = value
    return SqliteUrl(
        path,
        synchronous=_synchronous(url, options),
        lease=_number(url, options, "lease"),
        busy_timeout=_number(url, options, "busy_timeout"),
    )


def _synchronous(url: str, options: dict[str, str]) -> Synchronous | None:
    given = options.get("synchronous")
    if given is None:
        return None
    for known in get_args(Synchronous):
        if given.upper() == known:
            return known
    raise ConfigurationError(f"{url!r}: synchronous must be FULL or NORMAL, got {given!r}")


def _number(url: str, options: dict[str, str], name: str) -> float | None:
    given = options.get(name)
    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        raise ConfigurationError(f"{url!r}: {name} must be seconds, got {given!r}") from None
