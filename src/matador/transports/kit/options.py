"""Addresses and options of transports, read the same way everywhere.

A transport declares its options once, as fields of a frozen dataclass: ``lease: float =
duration(30.0)``. Each can then be given in the address (``?lease=60``) and as a keyword
(``lease=60``); the keyword wins. Values from both places are checked. Errors say what to write
instead and never repeat an address, because it may contain a password.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar, get_args
from urllib.parse import SplitResult, parse_qsl, unquote

from matador.errors import ConfigurationError
from matador.model.backoff import BackoffStrategy, ReconnectBackoff
from matador.model.options import Seconds, seconds, suggestion, whole_number
from matador.transports.credentials import split_url

Made = TypeVar("Made", bound="Options")
Known = TypeVar("Known", bound=str)
Duration = TypeVar("Duration", bound="float | None")

_TRUTHS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


@dataclass(frozen=True, slots=True)
class Option:
    """How an option is read from an address, and checked. Both raise ``ConfigurationError``."""

    read: Callable[[str, str], Any]
    check: Callable[[Any, str], Any]


def option(
    default: Any,
    read: Callable[[str, str], Any],
    check: Callable[[Any, str], Any],
    *,
    shown: bool = True,
) -> Any:
    """A field of ``Options`` that is read and checked by these functions; see ``Option``."""
    return field(default=default, repr=shown, metadata={"option": Option(read, check)})


def duration(default: Duration, *, minimum: float = 0.0) -> Duration:
    """An option in seconds; a keyword may be a ``timedelta``. None is allowed as the default."""

    def read(text: str, what: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise ConfigurationError(f"{what} must be a number of seconds, got {text!r}") from None

    def check(value: Seconds | None, what: str) -> float | None:
        if value is None and default is None:
            return None
        return seconds(value, what, minimum=minimum)  # pyright: ignore[reportArgumentType] - users

    return option(default, read, check)


def whole(default: int, *, minimum: int = 0) -> int:
    """An option that is a whole number."""

    def read(text: str, what: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise ConfigurationError(f"{what} must be a whole number, got {text[:20]!r}") from None

    def check(value: int, what: str) -> int:
        return whole_number(value, what, minimum=minimum)

    return option(default, read, check)


def number(default: float, *, minimum: float, maximum: float) -> float:
    """An option that is a number."""

    def read(text: str, what: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise ConfigurationError(f"{what} must be a number, got {text[:20]!r}") from None

    def check(value: Any, what: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigurationError(f"{what} must be a number, got {value!r}")
        if not minimum <= value <= maximum:
            raise ConfigurationError(
                f"{what} must be from {minimum:g} to {maximum:g}, got {value!r}"
            )
        return float(value)

    return option(default, read, check)


def flag(default: bool) -> bool:
    """An option that is true or false: ``true``, ``1``, ``yes``, ``on`` and their opposites."""

    def read(text: str, what: str) -> bool:
        found = _TRUTHS.get(text.lower())
        if found is None:
            raise ConfigurationError(f"{what} must be true or false, got {text!r}")
        return found

    def check(value: Any, what: str) -> bool:
        if not isinstance(value, bool):
            raise ConfigurationError(f"{what} must be true or false, got {value!r}")
        return value

    return option(default, read, check)


def choice(default: Known, known: Iterable[str]) -> Known:
    """An option that is one of a few words, in upper or lower case."""
    words = {word.lower(): word for word in known}

    def check(value: Any, what: str) -> str:
        found = words.get(str(value).lower())
        if found is None:
            listed = list(words.values())
            names = f"{', '.join(listed[:-1])} or {listed[-1]}"
            raise ConfigurationError(
                f"{what} must be {names}, got {value!r}{suggestion(str(value), listed)}"
            )
        return found

    return option(default, check, check)


def text(default: Any, *, secret: bool = False, empty: bool = True) -> Any:
    """An option that is a text. A ``secret`` is neither in the repr nor in an error."""

    def check(value: Any, what: str) -> str | None:
        if value is not None and not isinstance(value, str):
            got = "" if secret else f", got {value!r}"
            raise ConfigurationError(f"{what} must be a text{got}")
        if value == "" and not empty:
            raise ConfigurationError(f"{what} must not be empty")
        return value

    return option(default, check, check, shown=not secret)


def file(*, secret: bool = False) -> str | None:
    """An option that is the path of a file that exists; None: not given."""

    def check(value: Any, what: str) -> str | None:
        if value is None:
            return None
        if not Path(value).is_file():
            raise ConfigurationError(f"{what}: there is no file {str(value)!r}")
        return str(value)

    return option(None, check, check, shown=not secret)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a transport; fields made by the functions above. Checked when made.

    Raises:
        ConfigurationError: a value is invalid.
    """

    kind: ClassVar[str] = "transport"
    """The broker's name in errors."""

    def __post_init__(self) -> None:
        for one, option in _declared(type(self)):
            checked = option.check(getattr(self, one), f"{self.kind}: {one}")
            object.__setattr__(self, one, checked)


