"""The options of SQLite, and its addresses: ``sqlite:///relative.db?lease=60``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from matador.errors import ConfigurationError
from matador.transports.kit.options import Options, choice, duration, read_options, text
from matador.transports.sqlite.database import Synchronous

_FORMS = "sqlite:///relative.db or sqlite:////absolute/path.db"


@dataclass(frozen=True, kw_only=True)
class SqliteOptions(Options):
    kind = "SQLite"

    path: str | Path
    synchronous: Synchronous = choice("FULL", ("FULL", "NORMAL"))
    lease: float = duration(30.0, minimum=0.1)
    busy_timeout: float = duration(10.0)
    name: str = text("sqlite", empty=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if str(self.path) in ("", ".", ":memory:"):
            raise ConfigurationError(
                f"SQLite: path must name a file, got {str(self.path)!r}; write {_FORMS}, or use "
                f"MemoryTransport (memory://) for messages that need not last"
            )


def read_url(url: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The path and the options of an address, and those ``given`` as keywords; not checked yet.

    Raises:
        ConfigurationError: it is malformed, or has an unknown option. The message does not repeat
            the address: it may be another broker's, with a password.

    Example:
        >>> read_url("sqlite:///shop.db?lease=60")
        {'path': 'shop.db', 'lease': 60.0}
    """
    scheme, separator, rest = url.partition("://")
    if scheme.lower() != "sqlite" or not separator:
        raise ConfigurationError(f"not an address of SQLite; write {_FORMS}")
    location, _, query = rest.partition("?")
    user, at, _ = rest.partition("@")
    if at and ":" in user:
        raise ConfigurationError(
            f"the address has a user and a password, but SQLite is a file; write {_FORMS} "
            f"(%40 for an '@' in the path)"
        )
    if location and not location.startswith("/"):
        raise ConfigurationError(
            f"the address has a host, but SQLite is a file; write {_FORMS} (three slashes, or four)"
        )
    if "#" in rest:
        raise ConfigurationError("SQLite: the address has a '#'; write %23 if the path has one")
    path = unquote(location.removeprefix("/"))
    return {"path": path, **read_options(SqliteOptions, query, given)}
