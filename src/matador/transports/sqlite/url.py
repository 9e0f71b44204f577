"""Reads ``sqlite:///file`` addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args
from urllib.parse import parse_qsl, unquote

from matador.errors import ConfigurationError
from matador.model.options import suggestion
from matador.transports.sqlite.database import Synchronous

_FORMS = "sqlite:///relative.db or sqlite:////absolute/path.db"
_WHAT = "SQLite address"
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
        ConfigurationError: it is malformed, has no path, or an option nobody knows. The message
            does not repeat the address: it may be another broker's, with a password.

    Example:
        >>> parse_url("sqlite:///shop.db?lease=60").lease
        60.0
    """
    scheme, separator, rest = url.partition("://")
    if scheme.lower() != "sqlite" or not separator:
        raise ConfigurationError(f"not an SQLite address; write {_FORMS}")
    user, at, _ = rest.partition("@")
    if at and ":" in user:
        raise ConfigurationError(
            f"the address names a user and a password, but SQLite is a file; write {_FORMS} "
            f"(%40 for an '@' of the path)"
        )
    location, _, query = rest.partition("?")
    if location and not location.startswith("/"):
        raise ConfigurationError(
            f"the address names a host, but SQLite is a file; "
            f"write {_FORMS} (three slashes, or four)"
        )
    if "#" in rest:
        raise ConfigurationError(
            "the SQLite address has a '#'; write %23 if it belongs to the path"
        )
    path = unquote(location.removeprefix("/"))
    if not path or path == ":memory:":
        raise ConfigurationError(
            f"the SQLite address names no file; write {_FORMS}, "
            f"or memory:// for messages that need not last"
        )
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise ConfigurationError(
                f"{_WHAT}: unknown option {name!r}{suggestion(name, _OPTIONS)} (known: {known})"
            )
        if name in options:
            raise ConfigurationError(f"{_WHAT}: option {name!r} is there twice")
        options[name] = value
    return SqliteUrl(
        path,
        synchronous=_synchronous(options),
        lease=_number(options, "lease"),
        busy_timeout=_number(options, "busy_timeout"),
    )


def _synchronous(options: dict[str, str]) -> Synchronous | None:
    given = options.get("synchronous")
    if given is None:
        return None
    for known in get_args(Synchronous):
        if given.upper() == known:
            return known
    raise ConfigurationError(f"{_WHAT}: synchronous must be FULL or NORMAL, got {given!r}")


def _number(options: dict[str, str], name: str) -> float | None:
    given = options.get(name)
    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        raise ConfigurationError(f"{_WHAT}: {name} must be seconds, got {given!r}") from None
