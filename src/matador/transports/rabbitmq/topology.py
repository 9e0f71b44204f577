"""A topology as RabbitMQ objects: the exchanges, queues and bindings that it needs. No I/O here.

They are declared exactly as services in other languages declare them, because the broker refuses a
queue that exists with other arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from matador.model.topology import (
    Argument,
    DeadLetterKind,
    Topology,
    WorkQueue,
    dead_letter_name,
)

Arguments: TypeAlias = dict[str, str | int]

MAX_PRIORITY = 10

INTERNAL_SUFFIXES = (".exchange", ".dlx", ".delayed")
"""How the exchanges of a namespace end, which reach queues by their names."""


@dataclass(frozen=True, slots=True)
class AmqpExchange:
    """An exchange."""

    name: str
    type: str
    arguments: Arguments = field(default_factory=dict[str, str | int])
    durable: bool = True


@dataclass(frozen=True, slots=True)
class AmqpQueue:
    """A queue. ``ours`` is False if another application creates it."""

    name: str
    arguments: Arguments = field(default_factory=dict[str, str | int])
    ours: bool = True
    durable: bool = True


@dataclass(frozen=True, slots=True)
class AmqpBinding:
    """Routes messages that reach ``exchange`` with ``key`` to ``queue``."""

    queue: str
    exchange: str
    key: str
    arguments: Arguments = field(default_factory=dict[str, str | int])


AmqpObject: TypeAlias = AmqpExchange | AmqpQueue | AmqpBinding


class LetterRoute(NamedTuple):
    """The exchange and the routing key of dead letters."""

    exchange: str
    key: str


class AmqpRoute(NamedTuple):
    """The exchanges for a queue, for its dead letters and, with the plugin, for its delays.

    An empty name is the default exchange, which reaches every queue directly. ``letters`` are the
    dead letters of the kinds that are kept; no queue gets those of other kinds from ``dead``.
    """

    main: str = ""
    dead: str = ""
    delayed: str = ""
    letters: Mapping[DeadLetterKind, LetterRoute] = {}


def route_of(topology: Topology, queue: WorkQueue, *, plugin: bool) -> AmqpRoute:
    """How a queue is reached; ``plugin``: whether the server has the one for delays."""
    namespace = topology.namespace
    letters: dict[DeadLetterKind, LetterRoute] = {
        kind: _letter_route(topology, queue, kind) for kind in topology.kinds_of(queue)
    }
    main = "" if _is_direct(queue) else f"{namespace}.exchange"
    delayed = delayed_exchange(namespace) if plugin else ""
    dead = next((one.exchange for one in letters.values()), "")
    return AmqpRoute(main, dead, delayed, letters)


def _letter_route(topology: Topology, queue: WorkQueue, kind: DeadLetterKind) -> LetterRoute:
    full = topology.full_name(queue.name)
    exchange, key = f"{topology.namespace}.dlx", dead_letter_name(full, kind)
    if kind == "dlq":
        exchange, key = "dlx", f"{full}.dead"
    given = topology.letters_of(queue)[kind]
    if given.routing_key is not None:
        key = given.routing_key.replace("{queue}", full)
    return LetterRoute(given.exchange or exchange, key)


def _is_direct(queue: WorkQueue) -> bool:
    """Whether it is reached by its name alone, without an exchange of the namespace."""
    return (queue.exact and queue.create) or queue.expires is not None


def delayed_exchange(namespace: str) -> str:
    """The name of the exchange of the delayed-message plugin."""
    return f"{namespace}.delayed"


def plugin_exchange(namespace: str) -> AmqpExchange:
    """The exchange of the delayed-message plugin. Only a server with the plugin can create it."""
    name = delayed_exchange(namespace)
    return AmqpExchange(name, "x-delayed-message", {"x-delayed-type": "direct"})


def plan_for(topology: Topology, *, due_exchange: str | None, plugin: bool) -> Iterator[AmqpObject]:
    """The objects that a topology needs, each after those that it refers to.

    ``due_exchange``: where delays end; None if there are none.
    """
    exchanges = {
        one.name: AmqpExchange(one.name, one.type, {}, one.durable) for one in topology.exchanges
    }
    routes = [route_of(topology, queue, plugin=plugin) for queue in topology.queues]
    for route in routes:
        for name in (route.main, *(letters.exchange for letters in route.letters.values())):
            exchanges.setdefault(name, AmqpExchange(name, "direct"))
    for name, exchange in exchanges.items():
        if name and not name.startswith("amq."):  # these are the broker's own
            yield exchange
    for queue, route in zip(topology.queues, routes, strict=True):
        yield from _queue_objects(topology, queue, route, due_exchange)
    for binding in topology.bindings:
        yield AmqpBinding(topology.full_name(binding.queue), binding.exchange, binding.pattern)


def _queue_objects(
    topology: Topology, queue: WorkQueue, route: AmqpRoute, due_exchange: str | None
) -> Iterator[AmqpObject]:
    name = topology.full_name(queue.name)
    durable = queue.expires is None
    yield AmqpQueue(name, _work_arguments(queue, route), queue.create, durable)
    for source in (route.main, due_exchange, route.delayed):
        if source:
            yield AmqpBinding(name, source, name)
    if topology.retry.enabled and route.main:
        retry = f"{name}.retry"
        yield AmqpQueue(retry, _retry_arguments(topology, queue, route.main))
        yield AmqpBinding(retry, route.main, retry)
    for kind, (exchange, key) in route.letters.items():
        letters = dead_letter_name(name, kind)
        limits = topology.letters_of(queue)[kind]
        yield AmqpQueue(letters, dict(_limits(limits.max_length, limits.ttl)))
        yield AmqpBinding(letters, exchange, key)
    if "undeliverable" in route.letters and "dlq" not in route.letters:
        # Messages that the broker itself dead-letters (expired, over the length limit,
        # delivered too often) keep their routing key, the name of the queue. Without this
        # binding they would be lost.
        exchange = route.letters["undeliverable"].exchange
        yield AmqpBinding(dead_letter_name(name, "undeliverable"), exchange, name)


def _work_arguments(queue: WorkQueue, route: AmqpRoute) -> Arguments:
    arguments: dict[str, Argument] = {}
    if _is_direct(queue):
        if (
            queue.type == "quorum"
        ):  # services in other languages declare classic queues without a type
            arguments["x-queue-type"] = queue.type
    elif queue.type is not None or not queue.priorities:
        arguments["x-queue-type"] = queue.type or "quorum"
    if queue.priorities:
        arguments["x-max-priority"] = MAX_PRIORITY  # not on quorum queues in RabbitMQ 3
    if "dlq" in route.letters:
        arguments["x-dead-letter-exchange"] = route.letters["dlq"].exchange
        arguments["x-dead-letter-routing-key"] = route.letters["dlq"].key
    elif route.dead:
        letters = route.letters.get("undeliverable")
        arguments["x-dead-letter-exchange"] = route.dead if letters is None else letters.exchange
    if queue.consumer_timeout is not None:
        arguments["x-consumer-timeout"] = round(queue.consumer_timeout * 1000)
    if queue.expires is not None:
        arguments["x-expires"] = max(1, round(queue.expires * 1000))
    arguments.update(_limits(queue.max_length, queue.message_ttl))
    arguments.update(queue.arguments)
    return {name: value for name, value in arguments.items() if value is not None}


def _retry_arguments(topology: Topology, queue: WorkQueue, main: str) -> Arguments:
    return {
        "x-queue-type": queue.type or "quorum",
        "x-dead-letter-exchange": main,
        "x-dead-letter-routing-key": topology.full_name(queue.name),
        "x-message-ttl": round(topology.retry.default_delay * 1000),
    }


def _limits(max_length: int | None, ttl: float | None) -> Iterator[tuple[str, int]]:
    if max_length is not None:
        yield "x-max-length", max_length
    if ttl is not None:
        yield "x-message-ttl", round(ttl * 1000)
