"""Reads ``bullmq://`` addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from matador.errors import ConfigurationError
from matador.transports.credentials import split_url
from matador.transports.redis_client.address import PORT, SECONDS, TLS, Reader

_FORM = "bullmq://user:password@host:6379/0?prefix=bull"
_OPTIONS = (*SECONDS, "prefix", "tls", *TLS)


@dataclass(frozen=True, slots=True)
class BullMQUrl:
    """An address, taken apart. Its representation has no credentials.

    Attributes:
        prefix: what all keys begin with, as BullMQ's own option.
        seconds: what was given of ``lease``, ``timeout`` and ``heartbeat``.
    """

    host: str
    port: int = PORT
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
    parts = split_url(url)
    if parts.scheme != "bullmq":
        raise ConfigurationError(f"not a BullMQ address ({parts.scheme}://); write {_FORM}")
    read = Reader.of("BullMQ address", parts, _OPTIONS)
    tls = read.boolean("tls", default=False)
    read.check_tls(tls, "add tls=true")
    try:
        host, port = parts.hostname, parts.port or PORT
    except ValueError:
        raise ConfigurationError("BullMQ address: the port is not one") from None
    if not host:
        raise ConfigurationError(f"BullMQ address: the host is missing; write {_FORM}")
    prefix = read.options.get("prefix", "bull")
    if not prefix:
        raise ConfigurationError("BullMQ address: the prefix is empty")
    return BullMQUrl(
        host=host,
        port=port,
        db=read.db(parts.path.strip("/")),
        username=unquote(parts.username or "") or None,
        password=unquote(parts.password or "") or None,
        tls=tls,
        tls_ca=read.file("tls_ca"),
        tls_cert=read.file("tls_cert"),
        tls_key=read.file("tls_key"),
        tls_verify=read.boolean("tls_verify", default=True),
        prefix=prefix,
        seconds=read.seconds(),
    )
