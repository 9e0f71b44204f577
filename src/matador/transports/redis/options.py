"""Redis addresses and their options: one server, one behind Sentinels, or a Unix socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args
from urllib.parse import unquote

from matador.errors import ConfigurationError
from matador.transports.kit.options import Scheme, choice, text
from matador.transports.redis_client.options import PORT, RedisServerAddress, RedisServerOptions

RedisMode: TypeAlias = Literal["streams", "list", "pubsub"]
"""``streams``: all features. ``list``: plain lists. ``pubsub``: to all current subscribers, not
stored."""

_SENTINEL_PORT = 26379


class RedisOptions(RedisServerOptions, total=False):
    """The options as keywords; each can be given in the address, too."""

    sentinel_username: str | None
    sentinel_password: str | None


@dataclass(frozen=True, kw_only=True)
class RedisAddress(RedisServerAddress):
    """A Redis address with its options. Its repr has no secret.

    Attributes:
        primary: the name of the server on the Sentinels; ``hosts`` are the Sentinels'.
        socket: the path of a Unix socket; there are no ``hosts``.
    """

    kind = "Redis"
    schemes: ClassVar[Mapping[str, Scheme]] = {
        "redis": Scheme(PORT),
        "rediss": Scheme(PORT, tls=True),
        "redis+sentinel": Scheme(_SENTINEL_PORT, several=True),
        "rediss+sentinel": Scheme(_SENTINEL_PORT, tls=True, several=True),
        "redis+unix": Scheme(0),
    }
    form = (
        "redis://user:password@host:6379/0, rediss:// for TLS, "
        "redis+sentinel://host1,host2/primary/0 or redis+unix:///path/to/redis.sock"
    )

    primary: str | None = None
    socket: str | None = None
    name: str = text("redis", empty=False)
    mode: RedisMode = choice("streams", get_args(RedisMode))
    prefix: str = text("matador", empty=False)
    sentinel_username: str | None = text(None, secret=True)
    sentinel_password: str | None = text(None, secret=True)

    @classmethod
    def _of_path(cls, scheme: str, path: str) -> dict[str, Any]:
        if scheme == "redis+unix":
            if not path:
                raise ConfigurationError(f"Redis: a socket needs its path; write {cls.form}")
            return {"socket": f"/{unquote(path)}"}
        if not scheme.endswith("+sentinel"):
            return super()._of_path(scheme, path)
        primary, _, rest = path.partition("/")
        if not primary:
            raise ConfigurationError(f"Redis: the primary's name is missing; write {cls.form}")
        return {"primary": unquote(primary), **super()._of_path(scheme, rest)}

    @property
    def where(self) -> str:
        """The server in a few words, without credentials: for logs and errors."""
        if self.socket is not None:
            return f"Redis at {self.socket}"
        if self.primary is not None:
            return f"Redis {self.primary!r} of the Sentinels {self.listed_hosts}"
        return f"Redis at {self.listed_hosts}"
