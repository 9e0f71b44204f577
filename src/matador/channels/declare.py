"""``@channel`` and ``@consume``: consumers declared as methods of a class, or as functions.

The decorators only store the declarations. ``QueueService`` reads them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, Unpack, cast, get_args

from matador.errors import ConfigurationError
from matador.model.options import one_of, optional_seconds, whole_number
from matador.model.signature import place_of
from matador.model.subscriber import Idempotency
from matador.model.topology import WorkQueue
from matador.policy.ack import DeadLetterOptions
from matador.runtime.message_service import HandlerOptions, work_queue
from matador.runtime.service import check_options

C = TypeVar("C", bound=type[object])
F = TypeVar("F", bound=Callable[..., object])

_CHANNEL = "__matador_channel__"
_CONSUMES = "__matador_consumes__"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_MOST_AT_ONCE = 65_535  # the limit of RabbitMQ; each slot has a task that waits for a message


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer as ``@consume`` declares it. Its service adds the channel and the bound method.

    Attributes:
        name: the name of the messages.
        concurrency: how many are handled at once; None: that of the service. options: see
            ``HandlerOptions``.
        channel: the name of the channel.
        method: the function, or the method bound to its object.
        batch_size: the maximum size of a batch; None: that of the service.
        dead_letters: the options for dead letters; None: those of the service.
        work: the options of its queues.

    Example:
        >>> Consumer("created", channel="orders").queue
        'orders.created'
    """

    name: str
    concurrency: int | None = None
    options: HandlerOptions = field(default_factory=HandlerOptions)
    channel: str = ""
    method: Callable[..., object] = lambda: None
    batch_size: int | None = None
    dead_letters: DeadLetterOptions | None = None
    work: WorkQueue | None = None

    @property
    def queue(self) -> str:
        """The queue of messages that are sent to one consumer."""
        return queue_name(self.channel, self.name)


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
        for _, consumers in _declared(cls):
            for one in consumers:
                if one.channel not in ("", checked):
                    raise ConfigurationError(
                        f"channel {name!r}: {cls.__name__} has a consumer of channel "
                        f"{one.channel!r}; leave out channel= on its methods{place_of(cls)}"
                    )
        if not _declared(cls):
            raise ConfigurationError(
                f"channel {name!r}: {cls.__name__} has no method with @consume{place_of(cls)}"
            )
        setattr(cls, _CHANNEL, checked)
        return cls

    return declare


def consume(
    name: str,
    *,
    channel: str | None = None,
    concurrency: int | None = None,
    batch_size: int | None = None,
    dead_letters: DeadLetterOptions | bool | None = None,
    queue: WorkQueue | None = None,
    **options: Unpack[HandlerOptions],
) -> Callable[[F], F]:
    """Declare a method of a channel, or a function, as the consumer of messages with that name.

    Parameters are filled by their types: ``MessageContext``, ``Envelope[...]``, ``Transport`` (the
    connection) and ``QueueService``. The remaining parameter takes the data of the message.

    A parameter of the type ``list[OrderCreated]`` or ``list[Envelope[OrderCreated]]`` takes a
    batch: the data of all available messages, up to ``batch_size``. If the consumer raises an
        error, each of them has failed and is retried in a separate batch. To take a message whose
        data is itself a list, use another annotation, such as ``Sequence[int]``.

    Args:
        name: the name of the messages.
        channel: the name of the channel, for a function. That of a method is the one of its class.
        concurrency: how many messages, or batches, are handled at once; None: that of the service.
        batch_size: the maximum size of a batch; None: ``batch_size`` of the settings.
        dead_letters: whether and how dead letters are kept; None: as in the settings.
        queue: a ``WorkQueue`` of the same name with options of the queue, such as ``max_length``.
        **options: see ``HandlerOptions``.

    Raises:
        ConfigurationError: the name or an option is invalid.

    Example:
        >>> @channel("orders")
        ... class Orders:
        ...     @consume("created", concurrency=10, timeout=5)
        ...     async def created(self, order: OrderCreated, ctx: MessageContext) -> None: ...
        >>> @consume("created", channel="orders", batch_size=500)
        ... async def store(orders: list[OrderCreated]) -> None: ...
    """
    where = f"consume({name!r})"
    check_options(options, HandlerOptions, where)
    optional_seconds(options.get("timeout"), f"{where}: timeout", minimum=0.001)
    one_of(options.get("idempotent", "yes"), f"{where}: idempotent", get_args(Idempotency))
    if queue is not None:
        queue = work_queue(queue, where, concurrency=concurrency)
        concurrency = queue.concurrency
        if queue.name != name:
            raise ConfigurationError(
                f"{where}: queue has the options of the consumer's queue; write "
                f"queue=WorkQueue({name!r}, …), got the name {queue.name!r}"
            )
    if concurrency is not None:
        check_concurrency(concurrency, f"{where}: concurrency")
    if batch_size is not None:
        check_concurrency(batch_size, f"{where}: batch_size")
    declared = Consumer(
        check_name(name, "consume"),
        concurrency,
        options,
        "" if channel is None else check_name(channel, f"{where}: channel"),
        batch_size=batch_size,
        dead_letters=None if dead_letters is None else DeadLetterOptions.of(dead_letters),
        work=queue,
    )

    def declare(method: F) -> F:
        if not callable(method):
            raise ConfigurationError(
                f"@consume({name!r}) must be on a method or a function, got {method!r}"
            )
        setattr(method, _CONSUMES, (*getattr(method, _CONSUMES, ()), declared))
        return method

    return declare


def check_concurrency(value: int, what: str) -> int:
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
    """The consumers of a channel: a class, which is instantiated without arguments, or an object.

    For a function, its own declarations.

    Raises:
        ConfigurationError: it is not a channel, or cannot be instantiated.
    """
    if inspect.isroutine(given):
        return _consumers_of_function(given)
    cls = cast("type[object]", given) if isinstance(given, type) else type(given)
    name: str | None = getattr(cls, _CHANNEL, None)
    if name is None:
        raise ConfigurationError(f"{cls.__name__} is not a channel: decorate it with @channel(…)")
    made = given
    if isinstance(given, type):
        try:
            made = cls()
        except TypeError as error:
            raise ConfigurationError(
                f"channel {name!r}: {cls.__name__} cannot be instantiated without arguments "
                f"({error}); "
                f"pass an object instead of the class"
            ) from error
    return [
        replace(one, channel=name, method=getattr(made, attribute))
        for attribute, consumers in _declared(cls)
        for one in consumers
    ]


def _consumers_of_function(function: Callable[..., object]) -> list[Consumer]:
    name = getattr(function, "__qualname__", repr(function))
    declared: Sequence[Consumer] = getattr(function, _CONSUMES, ())
    if not declared:
        raise ConfigurationError(
            f"{name} consumes nothing: decorate it with @consume(…, channel=…){place_of(function)}"
        )
    for one in declared:
        if not one.channel:
            raise ConfigurationError(
                f"{name} is a function, so it must say its channel: write "
                f"@consume({one.name!r}, channel=…){place_of(function)}"
            )
    return [replace(one, method=function) for one in declared]


def _declared(cls: type[object]) -> list[tuple[str, Sequence[Consumer]]]:
    members = inspect.getmembers(cls)
    return [(name, getattr(one, _CONSUMES)) for name, one in members if hasattr(one, _CONSUMES)]
