"""The settings of a queue service: one typed model for file, environment and code.

All values are checked on creation, before any connection. An error names the field, the given value
and the right form. Values that may contain a password are never repeated.
"""

from __future__ import annotations

import os
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args
from urllib.parse import parse_qsl

from matador.channels.declare import check_concurrency
from matador.errors import ConfigurationError
from matador.model.options import seconds, suggestion, whole_number
from matador.policy.backoff import growing_delay
from matador.transports.credentials import is_scheme, without_secrets
from matador.transports.urls import transport_from_url

QueueType: TypeAlias = Literal["memory", "sqlite", "redis", "rabbitmq", "kafka", "sqs"]
"""The brokers that a service can use."""

RedisMode: TypeAlias = Literal["stream", "list", "pubsub"]
"""``stream``: durable, to one consumer or to all. ``list``: to one consumer. ``pubsub``: to all
current listeners."""

QUEUE_TYPES: tuple[QueueType, ...] = get_args(QueueType)
REDIS_MODES: tuple[RedisMode, ...] = get_args(RedisMode)

PREFIX = "MATADOR_"
"""The prefix of environment variables: ``MATADOR_QUEUE__URL``."""

_EXAMPLES: dict[QueueType, tuple[tuple[str, ...], str]] = {
    "memory": (("memory",), "memory://"),
    "sqlite": (("sqlite",), "sqlite:///queue.db"),
    "redis": (("redis", "rediss"), "redis://localhost:6379/0"),
    "rabbitmq": (("amqp", "amqps"), "amqp://user:password@localhost:5672/vhost"),
    "kafka": ((), "host1:9092,host2:9092"),
    "sqs": (("sqs",), "sqs://eu-west-1"),
}
"""The schemes of each type, and the form of its URL."""


class RedisModeWarning(FutureWarning):
    """Redis is used without a mode."""


# -- checking -------------------------------------------------------------------------------------


