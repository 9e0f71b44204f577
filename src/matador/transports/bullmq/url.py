"""Reads ``bullmq://`` addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from matador.errors import ConfigurationError
from matador.model.options import suggestion

_FORM = "bullmq://user:password@host:6379/0?prefix=bull"
_SECONDS = ("lease", "timeout", "heartbeat")
_OPTIONS = (*_SECONDS, "prefix", "tls", "tls_ca", "tls_cert", "tls_key", "tls_verify")
_PORT = 6379


@dataclass(frozen=True, slots=True)
class BullMQUrl:
    """An address, taken apart. Its representation has no credentials.

    Attributes:
        prefix: what all keys begin with, as BullMQ's own option.
        seconds: what was given of ``lease``, ``timeout`` and ``heartbeat``.
    """

    host: str
    port: int = _PORT
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: bool = True
    prefix: str = "bull"
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def where(self) -> str:
        """The server in a few words, without credentials: for logs and errors."""
        return f"BullMQ on Redis at {self.host}:{self.port}"


def parse_url(url: str) -> BullMQUrl:
    """Take an address apart.

    Raises:
        ConfigurationError: it is malformed, or has an option nobody knows. The message does not
            repeat the address: it may hold a password.

    Example:
        >>> parse_url("bullmq://localhost/2?lease=60").seconds
        {'lease': 60.0}
    """
    parts = urlsplit(url)
    if parts.scheme != "bullmq":
        raise ConfigurationError(f"not a BullMQ address ({parts.scheme}://); write {_FORM}")
    options = _options(parts)
    try:
        host, port = parts.hostname, parts.port or _PORT
    except ValueError:
        raise ConfigurationError("BullMQ address: the port is not one") from None
    if not host:
        raise ConfigurationError(f"BullMQ address: the host is missing; write {_FORM}")
    prefix = options.get("prefix", "bull")
    if not prefix:
        raise ConfigurationError("BullMQ address: the prefix is empty")
    return BullMQUrl(
        host=host,
        port=port,
        db=_db(parts.path.strip("/")),
        username=unquote(parts.username or "") or None,
        password=unquote(parts.password or "") or None,
        tls=_boolean(options, "tls", "false"),
        tls_ca=_file(options, "tls_ca"),
        tls_cert=_file(options, "tls_cert"),
        tls_key=_file(options, "tls_key"),
        tls_verify=_boolean(options, "tls_verify", "true"),
        prefix=prefix,
        seconds={name: _seconds(name, options[name]) for name in _SECONDS if name in options},
    )


def _options(parts: SplitResult) -> dict[str, str]:
    if parts.fragment:
        raise ConfigurationError("the address has a '#'; write %23 if it belongs to the password")
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise ConfigurationError(
                f"BullMQ address: unknown option {name!r}{suggestion(name, _OPTIONS)} "
                f"(known: {', '.join(_OPTIONS)})"
            )
        if name in options:
            raise ConfigurationError(f"BullMQ address: option {name!r} is there twice")
        options[name] = value
    more = [name for name in options if name.startswith("tls_")]
    if more and not _boolean(options, "tls", "false"):
        raise ConfigurationError(f"BullMQ address: {more[0]} needs TLS; add tls=true")
    return options


def _db(text: str) -> int:
    if text and not text.isdecimal():
        raise ConfigurationError(f"BullMQ address: the database must be a number, got {text!r}")
    return int(text or "0")


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"BullMQ address: {name} must be seconds, got {text!r}") from None


def _boolean(options: Mapping[str, str], name: str, default: str) -> bool:
    text = options.get(name, default).lower()
    if text not in ("true", "false", "1", "0"):
        raise ConfigurationError(f"BullMQ address: {name} must be true or false, got {text!r}")
    return text in ("true", "1")


def _file(options: Mapping[str, str], name: str) -> str | None:
    path = options.get(name)
    if path is not None and not Path(path).is_file():
        raise ConfigurationError(f"BullMQ address: {name}: there is no file {path!r}")
    return path
