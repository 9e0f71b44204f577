"""``@channel`` and ``@consume``: consumers declared as methods of a class.

The decorators only write down what was declared. ``QueueService`` reads it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from matador.errors import ConfigurationError
from matador.model.options import Seconds, optional_seconds, whole_number
from matador.model.subscriber import place_of

C = TypeVar("C", bound=type[object])
F = TypeVar("F", bound=Callable[..., object])

_CHANNEL = "__matador_channel__"
_CONSUMES = "__matador_consumes__"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_MOST_AT_ONCE = 65_535  # the most that RabbitMQ takes; each has a task that waits for a message


@dataclass(frozen=True, slots=True)
class ChannelMetadata:
    """What ``@channel`` has declared: the name of the channel, and its class."""

    name: str
    cls: type[object]


@dataclass(frozen=True, slots=True)
class ConsumeMetadata:
    """What ``@consume`` has declared.

    Attributes:
        name: the name of the messages.
        prefetch: how many are handled at once; None: as the settings say.
        timeout: seconds that the consumer may take; None: any time.
    """

    name: str
    prefetch: int | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer of a service: a bound method, and what it was declared with."""

    channel: str
    consumes: ConsumeMetadata
    method: Callable[..., object]

    @property
    def queue(self) -> str:
        """The queue of messages that are sent to one consumer."""
        return queue_name(self.channel, self.consumes.name)


def queue_name(channel: str, name: str) -> str:
    """The name of the queue for messages of one name.

    Example:
        >>> queue_name("orders", "created")
        'orders.created'
    """
    return f"{channel}.{name}"


def channel(name: str) -> Callable[[C], C]:
    """Declare a class as a channel: its methods with ``@consume`` are consumers.

    Raises:
        ConfigurationError: the name is invalid, or the class consumes nothing.

    Example:
        >>> @channel("orders")
        ... class Orders:
        ...     @consume("created")
        ...     async def created(self, order: OrderCreated) -> None: ...
    """
    checked = check_name(name, "channel")

    def declare(cls: C) -> C:
        if not isinstance(cls, type):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"@channel({name!r}) must be on a class, got {cls!r}")
        if not _declared(cls):
            raise ConfigurationError(
                f"channel {name!r}: {cls.__name__} has no method with @consume{place_of(cls)}"
            )
        setattr(cls, _CHANNEL, ChannelMetadata(checked, cls))
        return cls

    return declare


def consume(
    name: str, *, prefetch: int | None = None, timeout: Seconds | None = None
) -> Callable[[F], F]:
    """Declare a method of a channel as the consumer of messages with that name.

    Parameters are filled by their types: ``MessageContext``, ``Envelope[...]``, ``Transport`` (the
    connection) and ``QueueService``. The one that is left takes the data of the message.

    Args:
        name: the name of the messages.
        prefetch: how many are handled at once; None: as the settings say.
        timeout: seconds that the consumer may take; None: any time.

    Raises:
        ConfigurationError: the name or an option is invalid.

    Example:
        >>> @channel("orders")
        ... class Orders:
        ...     @consume("created", prefetch=10, timeout=5)
        ...     async def created(self, order: OrderCreated, ctx: MessageContext) -> None: ...
    """
    where = f"consume({name!r})"
    declared = ConsumeMetadata(
        check_name(name, "consume"),
        None if prefetch is None else check_prefetch(prefetch, f"{where}: prefetch"),
        optional_seconds(timeout, f"{where}: timeout", minimum=0.001),
    )

    def declare(method: F) -> F:
        if not callable(method):
            raise ConfigurationError(f"@consume({name!r}) must be on a method, got {method!r}")
        earlier: Sequence[ConsumeMetadata] = getattr(method, _CONSUMES, ())
        setattr(method, _CONSUMES, (*earlier, declared))
        return method

    return declare


def check_prefetch(value: int, what: str) -> int:
    """A valid number of messages that are handled at once.

    Raises:
        ConfigurationError: it is not one.
    """
    if whole_number(value, what, minimum=1) > _MOST_AT_ONCE:
        raise ConfigurationError(f"{what} must be at most {_MOST_AT_ONCE}")
    return value


def check_name(name: object, what: str) -> str:
    """A valid name of a channel or a message.

    Raises:
        ConfigurationError: it is not one.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{what}: the name must start with a letter or digit and contain only letters, digits, "
            f"'_' and '-', got {name!r}"
        )
    return name


def consumers_of(given: object) -> list[Consumer]:
    """The consumers of a channel: a class, which is made without arguments, or an object.

    Raises:
        ConfigurationError: it is no channel, or cannot be made.
    """
    cls = cast("type[object]", given) if isinstance(given, type) else type(given)
    declared: ChannelMetadata | None = getattr(cls, _CHANNEL, None)
    if declared is None:
        raise ConfigurationError(f"{cls.__name__} is no channel: decorate it with @channel(…)")
    made = given
    if isinstance(given, type):
        try:
            made = cls()
        except TypeError as error:
            raise ConfigurationError(
                f"channel {declared.name!r}: {cls.__name__} cannot be made without arguments "
                f"({error}); pass an object instead of the class"
            ) from error
    found: list[Consumer] = []
    for attribute, consumes in _declared(cls):
        method = getattr(made, attribute)
        found += [Consumer(declared.name, one, method) for one in consumes]
    return found


def _declared(cls: type[object]) -> list[tuple[str, Sequence[ConsumeMetadata]]]:
    found: list[tuple[str, Sequence[ConsumeMetadata]]] = []
    for attribute, member in inspect.getmembers(cls):
        consumes: Sequence[ConsumeMetadata] = getattr(member, _CONSUMES, ())
        if consumes:
            found.append((attribute, consumes))
    return found