def _one_of(what: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        hint = suggestion(str(value), known)
        raise ConfigurationError(
            f"{what} must be one of {', '.join(known)}, got {_shown(value)}{hint}"
        )


def _boolean(what: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what} must be true or false, got {_shown(value)}")


def _shown(value: object) -> str:
    """A value for an error. A URL under a wrong name may contain a password."""
    return without_secrets(repr(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_url(kind: QueueType, url: object) -> None:
    """Check that a URL is for this broker. The error does not repeat it, because it may contain a
    password."""
    schemes, example = _EXAMPLES[kind]
    if not isinstance(url, str) or not url:
        raise ConfigurationError(f"queue.url must be a text such as {example!r}")
    scheme, separator, _ = url.partition("://")
    if kind == "kafka":
        servers = url.removeprefix("kafka://").partition("?")[0].partition("/")[0].split(",")
        if (separator and scheme != "kafka") or not all(_is_server(one) for one in servers):
            raise ConfigurationError(
                f"queue.url is not a list of Kafka servers; write for example {example!r}"
            )
        return
    if scheme.lower() not in schemes or not separator:
        shown = f", got {scheme}://…" if separator and is_scheme(scheme.lower()) else ""
        allowed = " or ".join(f"{one}://" for one in schemes)
        raise ConfigurationError(
            f"queue.url for type {kind!r} must start with {allowed}, for example {example!r}{shown}"
        )


def _is_server(text: str) -> bool:
    host, _, port = text.rpartition("@")[2].strip().rpartition(":")
    if not host or (not host.startswith("[") and set(host) & set(":; ")):
        return False
    return port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536


def _with_option(url: str, name: str, value: str) -> str:
    location, _, query = url.partition("?")
    if any(given == name for given, _ in parse_qsl(query, keep_blank_values=True)):
        return url
    return f"{location}?{query + '&' if query else ''}{name}={value}"


# -- the sections ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The section ``[queue]``: the broker, and how messages are received and sent.

    Attributes:
        type: the broker.
        url: its address. For Kafka, a list of servers: ``host1:9092,host2:9092``.
        mode: how Redis is used. None: ``pubsub``, with a warning.
        prefetch: how many messages of each consumer are handled at once.
        batch_size: the maximum size of a batch; also the number of messages fetched at once from
            Kafka.
        compression: compress messages with gzip.

    Raises:
        ConfigurationError: a value is invalid.

    Example:
        >>> QueueSettings(type="rabbitmq", url="amqp://localhost").prefetch
        1
    """

    name: ClassVar[str] = "queue"

    type: QueueType
    url: str
    mode: RedisMode | None = None
    prefetch: int = 1
    batch_size: int = 100
    compression: bool = False

    def __post_init__(self) -> None:
        _one_of("queue.type", self.type, QUEUE_TYPES)
        if self.mode is not None:
            _one_of("queue.mode", self.mode, REDIS_MODES)
            if self.type != "redis":
                raise ConfigurationError(
                    f'queue.mode is for type = "redis" only, but the type is {self.type!r}'
                )
        check_concurrency(self.prefetch, "queue.prefetch")
        whole_number(self.batch_size, "queue.batch_size", minimum=1)
        _boolean("queue.compression", self.compression)
        _check_url(self.type, self.url)
        transport_from_url(self.address)  # reads its options; connects to nothing

    def __repr__(self) -> str:
        """Without the password of the URL: settings are logged."""
        shown = (f"{one.name}={_shown(getattr(self, one.name))}" for one in fields(self))
        return f"QueueSettings({', '.join(shown)})"

    @property
    def address(self) -> str:
        """The URL of the transport."""
        if self.type == "kafka":
            servers = self.url if "://" in self.url else f"kafka://{self.url}"
            return _with_option(servers, "batch_size", str(self.batch_size))
        if self.type == "redis":
            mode = "streams" if self.mode == "stream" else self.mode or "pubsub"
            return _with_option(self.url, "mode", mode)
        return self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """The section ``[retry]``: what happens to a message whose consumer failed.

    Attributes:
        enabled: False: messages are not retried.
        max_attempts: the total number of attempts.
        initial_delay: seconds before the second attempt.
        backoff_multiplier: the factor between delays.

    Raises:
        ConfigurationError: a value is invalid.

    Example:
        >>> RetrySettings(initial_delay=0.5).delay(attempt=3)
        2.0
    """

    name: ClassVar[str] = "retry"

    enabled: bool = True
    max_attempts: int = 3
    initial_delay: float = 1.0
    backoff_multiplier: float = 2.0

    def __post_init__(self) -> None:
        _boolean("retry.enabled", self.enabled)
        whole_number(self.max_attempts, "retry.max_attempts", minimum=1)
        seconds(self.initial_delay, "retry.initial_delay")
        if not _is_number(self.backoff_multiplier) or not 1 <= self.backoff_multiplier < 1000:
            raise ConfigurationError(
                f"retry.backoff_multiplier must be from 1 to 1000, "
                f"got {_shown(self.backoff_multiplier)}"
            )

    def delay(self, attempt: int) -> float:
        """Seconds to wait after the attempt with that number; an hour at most.

        Example:
            >>> RetrySettings(initial_delay=0.5).delay(attempt=3)
            2.0
        """
        return growing_delay(attempt, self.initial_delay, self.backoff_multiplier, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterQueueSettings:
    """The section ``[dead_letter_queue]``: whether dead letters are kept.

    They are kept in ``{channel}.{name}.dlq``. Otherwise they are deleted, with an error in the log.

    Example:
        >>> DeadLetterQueueSettings(enabled=False).enabled
        False
    """

    name: ClassVar[str] = "dead_letter_queue"

    enabled: bool = True

    def __post_init__(self) -> None:
        _boolean("dead_letter_queue.enabled", self.enabled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownSettings:
    """The section ``[shutdown]``: how long a shutdown waits for running consumers, in seconds.

    Example:
        >>> ShutdownSettings(timeout=10).timeout
        10
    """

    name: ClassVar[str] = "shutdown"

    timeout: float = 30.0

    def __post_init__(self) -> None:
        seconds(self.timeout, "shutdown.timeout")


Section: TypeAlias = QueueSettings | RetrySettings | DeadLetterQueueSettings | ShutdownSettings
_SECTIONS: tuple[type[Section], ...] = (
    QueueSettings,
    RetrySettings,
    DeadLetterQueueSettings,
    ShutdownSettings,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a queue service. Immutable, and checked when it is made.

    Example:
        >>> settings = Settings(QueueSettings(type="memory", url="memory://"))
        >>> settings.retry.max_attempts, settings.shutdown.timeout
        (3, 30.0)
    """

    queue: QueueSettings
    retry: RetrySettings = RetrySettings()
    dead_letter_queue: DeadLetterQueueSettings = DeadLetterQueueSettings()
    shutdown: ShutdownSettings = ShutdownSettings()

    def __post_init__(self) -> None:
        if self.queue.type == "redis" and self.queue.mode is None:
            warnings.warn(
                "Redis without a mode uses pubsub, which keeps no message for a consumer that is "
                'not running. This default is deprecated: set mode = "stream" (durable), "list" or '
                '"pubsub" in [queue]',
                RedisModeWarning,
                stacklevel=3,
            )

    @classmethod
    def load(
        cls, path: str | Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Settings:
        """Settings from a TOML file, and from environment variables, which win.

        Args:
            path: the file; None: the environment alone.
            environment: None: that of this process.

        Raises:
            ConfigurationError: the file cannot be read, or a value is invalid, missing or unknown.

        Example:
            >>> Settings.load(environment={
            ...     "MATADOR_QUEUE__TYPE": "memory", "MATADOR_QUEUE__URL": "memory://",
            ... }).queue.type
            'memory'
        """
        given = {} if path is None else _read_file(path)
        where = "the environment" if path is None else str(path)
        found = {section.name: dict(given.pop(section.name, {})) for section in _SECTIONS}
        if given:
            unknown = without_secrets(next(iter(given)))
            known = [section.name for section in _SECTIONS]
            raise ConfigurationError(
                f"{where}: unknown section [{unknown}]{suggestion(unknown, known)} "
                f"(known: {', '.join(known)})"
            )
        for section, name, text in _variables(os.environ if environment is None else environment):
            found[section.name][name] = _read_text(section, name, text)
        made = {section.name: _made(section, found[section.name], where) for section in _SECTIONS}
        return cls(**cast("dict[str, Any]", made))


# -- reading --------------------------------------------------------------------------------------


def _read_file(path: str | Path) -> dict[str, dict[str, object]]:
    try:
        text = Path(path).read_text("utf-8-sig")  # some editors begin a file with a BOM
    except FileNotFoundError:
        raise ConfigurationError(f"there is no file {str(path)!r}") from None
    except (
        OSError,
        TypeError,
        ValueError,
    ) as error:  # or an invalid path
        raise ConfigurationError(f"{str(path)!r} cannot be read: {error}") from error
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of tomllib, or of an endless number in it
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error
    for name, section in found.items():
        if not isinstance(section, dict):
            raise ConfigurationError(
                f"{path}: {_shown(name)} must be in a section, such as [queue]"
            )
    return cast("dict[str, dict[str, object]]", found)


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[type[Section], str, str]]:
    """Environment variables for settings. Other variables of Matador have no double underscore."""
    sections = {section.name.upper(): section for section in _SECTIONS}
    for variable, text in environment.items():
        section_name, separator, name = variable.removeprefix(PREFIX).partition("__")
        if not variable.startswith(PREFIX) or not separator:
            continue
        section = sections.get(section_name)
        if section is None:
            known = [f"{PREFIX}{one}__" for one in sections]
        else:
            known = [_variable(section, one.name) for one in fields(section)]
        if section is None or variable not in known:
            raise ConfigurationError(
                f"unknown environment variable {variable}{suggestion(variable, known)} "
                f"(known: {', '.join(known)}{'…' if section is None else ''})"
            )
        yield section, name.lower(), text


def _variable(section: type[Section], name: str) -> str:
    return f"{PREFIX}{section.name.upper()}__{name.upper()}"


_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_KINDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "bool": ("true or false", lambda text: (*_FALSE, *_TRUE).index(text.lower()) >= len(_FALSE)),
    "int": ("a whole number", int),
    "float": ("a number", float),
}


def _read_text(section: type[Section], name: str, text: str) -> object:
    """The value of an environment variable, by the type of its field."""
    kind = next(str(one.type) for one in fields(section) if one.name == name)
    expected, read = _KINDS.get(kind, ("a text", str))
    try:
        return read(text)
    except ValueError:
        raise ConfigurationError(
            f"{_variable(section, name)} must be {expected}, got {_shown(text)[:42]}"
        ) from None


def _made(section: type[Section], given: Mapping[str, object], where: str) -> Section:
    names = [one.name for one in fields(section)]
    for name in given:
        if name not in names:
            raise ConfigurationError(
                f"{where}: unknown setting {section.name}.{without_secrets(name)}"
                f"{suggestion(name, names)} "
                f"(known: {', '.join(names)})"
            )
    for one in fields(section):
        if one.default is MISSING and one.name not in given:
            wanted = {"type": f"one of {', '.join(QUEUE_TYPES)}"}
            expected = wanted.get(one.name, 'a text such as "amqp://localhost"')
            raise ConfigurationError(
                f"{where}: {section.name}.{one.name} is missing: {expected}, required (no default)."
                f" Set it in [{section.name}], or as {_variable(section, one.name)}"
            )
    try:
        return cast("Callable[..., Section]", section)(**given)
    except ConfigurationError as error:
        text = str(error)
        for value in given.values():
            text = text.replace(repr(value), _shown(value))
        raise ConfigurationError(f"{where}: {text}") from None