def _declared(made: type[Options]) -> list[tuple[str, Option]]:
    return [(one.name, one.metadata["option"]) for one in fields(made) if "option" in one.metadata]


def read_options(
    made: type[Options], query: str = "", given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The values of a query and of keywords (None: not given) by their names, not checked yet.

    Raises:
        ConfigurationError: unknown, repeated, or unreadable.
    """
    declared = dict(_declared(made))

    def declaration(name: str) -> Option:
        if name not in declared:
            raise ConfigurationError(
                f"{made.kind}: unknown option {name[:40]!r}{suggestion(name, declared)} "
                f"(known: {', '.join(declared)})"
            )
        return declared[name]

    values: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        found = declaration(name)
        if name in values:
            raise ConfigurationError(f"{made.kind}: duplicate option {name!r}")
        values[name] = found.read(value, f"{made.kind}: {name}")
    for name, value in (given or {}).items():
        declaration(name)
        if value is not None:
            values[name] = value
    return values


# -- servers ---------------------------------------------------------------------------------------


class ReconnectOptions(TypedDict, total=False):
    """How a lost connection is restored, as keywords; see ``Reconnecting``."""

    reconnect: BackoffStrategy | None
    reconnect_delay: Seconds | None
    reconnect_max_delay: Seconds | None
    reconnect_multiplier: float | None
    reconnect_attempts: int | None


@dataclass(frozen=True, kw_only=True)
class Reconnecting(Options):
    """How a lost connection is restored: the same for all brokers.

    Attributes:
        reconnect: how the delays between attempts to reconnect grow.
        reconnect_delay: the first delay in seconds, and the step of linear delays.
        reconnect_max_delay: the longest delay in seconds.
        reconnect_multiplier: the factor between exponential delays.
        reconnect_attempts: failed attempts after which the connection is ``failed``; 0: no limit.
    """

    # Start with short delays: a restarted server is back within a second or two.
    reconnect: BackoffStrategy = choice("exponential", get_args(BackoffStrategy))
    reconnect_delay: float = duration(0.1)
    reconnect_max_delay: float = duration(2.0)
    reconnect_multiplier: float = number(2.0, minimum=1, maximum=1000)
    reconnect_attempts: int = whole(0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reconnect_max_delay < self.reconnect_delay:
            raise ConfigurationError(
                f"{self.kind}: reconnect_max_delay ({self.reconnect_max_delay:g} s) must be at "
                f"least reconnect_delay ({self.reconnect_delay:g} s)"
            )

    @property
    def backoff(self) -> ReconnectBackoff:
        """The delays between attempts to reconnect."""
        return ReconnectBackoff(
            self.reconnect,
            base_delay=self.reconnect_delay,
            max_delay=self.reconnect_max_delay,
            multiplier=self.reconnect_multiplier,
            max_attempts=self.reconnect_attempts,
        )


@dataclass(frozen=True, slots=True)
class Scheme:
    """The meaning of the part before ``://``: the default port (0: a socket, so there is no host),
    whether the connection has TLS, whether several hosts may be listed."""

    port: int
    tls: bool = False
    several: bool = False


@dataclass(frozen=True, kw_only=True)
class ServerAddress(Reconnecting):
    """The address of a server and its connection options. The repr contains no secrets.

    A broker's address adds its options, and reads the path in ``_of_path``.

    Attributes:
        hosts: names and ports.
        user, password: the credentials.
        tls: the connection is encrypted.
        tls_ca: a file of trusted certificates; None: the system's.
        tls_cert, tls_key: files with the client certificate and its key.
        tls_verify: False accepts any certificate: for tests only.
        tls_server_name: the name the certificate must have; None: the host's.
    """

    schemes: ClassVar[Mapping[str, Scheme]] = {}
    form: ClassVar[str] = ""
    """An address to write, for errors."""
    default_host: ClassVar[str | None] = None

    hosts: tuple[tuple[str, int], ...] = ()
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: bool = flag(False)
    tls_ca: str | None = file()
    tls_cert: str | None = file()
    tls_key: str | None = file(secret=True)
    tls_verify: bool = flag(True)
    tls_server_name: str | None = text(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [
            one
            for one in ("tls_ca", "tls_cert", "tls_key", "tls_server_name")
            if getattr(self, one) is not None
        ]
        if not self.tls_verify:
            given.append("tls_verify")
        if given and not self.tls:
            secure = [f"{name}://" for name, scheme in self.schemes.items() if scheme.tls]
            how = f"write {secure[0]}" if secure else "add tls=true"
            raise ConfigurationError(f"{self.kind}: {given[0]} needs TLS; {how}")
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigurationError(f"{self.kind}: tls_key needs tls_cert, the certificate of it")

    @property
    def listed_hosts(self) -> str:
        """``host:port,host:port``: for logs and errors."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    @classmethod
    def _of_path(cls, scheme: str, path: str) -> dict[str, Any]:
        """The fields that the path of an address holds; ``path`` has no slash in front."""
        if path:
            raise ConfigurationError(f"{cls.kind}: the address has a path; write {cls.form}")
        return {}


Address = TypeVar("Address", bound=ServerAddress)


def read_address(made: type[Address], url: str, given: Mapping[str, Any] | None = None) -> Address:
    """Read an address with its options; keywords win over what it says.

    Raises:
        ConfigurationError: it is malformed, or an option is unknown, repeated or cannot be.
    """
    scheme = url.partition("://")[0].lower()
    if scheme not in made.schemes:
        raise ConfigurationError(f"not an address of {made.kind}; write {made.form}")
    parts = split_url(url)
    values: dict[str, Any] = {"tls": made.schemes[scheme].tls}
    values |= _server_of(made, parts)
    values |= made._of_path(scheme, parts.path.removeprefix("/"))  # pyright: ignore[reportPrivateUsage]
    secure = values["tls"]
    values |= read_options(made, parts.query, given)
    if secure and values["tls"] is False:
        raise ConfigurationError(f"{made.kind}: tls=false contradicts {scheme}://")
    return made(**values)


def _server_of(made: type[ServerAddress], parts: SplitResult) -> dict[str, Any]:
    credentials, _, listed = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    found: dict[str, Any] = {}
    if user or password:
        found = {"user": unquote(user) or None, "password": unquote(password) or None}
    scheme = made.schemes[parts.scheme]
    if scheme.port == 0:
        if listed:
            raise ConfigurationError(f"{made.kind}: a socket has no host; write {made.form}")
        return found
    if not listed:
        listed = made.default_host
    if not listed:
        raise ConfigurationError(f"{made.kind}: the host is missing; write {made.form}")
    hosts = listed.split(",")
    if len(hosts) > 1 and not scheme.several:
        raise ConfigurationError(f"{made.kind}: the address has several hosts; write {made.form}")
    found["hosts"] = tuple(_host(one, scheme.port, made) for one in hosts)
    return found


def _host(written: str, default_port: int, made: type[ServerAddress]) -> tuple[str, int]:
    host, colon, port = written.rpartition(":")
    if not colon or port.endswith("]"):  # no port; an IPv6 address has colons of its own
        host, port = written, ""
    if not host or (port and not (port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536)):
        raise ConfigurationError(
            f"{made.kind}: {written!r} is not a host and a port; write {made.form}"
        )
    return host.strip("[]"), int(port) if port else default_port


def tls_context(address: ServerAddress) -> ssl.SSLContext:
    """A context to connect with, as the address says.

    Raises:
        OSError: a file cannot be read, or does not hold a certificate or a key.
    """
    context = ssl.create_default_context(cafile=address.tls_ca)
    if not address.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if address.tls_cert is not None:
        context.load_cert_chain(address.tls_cert, address.tls_key)
    return context
