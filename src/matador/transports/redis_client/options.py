"""The options that all addresses of a Redis server have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from matador.errors import ConfigurationError
from matador.model.options import Seconds
from matador.transports.kit.options import ReconnectOptions, ServerAddress, duration, whole

PORT = 6379


class RedisServerOptions(ReconnectOptions, total=False):
    """The options as keywords; each can be given in the address, too."""

    name: str
    lease: Seconds | None
    timeout: Seconds | None
    heartbeat: Seconds | None
    prefix: str | None
    db: int | None
    tls: bool | None
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_verify: bool | None


@dataclass(frozen=True, kw_only=True)
class RedisServerAddress(ServerAddress):
    """The address of a Redis server.

    Attributes:
        db: the number of the database.
        lease, timeout, heartbeat: seconds; see the transports.
    """

    db: int = whole(0)
    lease: float = duration(30.0, minimum=0.1)
    timeout: float = duration(10.0, minimum=0.1)
    heartbeat: float = duration(5.0, minimum=0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tls_server_name is not None:
            raise ConfigurationError(
                f"{self.kind}: tls_server_name is not supported; connect to the host that the "
                f"certificate names"
            )

    @classmethod
    def _of_path(cls, scheme: str, path: str) -> dict[str, Any]:
        db = unquote(path).strip("/")
        if not db:
            return {}
        if not db.isdecimal():
            raise ConfigurationError(
                f"{cls.kind}: the path of the address must be the number of the database; "
                f"write {cls.form}"
            )
        return {"db": int(db)}

    @property
    def tls_options(self) -> dict[str, Any]:
        """The TLS options of redis-py."""
        return {
            "ssl_ca_certs": self.tls_ca,
            "ssl_certfile": self.tls_cert,
            "ssl_keyfile": self.tls_key,
            "ssl_cert_reqs": "required" if self.tls_verify else "none",
            "ssl_check_hostname": self.tls_verify,
        }
