"""Reads ``amqp://`` and ``amqps://`` addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from matador.errors import ConfigurationError
from matador.model.options import Seconds, seconds, suggestion, whole_number
from matador.transports.credentials import split_url

DelayMechanism: TypeAlias = Literal["auto", "levels", "plugin"]

_FORM = "amqp://user:password@host:5672/vhost"
_PORTS = {"amqp": 5672, "amqps": 5671}
_TLS_OPTIONS = ("cafile", "certfile", "keyfile", "verify", "server_name")
_NUMBERS = ("heartbeat", "connect_timeout", "send_timeout")
_WHOLE = ("window", "max_message_size")
_SWITCHES = {
    **dict.fromkeys(("1", "yes", "on", "true"), "true"),
    **dict.fromkeys(("0", "no", "off", "false"), "false"),
}


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server is checked, and who we are to it.

    Attributes:
        cafile: certificates to trust; None: those of the system.
        certfile, keyfile: our own certificate and its key.
        verify: False takes any certificate: for tests only.
        server_name: the name the certificate must have; None: the host's.
    """

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a RabbitMQ is and how to talk to it. Its repr holds no secret.

    Attributes:
        hosts: names and ports, tried in turn.
        user, password: who we are.
        vhost: the virtual host.
        tls: for ``amqps://``.
        heartbeat: seconds; a dead connection is noticed within two of them. 0: never.
        connect_timeout: seconds to reach one host.
        send_timeout: seconds until a message that is not confirmed, or not even accepted because
            the broker blocks publishers, is given up.
        window: how many messages may be unconfirmed at once.
        max_message_size: bytes of the largest body (RabbitMQ 4 takes 16 MiB by default).
        delays: ``levels``: by queues of our own; ``plugin``: by the delayed-message plugin;
            ``auto``: by the plugin if it is there.
        delay_prefix: what the names of the queues for delays start with.
        management: where the management plugin is, for what AMQP does not tell; ``true``: on the
            server's own host, 10,000 ports above AMQP's; ``false``: it is not asked; ``auto``: it
            is looked for there, but only over TLS with a certificate that is verified, as whoever
            listens there is told the password.
    """

    hosts: tuple[tuple[str, int], ...]
    user: str = field(default="guest", repr=False)
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    tls: Tls | None = None
    heartbeat: float = 30.0
    connect_timeout: float = 5.0
    send_timeout: float = 30.0
    window: int = 2048
    max_message_size: int = 16 * 1024 * 1024
    delays: DelayMechanism = "auto"
    delay_prefix: str = "matador.delay"
    management: str = "auto"

    def __str__(self) -> str:
        """The address without its password."""
        scheme = "amqp" if self.tls is None else "amqps"
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{scheme}://{hosts}{'' if self.vhost == '/' else '/' + self.vhost}"


def parse_url(url: str) -> Address:
    """Take an address apart.

    Raises:
        ConfigurationError: it is malformed, or has an option nobody knows. The message never
            repeats the address: it may hold a password.
    """
    if url.partition("://")[0].lower() not in _PORTS:
        raise ConfigurationError(f"not an address of RabbitMQ: write {_FORM}")
    parts = split_url(url)
    address = Address(
        hosts=tuple(_hosts(parts.netloc.rpartition("@")[2], _PORTS[parts.scheme])),
        vhost=unquote(parts.path[1:]) or "/",
        tls=Tls() if parts.scheme == "amqps" else None,
    )
    if parts.username or parts.password:
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        address = replace(address, user=user, password=password)
    return _with_options(address, parts.query)


def _hosts(text: str, default_port: int) -> Iterator[tuple[str, int]]:
    for one in text.split(",") if text else ["localhost"]:
        host, colon, port = one.rpartition(":")
        if not colon or port.endswith("]"):  # no port; an address in brackets has colons of its own
            host, port = one, ""
        if not host or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
            raise ConfigurationError(f"{one!r} is not a host and a port: write {_FORM}")
        yield host.strip("[]"), int(port) if port else default_port


def _with_options(address: Address, query: str) -> Address:
    known = (*_NUMBERS, *_WHOLE, "delays", "delay_prefix", "management", *_TLS_OPTIONS)
    changes: dict[str, Any] = {}
    tls: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ConfigurationError(
                f"amqp: unknown option {name!r}; known are {', '.join(known)}"
                f"{suggestion(name, known)}"
            )
        if name in _TLS_OPTIONS:
            tls[name] = value if name != "verify" else _flag(name, value)
        elif name == "management":
            changes[name] = _SWITCHES.get(value.lower(), value)
        else:
            changes[name] = _number(name, value) if name in _NUMBERS or name in _WHOLE else value
    if tls:
        if address.tls is None:
            raise ConfigurationError(f"{', '.join(sorted(tls))}: only for amqps:// addresses")
        changes["tls"] = replace(address.tls, **tls)
    return checked(replace(address, **changes))


def checked(address: Address) -> Address:
    """The address, if its options can be.

    Raises:
        ConfigurationError: one cannot.
    """
    seconds(address.heartbeat, "heartbeat")
    if 0 < address.heartbeat < 1:
        raise ConfigurationError(f"heartbeat must be 0 or at least 1 s, got {address.heartbeat:g}")
    seconds(address.connect_timeout, "connect_timeout", minimum=0.1)
    seconds(address.send_timeout, "send_timeout", minimum=0.1)
    whole_number(address.window, "window", minimum=1)
    whole_number(address.max_message_size, "max_message_size", minimum=1)
    if address.delays not in get_args(DelayMechanism):
        raise ConfigurationError(
            f"delays={address.delays!r} is not one of {', '.join(get_args(DelayMechanism))}"
            f"{suggestion(address.delays, get_args(DelayMechanism))}"
        )
    if not address.delay_prefix:
        raise ConfigurationError("delay_prefix must not be empty")
    if address.management not in ("auto", "true", "false"):
        try:
            parts = urlsplit(address.management)
        except ValueError:  # urllib's text would repeat it
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                "management must be true, false, auto, or an address like https://rabbit-1:15671"
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigurationError(
                "management takes no user or password: those of the address are used"
            )
    return address


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise ConfigurationError(f"{name} must be true or false, got {value!r}")
    return value.lower() in ("true", "1", "yes")


def _number(name: str, value: str) -> Seconds | int:
    try:
        return int(value) if name in _WHOLE else float(value)
    except ValueError:
        raise ConfigurationError(f"{name} must be a number, got {value!r}") from None
