"""Reads ``redis://`` addresses: one server, one behind Sentinels, or a socket of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args
from urllib.parse import unquote

from matador.errors import ConfigurationError
from matador.model.options import suggestion
from matador.transports.credentials import split_url
from matador.transports.redis_client.address import PORT, SECONDS, TLS, Reader

Mode: TypeAlias = Literal["streams", "list", "pubsub"]
"""``streams``: everything. ``list``: plain lists. ``pubsub``: to all who listen, kept nowhere."""

SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+unix")
_FORMS = (
    "redis://user:password@host:6379/0, rediss:// for TLS, "
    "redis+sentinel://host1,host2/primary/0 or redis+unix:///path/to/redis.sock"
)
_OPTIONS = (
    "mode",
    *SECONDS,
    "prefix",
    "db",
    *TLS,
    "sentinel_username",
    "sentinel_password",
)
_SENTINEL_PORT = 26379


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """An address, taken apart. Its representation has no credentials.

    Attributes:
        hosts: the server, or the Sentinels; empty for a socket.
        primary: the name under which the Sentinels know the server.
        socket: the path of the server's socket.
        options: what was given of ``lease``, ``timeout``, ``heartbeat``, as seconds.
    """

    hosts: tuple[tuple[str, int], ...] = ()
    primary: str | None = None
    socket: str | None = None
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: bool = True
    mode: Mode = "streams"
    prefix: str | None = None
    options: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def where(self) -> str:
        """The server in a few words, without credentials: for logs and errors."""
        if self.socket is not None:
            return f"Redis at {self.socket}"
        listed = ",".join(f"{host}:{port}" for host, port in self.hosts)
        if self.primary is not None:
            return f"Redis {self.primary!r} of the Sentinels {listed}"
        return f"Redis at {listed}"


def parse_url(url: str) -> RedisUrl:
    """Take an address apart.

    Raises:
        ConfigurationError: it is malformed, or has an option nobody knows. The message does not
            repeat the address: it may hold a password.

    Example:
        >>> parse_url("redis://localhost/2?lease=60").options
        {'lease': 60.0}
    """
    parts = split_url(url)
    if parts.scheme not in SCHEMES:
        raise ConfigurationError(f"not a Redis address ({parts.scheme}://); write {_FORMS}")
    read = Reader.of("Redis address", parts, _OPTIONS)
    tls = parts.scheme.startswith("rediss")
    read.check_tls(tls, "write rediss://")
    options = read.options
    sentinel = parts.scheme.endswith("+sentinel")
    credentials, _, listed = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    names = [unquote(name) for name in parts.path.split("/") if name]
    socket = primary = None
    hosts: tuple[tuple[str, int], ...] = ()
    if parts.scheme == "redis+unix":
        if listed or not names:
            raise ConfigurationError(f"a socket needs its path; write {_FORMS}")
        socket, names = unquote(parts.path), []
    else:
        hosts = tuple(_host(one, sentinel) for one in listed.split(","))
        if sentinel:
            if not names:
                raise ConfigurationError(f"the primary's name is missing; write {_FORMS}")
            primary = names.pop(0)
        elif len(hosts) > 1:
            raise ConfigurationError(f"several hosts are for Sentinels only; write {_FORMS}")
    if len(names) > 1:
        raise ConfigurationError(f"the path is the number of the database; write {_FORMS}")
    return RedisUrl(
        hosts=hosts,
        primary=primary,
        socket=socket,
        db=read.db(names[0] if names else options.get("db", "")),
        username=unquote(username) or None,
        password=unquote(password) or None,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        tls=tls,
        tls_ca=read.file("tls_ca"),
        tls_cert=read.file("tls_cert"),
        tls_key=read.file("tls_key"),
        tls_verify=read.boolean("tls_verify", default=True),
        mode=_mode(options.get("mode", "streams")),
        prefix=options.get("prefix"),
        options=read.seconds(),
    )


def _host(text: str, sentinel: bool) -> tuple[str, int]:
    default = _SENTINEL_PORT if sentinel else PORT
    if text.startswith("["):  # an IPv6 address
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host:
        raise ConfigurationError(f"Redis address: the host is missing; write {_FORMS}")
    if not port:
        return host, default
    if not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        raise ConfigurationError(f"Redis address: the port is not a number; write {_FORMS}")
    return host, int(port)


def _mode(text: str) -> Mode:
    for known in get_args(Mode):
        if text == known:
            return known
    known = get_args(Mode)
    raise ConfigurationError(
        f"Redis address: mode must be one of {', '.join(known)}, got {text!r}"
        f"{suggestion(text, known)}"
    )
