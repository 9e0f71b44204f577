"""The options of a dashboard, checked on creation."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from matador.errors import ConfigurationError
from matador.model.options import whole_number
from matador.storage import open_storage

LOOPBACK = "127.0.0.1"
_SHORTEST_TOKEN = 16
_LONGEST_NAME = 60

Role: TypeAlias = Literal["read-only", "operator"]


class User(NamedTuple):
    """A user with a token. ``name`` is empty if the token has no name."""

    name: str
    role: Role
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSpark:
    """The Spark that reads the lake, as for ``matador.spark.spark_session``.

    ``remote`` may contain a token, so it is not shown.
    """

    master: str | None = None
    remote: str | None = field(default=None, repr=False)
    config: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if self.master is not None and self.remote is not None:
            raise ConfigurationError("dashboard: give Spark's master or remote, not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """The options of a dashboard: its address, its users and its files.

    Attributes:
        history: the SQLite file with the history; see ``matador.observe.History``.
        audit: the file that every action is added to, as lines of JSON. None: beside the history.
        host: the address to listen on. Any but this machine's own needs a token.
        port: the port to listen on.
        token: the token of operators, or the tokens of several operators by name. If this and
            ``read_token`` are None, all users of this machine are operators.
        read_token: the token of users that may only read, or the tokens of several such users by
            name.
        allowed_hosts: names by which browsers reach the dashboard, besides addresses and
            ``localhost``.
        webhook: an HTTP address that gets a JSON object when a problem begins or ends.
        mask: names of payload fields whose values are never shown.
        lake: the folder of the lake, or its place in an object store, for its page.
        storage_options: of that store; see ``Lake``.
        spark: the Spark that reads it.

    Raises:
        ConfigurationError: one of them is invalid, or would give access to strangers.

    Example:
        >>> DashboardOptions(history="history.db", mask=("card_number",)).host
        '127.0.0.1'
    """

    history: str | Path
    audit: str | Path | None = None
    host: str = LOOPBACK
    port: int = 8080
    token: str | Mapping[str, str] | None = field(default=None, repr=False)
    read_token: str | Mapping[str, str] | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    webhook: str | None = field(default=None, repr=False)
    mask: tuple[str, ...] = ()
    lake: str | Path | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    spark: LakeSpark = field(default_factory=LakeSpark)

    def __post_init__(self) -> None:
        whole_number(self.port, "dashboard: port", minimum=0)
        if self.lake is not None:
            open_storage(self.lake, "dashboard: lake", self.storage_options)  # nothing is asked
        elif self.storage_options:
            raise ConfigurationError("dashboard: storage options are for a lake; give its place")
        if self.webhook is not None and not self.webhook.startswith(("http://", "https://")):
            raise ConfigurationError("dashboard: the webhook must begin with http:// or https://")
        for user in self.users:
            what = f"token of {user.name}" if user.name else f"{user.role} token"
            if len(user.token) < _SHORTEST_TOKEN or not user.token.isprintable():
                raise ConfigurationError(
                    f"dashboard: the {what} must have at least {_SHORTEST_TOKEN} printable "
                    f"characters; make one with `openssl rand -hex 32`"
                )
            if not user.name.isprintable() or len(user.name) > _LONGEST_NAME:
                raise ConfigurationError(
                    f"dashboard: {user.name!r} is no name for a user: use up to {_LONGEST_NAME} "
                    f"printable characters"
                )
        names = [one.name for one in self.users if one.name]
        if len({one.token for one in self.users}) < len(self.users) or len({*names}) < len(names):
            raise ConfigurationError(
                "dashboard: two users have the same token, or the same name; each needs its own, "
                "including users that may only read"
            )
        if not self.needs_login and not is_loopback(self.host):
            raise ConfigurationError(
                f"dashboard: will not listen on {self.host} without a token, because any client "
                "that reaches the port could read and redrive messages; give --token-file"
            )

    @property
    def needs_login(self) -> bool:
        """Whether users must log in with a token."""
        return self.token is not None or self.read_token is not None

    @property
    def users(self) -> list[User]:
        """The users, with their tokens."""
        found: list[User] = []
        roles: tuple[tuple[Role, str | Mapping[str, str] | None], ...]
        roles = ("operator", self.token), ("read-only", self.read_token)
        for role, given in roles:
            tokens = {"": given} if isinstance(given, str) else given or {}
            found += [User(name, role, token) for name, token in tokens.items()]
        return found

    @property
    def audit_file(self) -> Path:
        """The file of the audit log."""
        history = Path(self.history)
        return (
            history.with_name(f"{history.name}.audit.jsonl") if not self.audit else Path(self.audit)
        )


def is_loopback(host: str) -> bool:
    """Whether the address is only reachable from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_known_host(header: str, allowed: tuple[str, ...]) -> bool:
    """Whether a ``Host`` header is accepted. Otherwise, a foreign page could send the request.

    A request of a page whose name points to this machine (DNS rebinding) has that name as its
    ``Host``. An IP address, or an allowed name, cannot be such a name.
    """
    name = header.strip().lower()
    if name.startswith("["):
        name = name.partition("]")[0] + "]"
    else:
        name = name.partition(":")[0]
    if name == "localhost" or name in {one.lower() for one in allowed}:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
