"""The topology: queues, dead letters and retries, described in the same way for every broker.

Transports create it and report what they do not support; nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast, get_args

from matador.errors import ConfigurationError, InvalidTopologyError, QueueNotFoundError
from matador.model.options import (
    Seconds,
    one_of,
    optional_seconds,
    optional_whole_number,
    seconds,
    set_fields,
    suggestion,
)

DeadLetterKind: TypeAlias = Literal["unhandled", "undeliverable", "dlq"]
"""``unhandled``: the event or subscriber is unknown. ``undeliverable``: the message failed.
``dlq``: all dead letters of RPC and pub/sub; off unless asked for."""

DEAD_LETTER_KINDS: tuple[DeadLetterKind, ...] = get_args(DeadLetterKind)

QueueType: TypeAlias = Literal["quorum", "classic"]
"""The type of a queue, on brokers that have several."""

Argument: TypeAlias = str | int | bool | None
"""A queue argument of RabbitMQ. None removes an argument that Matador would set."""

_LONGEST_NAME = 255  # bytes, also for the queues of dead letters and retries
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NAME_RULE = "must start with a letter and contain only letters, digits, '_' and '-'"
_EXACT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")


@dataclass(frozen=True, slots=True, init=False)
class WorkQueue:
    """A queue that workers consume.

    Attributes:
        name: its name; brokers see ``{namespace}.{name}``.
        concurrency: how many messages a worker handles concurrently (None: the worker's default).
        consumer_timeout: the time limit of a callback in seconds; then it is canceled and retried.
        priorities: messages may have a priority; higher ones come first.
        exact: use the name unchanged and do not create the queue, because another system owns it.
        create: whether Matador creates the queue; False only for ``exact``. A queue with
            ``exact=True, create=True`` has the plain name and is declared as other AMQP programs
            declare theirs: durable, classic, and reached directly by its name.
        retention: seconds for which finished messages stay readable, for replay and for Spark.
        expires: a temporary queue. It is deleted, with its bindings and messages, after this many
            seconds without a consumer. It need not survive a restart of the broker, and has no dead
            letters except ``dlq``, if those are on.
        fallback: the queue to send to if sending to this one fails.
        max_length: the maximum number of messages; beyond it, the oldest waiting messages are
            dropped. None: no limit.
        message_ttl: seconds after which a waiting message is dropped. None: no limit.
        dead_letters: those of this queue; None: as the topology says.
        type: ``quorum`` or ``classic``, on RabbitMQ. None: quorum, but classic with priorities,
            with ``create`` and with ``expires``.
        arguments: extra arguments for the queue on RabbitMQ, such as ``{"x-overflow":
            "reject-publish"}``. Useful if other programs declare the same queue.

    Example:
        >>> WorkQueue("billing", concurrency=4, priorities=True).name
        'billing'
    """

    name: str
    concurrency: int | None
    consumer_timeout: float | None
    priorities: bool
    exact: bool
    create: bool
    retention: float | None
    expires: float | None
    fallback: str | None
    max_length: int | None
    message_ttl: float | None
    dead_letters: DeadLetters | None
    type: QueueType | None
    arguments: Mapping[str, Argument] = field(hash=False)

    def __init__(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        consumer_timeout: Seconds | None = None,
        priorities: bool = False,
        exact: bool = False,
        create: bool | None = None,
        retention: Seconds | None = None,
        expires: Seconds | None = None,
        fallback: str | None = None,
        max_length: int | None = None,
        message_ttl: Seconds | None = None,
        dead_letters: DeadLetters | None = None,
        type: QueueType | None = None,
        arguments: Mapping[str, Argument] | None = None,
    ) -> None:
        where = f"queue {name!r}"
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"a queue's name must be a string, got {name!r}")
        if type is not None:
            one_of(type, f"{where}: type", get_args(QueueType))
        if type == "quorum" and priorities:
            raise ConfigurationError(f"{where}: a quorum queue cannot have priorities")
        made = not exact if create is None else create
        if not made and not exact:
            raise ConfigurationError(f"{where}: create=False needs exact=True")
        limited = max_length is not None or message_ttl is not None
        if limited and retention is not None:
            raise ConfigurationError(
                f"{where}: a queue with max_length or message_ttl cannot have a retention"
            )
        if not made and (type is not None or arguments or expires is not None or limited):
            raise ConfigurationError(
                f"{where}: type, arguments, expires, max_length and message_ttl have no effect on "
                f"an exact queue, which its owner creates; write create=True if Matador shall "
                f"create it"
            )
        if expires is not None and (type == "quorum" or retention is not None):
            raise ConfigurationError(
                f"{where}: a temporary queue (expires) cannot be a quorum queue or have a retention"
            )
        set_fields(
            self,
            name=name,
            concurrency=optional_whole_number(concurrency, f"{where}: concurrency", minimum=1),
            consumer_timeout=optional_seconds(
                consumer_timeout, f"{where}: consumer_timeout", minimum=0.001
            ),
            priorities=priorities,
            exact=exact,
            create=made,
            retention=optional_seconds(retention, f"{where}: retention"),
            expires=optional_seconds(expires, f"{where}: expires", minimum=0.001),
            fallback=fallback,
            max_length=optional_whole_number(max_length, f"{where}: max_length", minimum=1),
            message_ttl=optional_seconds(message_ttl, f"{where}: message_ttl", minimum=0.001),
            dead_letters=dead_letters,
            type=type,
            arguments=_checked_arguments(arguments, where),
        )

    @property
    def limits(self) -> str:
        """The limits that it has, for transports that ignore them; empty: none."""
        given = {"max_length": self.max_length, "message_ttl": self.message_ttl}
        return " and ".join(name for name, value in given.items() if value is not None)

    def named(
        self, *, create: bool = True, concurrency: int | None = None, **changed: object
    ) -> WorkQueue:
        """The same with the plain name on the broker. ``changed``: its other attributes."""
        made = copy(self)
        set_fields(
            made,
            exact=True,
            create=create and (self.create or not self.exact),
            concurrency=concurrency or self.concurrency,
            **changed,
        )
        return made


def _is_exact_name(text: object) -> bool:
    return (
        isinstance(text, str) and len(text) <= _LONGEST_NAME and bool(_EXACT_NAME.fullmatch(text))
    )


def _checked_arguments(given: object, where: str) -> dict[str, Argument]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{where}: arguments must be a mapping, got {given!r}")
    checked: dict[str, Argument] = {}
    for name, value in cast("Mapping[Any, Any]", given).items():
        if not isinstance(name, str) or not name.startswith("x-") or len(name) > _LONGEST_NAME:
            raise ConfigurationError(
                f"{where}: invalid argument name {name!r}; expected a name like 'x-max-length'"
            )
        if name == "x-queue-type":
            raise ConfigurationError(f"{where}: pass the queue type as type=, not as an argument")
        if value is not None and not isinstance(value, str | int):
            raise ConfigurationError(
                f"{where}: argument {name} must be a string, an integer, a boolean or None, "
                f"got {value!r}"
            )
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ConfigurationError(f"{where}: argument {name} does not fit in 64 bits")
        checked[name] = value
    return checked


@dataclass(frozen=True, slots=True, init=False)
class DeadLetterQueue:
    """The dead letters of one kind: whether, how many and how long to keep them (None: no limit).

    ``exchange`` and ``routing_key`` are those through which dead letters travel on RabbitMQ; other
    brokers need none. ``{queue}`` in the key stands for the full name of the queue. The defaults of
    kind ``dlq`` are ``dlx`` and ``{queue}.dead``, those of the others ``{namespace}.dlx`` and
    ``{queue}.{kind}``.

    Example:
        >>> DeadLetterQueue(max_length=10_000).enabled
        True
    """

    enabled: bool
    max_length: int | None
    ttl: float | None
    exchange: str | None
    routing_key: str | None

    def __init__(
        self,
        *,
        enabled: bool = True,
        max_length: int | None = None,
        ttl: Seconds | None = None,
        exchange: str | None = None,
        routing_key: str | None = None,
    ) -> None:
        if exchange is not None and not _is_exact_name(exchange):
            raise ConfigurationError(f"dead letters: exchange {exchange!r}: invalid name")
        if routing_key is not None and not 0 < len(routing_key.encode("utf-8", "replace")) <= 255:
            raise ConfigurationError("dead letters: routing_key must have 1 to 255 bytes")
        set_fields(
            self,
            enabled=enabled,
            max_length=optional_whole_number(max_length, "dead letters: max_length", minimum=1),
            ttl=optional_seconds(ttl, "dead letters: ttl"),
            exchange=exchange,
            routing_key=routing_key,
        )


@dataclass(frozen=True, slots=True, init=False)
class DeadLetters:
    """The dead letters of all queues: ``unhandled`` and ``undeliverable``, both kept by default.

    ``dlq`` is off by default: one queue ``{queue}.dlq`` for everything, as RPC and pub/sub use it.

    Example:
        >>> DeadLetters(unhandled=False, undeliverable=DeadLetterQueue(ttl=7 * 86400))[
        ...     "unhandled"].enabled
        False
    """

    unhandled: DeadLetterQueue
    undeliverable: DeadLetterQueue
    dlq: DeadLetterQueue

    def __init__(
        self,
        *,
        unhandled: DeadLetterQueue | bool = True,
        undeliverable: DeadLetterQueue | bool = True,
        dlq: DeadLetterQueue | bool = False,
    ) -> None:
        for kind, given in (
            ("unhandled", unhandled),
            ("undeliverable", undeliverable),
            ("dlq", dlq),
        ):
            queue = DeadLetterQueue(enabled=given) if isinstance(given, bool) else given
            object.__setattr__(self, kind, queue)

    def __getitem__(self, kind: DeadLetterKind) -> DeadLetterQueue:
        kinds = {"unhandled": self.unhandled, "undeliverable": self.undeliverable, "dlq": self.dlq}
        return kinds[kind]

    @property
    def enabled_kinds(self) -> tuple[DeadLetterKind, ...]:
        """The kinds that are kept."""
        return tuple(kind for kind in DEAD_LETTER_KINDS if self[kind].enabled)


@dataclass(frozen=True, slots=True, init=False)
class RetryQueues:
    """The delays of retries: the default and the maximum, in seconds.

    If disabled, failed messages are retried at once.

    Example:
        >>> RetryQueues(default_delay=1, max_delay=300).max_delay
        300.0
    """

    enabled: bool
    default_delay: float
    max_delay: float

    def __init__(
        self, *, default_delay: Seconds = 1.0, max_delay: Seconds = 300.0, enabled: bool = True
    ) -> None:
        default = seconds(default_delay, "retry: default_delay")
        longest = seconds(max_delay, "retry: max_delay")
        if longest < default:
            raise ConfigurationError(
                f"retry: max_delay ({longest:g} s) must be at least default_delay ({default:g} s)"
            )
        set_fields(self, enabled=enabled, default_delay=default, max_delay=longest)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Messages published to an exchange are copied to every queue with a matching binding.

    ``type``: ``topic`` (patterns with ``*`` for one word and ``#`` for any number of words),
    ``direct`` (the same key) or ``fanout`` (every binding).

    Example:
        >>> Exchange("events").type
        'topic'
    """

    name: str
    type: Literal["topic", "direct", "fanout"] = "topic"
    durable: bool = True


@dataclass(frozen=True, slots=True)
class Binding:
    """``queue`` (short name) receives the messages of ``exchange`` whose routing key matches.

    Example:
        >>> Binding("events", "analytics", "orders.*").pattern
        'orders.*'
    """

    exchange: str
    queue: str
    pattern: str = "#"


@dataclass(frozen=True, slots=True, init=False)
class Topology:
    """All queues of an application. Validated on creation.

    One that only publishes needs exchanges and no queues.

    Raises:
        InvalidTopologyError: invalid or duplicate names, or neither queues nor exchanges; lists
            every problem.

    Example:
        >>> shop = Topology("shop", queues=["events", WorkQueue("billing", concurrency=4)])
        >>> shop.full_name("billing"), shop.dead_letter_name("billing", "undeliverable")
        ('shop.billing', 'shop.billing.undeliverable')
    """

    namespace: str
    queues: tuple[WorkQueue, ...]
    dead_letters: DeadLetters
    retry: RetryQueues
    exchanges: tuple[Exchange, ...]
    bindings: tuple[Binding, ...]
    _by_name: Mapping[str, WorkQueue] = field(compare=False, repr=False)

    def __init__(
        self,
        namespace: str,
        *,
        queues: Iterable[str | WorkQueue] = (),
        dead_letters: DeadLetters | None = None,
        retry: RetryQueues | None = None,
        exchanges: Iterable[str | Exchange] = (),
        bindings: Iterable[Binding] = (),
    ) -> None:
        given = [queues] if isinstance(queues, str) else list(queues)
        made = tuple(queue if isinstance(queue, WorkQueue) else WorkQueue(queue) for queue in given)
        routed = tuple(one if isinstance(one, Exchange) else Exchange(one) for one in exchanges)
        bound = tuple(bindings)
        problems = [*_problems(namespace, made), *_binding_problems(made, routed, bound)]
        if not made and not routed:
            problems.append("no queues: add at least one, or an exchange to publish to")
        typed: list[tuple[str, object, type]] = [
            ("dead_letters", dead_letters, DeadLetters),
            ("retry", retry, RetryQueues),
        ]
        for name, value, kind in typed:
            if value is not None and not isinstance(value, kind):
                problems.append(f"{name} must be {kind.__name__}(…), got {value!r}")
        if problems:
            raise InvalidTopologyError(problems)
        set_fields(
            self,
            namespace=namespace,
            queues=made,
            dead_letters=dead_letters or DeadLetters(),
            retry=retry or RetryQueues(),
            exchanges=routed,
            bindings=bound,
        )
        set_fields(self, _by_name=self._named())

    @property
    def default_queue(self) -> WorkQueue:
        """The first queue, which subscribers without a queue use.

        Raises:
            QueueNotFoundError: there are only exchanges.
        """
        if not self.queues:
            raise QueueNotFoundError(f"topology {self.namespace!r} has no queues, only exchanges")
        return self.queues[0]

    def queue(self, name: str) -> WorkQueue:
        """The queue with that short or full name.

        Raises:
            QueueNotFoundError: there is none.
        """
        found = self._by_name.get(name)
        if found is not None:
            return found
        known = [queue.name for queue in self.queues]
        raise QueueNotFoundError(
            f"topology {self.namespace!r} has no queue {name!r}, only "
            f"{', '.join(known) or 'exchanges'}{suggestion(name, known)}"
        )

    def has_queue(self, name: str) -> bool:
        """Whether there is a queue with that short or full name."""
        return name in self._by_name

    def full_name(self, name: str) -> str:
        """The name on the broker: ``{namespace}.{name}``, or the name itself if ``exact``."""
        return self._full(self.queue(name))

    def dead_letter_name(self, name: str, kind: DeadLetterKind) -> str:
        """The full name of the queue for dead letters of one kind."""
        return dead_letter_name(self.full_name(name), kind)

    def dead_letter_names(self) -> Iterator[tuple[WorkQueue, DeadLetterKind, str]]:
        """Every dead-letter queue: its work queue, its kind and its full name."""
        for queue in self.queues:
            for kind in self.kinds_of(queue):
                yield queue, kind, dead_letter_name(self._full(queue), kind)

    def letters_of(self, queue: WorkQueue) -> DeadLetters:
        """The dead letters of a queue: its own, or those of the topology."""
        return queue.dead_letters or self.dead_letters

    def kinds_of(self, queue: WorkQueue) -> tuple[DeadLetterKind, ...]:
        """The kinds of dead letters that are kept for a queue; for a temporary one only ``dlq``."""
        kinds = self.letters_of(queue).enabled_kinds
        return kinds if queue.expires is None else tuple(kind for kind in kinds if kind == "dlq")

    def without_queue(self, full_name: str) -> Topology:
        """The same without a queue and its bindings. Transports use it for one that is deleted."""
        gone = {queue.name for queue in self.queues if self._full(queue) == full_name}
        return self._with(
            queues=tuple(queue for queue in self.queues if queue.name not in gone),
            bindings=tuple(binding for binding in self.bindings if binding.queue not in gone),
        )

    def without_binding(self, exchange: str, full_name: str, pattern: str) -> Topology:
        """The same without one binding of a queue."""
        gone = [
            Binding(exchange, queue.name, pattern)
            for queue in self.queues
            if self._full(queue) == full_name
        ]
        return self._with(bindings=tuple(one for one in self.bindings if one not in gone))

    def _with(self, **changed: object) -> Topology:
        made = copy(self)
        set_fields(made, **changed)
        set_fields(made, _by_name=made._named())
        return made

    def _named(self) -> dict[str, WorkQueue]:
        """The queues by their short and full names; of two with one name, the first."""
        named: dict[str, WorkQueue] = {}
        for queue in self.queues:
            named.setdefault(queue.name, queue)
            named.setdefault(self._full(queue), queue)
        return named

    def _full(self, queue: WorkQueue) -> str:
        return queue.name if queue.exact else f"{self.namespace}.{queue.name}"


def dead_letter_name(full_queue: str, kind: DeadLetterKind) -> str:
    """The name of a dead-letter queue, such as ``shop.events.undeliverable``."""
    return f"{full_queue}.{kind}"


def _problems(namespace: str, queues: tuple[WorkQueue, ...]) -> Iterator[str]:
    if not isinstance(namespace, str) or not _NAME.fullmatch(namespace):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        yield f"namespace {namespace!r}: {_NAME_RULE}"
    seen: set[str] = set()
    names = {queue.name for queue in queues}
    managed = [queue.name for queue in queues if not queue.exact]
    for queue in queues:
        if queue.name in seen:
            yield f"duplicate queue {queue.name!r}"
        seen.add(queue.name)
        if queue.exact:
            if not _EXACT_NAME.fullmatch(queue.name):
                yield f"queue {queue.name!r}: invalid name"
        elif not _NAME.fullmatch(queue.name):
            dots = " (dots need exact=True)" if "." in queue.name else ""
            yield f"queue {queue.name!r}: {_NAME_RULE}{dots}"
        if queue.fallback is not None and queue.fallback not in names:
            yield (
                f"queue {queue.name!r}: unknown fallback queue {queue.fallback!r}"
                f"{suggestion(queue.fallback, names)}"
            )
        full = queue.name if queue.exact else f"{namespace}.{queue.name}"
        if len(dead_letter_name(full, "undeliverable").encode("utf-8", "replace")) > _LONGEST_NAME:
            yield f"queue {queue.name[:40]!r}…: the full name is longer than 255 bytes"
        if queue.exact and any(queue.name == f"{namespace}.{name}" for name in managed):
            yield f"queue {queue.name!r}: another queue has this full name"
    yield from _fallback_cycles({queue.name: queue.fallback for queue in queues})


def _binding_problems(
    queues: tuple[WorkQueue, ...], exchanges: tuple[Exchange, ...], bindings: tuple[Binding, ...]
) -> Iterator[str]:
    names = [exchange.name for exchange in exchanges]
    for exchange in exchanges:
        if not _is_exact_name(exchange.name):
            yield f"exchange {exchange.name[:40]!r}: invalid name"
        if names.count(exchange.name) > 1:
            yield f"duplicate exchange {exchange.name!r}"
    known = [queue.name for queue in queues]
    for binding in bindings:
        where = f"binding {binding.pattern[:40]!r} of queue {binding.queue!r}"
        if binding.exchange not in names:
            yield (
                f"{where}: unknown exchange {binding.exchange!r}"
                f"{suggestion(binding.exchange, names)}"
            )
        if binding.queue not in known:
            yield f"{where}: unknown queue{suggestion(binding.queue, known)}"
        if len(binding.pattern.encode("utf-8", "replace")) > _LONGEST_NAME:
            yield f"{where}: the pattern is longer than 255 bytes"


def _fallback_cycles(fallbacks: dict[str, str | None]) -> Iterator[str]:
    for start in fallbacks:
        step = fallbacks[start]
        seen = {start}
        while step is not None and step in fallbacks:
            if step == start:
                yield f"queue {start!r}: its fallbacks form a cycle"
                break
            if step in seen:
                break
            seen.add(step)
            step = fallbacks[step]
