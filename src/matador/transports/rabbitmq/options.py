"""The options of RabbitMQ, and its addresses: ``amqp://user:password@host:5672/vhost``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

from matador.errors import ConfigurationError
from matador.model.options import Seconds
from matador.transports.kit.options import (
    ReconnectOptions,
    Scheme,
    ServerAddress,
    choice,
    duration,
    option,
    text,
    whole,
)

DelayMechanism: TypeAlias = Literal["auto", "levels", "plugin"]

_SWITCHES = {
    **dict.fromkeys(("1", "yes", "on", "true"), "true"),
    **dict.fromkeys(("0", "no", "off", "false"), "false"),
    "auto": "auto",
}


def _check_management(value: Any, what: str) -> str:
    given = str(value)
    if given.lower() in _SWITCHES:
        return _SWITCHES[given.lower()]
    try:
        parts = urlsplit(given)
    except ValueError:  # whose text would repeat it
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"{what} must be true, false, auto, or an address like https://rabbit-1:15671"
        )
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError(f"{what} takes no user or password: those of the address are used")
    return given


class RabbitMQOptions(ReconnectOptions, total=False):
    """The options as keywords. Each can also be given in the URL."""

    name: str
    heartbeat: Seconds
    connect_timeout: Seconds
    send_timeout: Seconds
    window: int
    max_message_size: int
    delays: DelayMechanism
    delay_prefix: str
    management: str | bool
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_verify: bool
    tls_server_name: str | None


@dataclass(frozen=True, kw_only=True)
class RabbitMQAddress(ServerAddress):
    """The address and the options of a RabbitMQ server. Its repr contains no secret.

    Attributes:
        vhost: the virtual host.
        heartbeat: in seconds; a dead connection is detected within two of them. 0: never.
        connect_timeout: seconds to reach one host.
        send_timeout: seconds until a send fails if the message is not confirmed, or not even
            accepted because the broker blocks publishers.
        window: how many messages may be unconfirmed at once.
        max_message_size: bytes of the largest body (RabbitMQ 4 accepts 16 MiB by default).
        delays: ``levels``: with queues of our own; ``plugin``: with the delayed-message plugin;
            ``auto``: with the plugin if the server has it.
        delay_prefix: the prefix of the names of the queues for delays.
        management: where the management plugin is, for what AMQP does not tell. ``true``: on the
            same host, on AMQP's port + 10,000; ``false``: it is not asked; ``auto``: the same as
            ``true``, but only over TLS with a verified certificate, because each request sends the
            password.
        name: for logs and metrics.
    """

    kind = "RabbitMQ"
    schemes: ClassVar[Mapping[str, Scheme]] = {
        "amqp": Scheme(5672, several=True),
        "amqps": Scheme(5671, tls=True, several=True),
    }
    form = "amqp://user:password@host:5672/vhost"
    default_host = "localhost"

    user: str = field(default="guest", repr=False)
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    heartbeat: float = duration(30.0)
    connect_timeout: float = duration(5.0, minimum=0.1)
    send_timeout: float = duration(30.0, minimum=0.1)
    window: int = whole(2048, minimum=1)
    max_message_size: int = whole(16 * 1024 * 1024, minimum=1)
    delays: DelayMechanism = choice("auto", ("auto", "levels", "plugin"))
    delay_prefix: str = text("matador.delay", empty=False)
    management: str = option("auto", _check_management, _check_management)
    name: str = text("rabbitmq", empty=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.heartbeat < 1:
            raise ConfigurationError(
                f"RabbitMQ: heartbeat must be 0 or at least 1 s, got {self.heartbeat:g}"
            )

    def __str__(self) -> str:
        """The address without its password."""
        scheme = "amqps" if self.tls else "amqp"
        return f"{scheme}://{self.listed_hosts}{'' if self.vhost == '/' else '/' + self.vhost}"

    @classmethod
    def _of_path(cls, scheme: str, path: str) -> dict[str, Any]:
        return {"vhost": unquote(path)} if path else {}
