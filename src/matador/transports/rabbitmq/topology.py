"""A topology as RabbitMQ objects: the exchanges, queues and bindings that it needs. No I/O here.

They are declared exactly as services in other languages declare them, because the broker refuses a
queue that exists with other arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from matador.model.topology import Argument, Topology, WorkQueue, dead_letter_name

Arguments: TypeAlias = dict[str, str | int]

MAX_PRIORITY = 10


@dataclass(frozen=True, slots=True)
class AmqpExchange:
    """An exchange."""

    name: str
    type: str
    arguments: Arguments = field(default_factory=dict[str, str | int])
    durable: bool = True


@dataclass(frozen=True, slots=True)
class AmqpQueue:
    """A durable queue. ``ours`` is False if another application creates it."""

    name: str
    arguments: Arguments = field(default_factory=dict[str, str | int])
    ours: bool = True


@dataclass(frozen=True, slots=True)
class AmqpBinding:
    """Routes messages that reach ``exchange`` with ``key`` to ``queue``."""

    queue: str
    exchange: str
    key: str
    arguments: Arguments = field(default_factory=dict[str, str | int])


AmqpObject: TypeAlias = AmqpExchange | AmqpQueue | AmqpBinding


class AmqpRoute(NamedTuple):
    """The exchanges for a queue, for its dead letters and, with the plugin, for its delays.

    An empty name is the default exchange, which reaches every queue directly.
    """

    main: str = ""
    dead: str = ""
    delayed: str = ""


def route_of(topology: Topology, *, plugin: bool) -> AmqpRoute:
    """The exchanges of a topology; ``plugin``: whether the server has the one for delays."""
    namespace, kinds = topology.namespace, topology.dead_letters.enabled_kinds
    dead = f"{namespace}.dlx" if kinds else ""
    delayed = delayed_exchange(namespace) if plugin else ""
    return AmqpRoute(f"{namespace}.exchange", dead, delayed)


def delayed_exchange(namespace: str) -> str:
    """The exchange of the delayed-message plugin."""
    return f"{namespace}.delayed"


def plan_for(topology: Topology, *, due_exchange: str | None, plugin: bool) -> Iterator[AmqpObject]:
    """The objects that a topology needs, each after those that it refers to.

    ``due_exchange``: where delays end; None if there are none.
    """
    main, dead, delayed = route_of(topology, plugin=plugin)
    kinds = topology.dead_letters.enabled_kinds
    yield AmqpExchange(main, "direct")
    for exchange in topology.exchanges:
        yield AmqpExchange(exchange.name, exchange.type, {}, exchange.durable)
    if dead:
        yield AmqpExchange(dead, "direct")
    for queue in topology.queues:
        name = topology.full_name(queue.name)
        yield AmqpQueue(name, _work_arguments(queue, dead), not queue.exact)
        for source in (main, due_exchange, delayed):
            if source:
                yield AmqpBinding(name, source, name)
        if topology.retry.enabled:
            retry = f"{name}.retry"
            yield AmqpQueue(retry, _retry_arguments(topology, main, name))
            yield AmqpBinding(retry, main, retry)
        for kind in kinds:
            letters = dead_letter_name(name, kind)
            yield AmqpQueue(letters, dict(_dead_letter_arguments(topology, kind)))
            yield AmqpBinding(letters, dead, letters)
        if "undeliverable" in kinds:
            # Messages that the broker itself dead-letters (expired, over the length limit,
            # delivered too often) keep their routing key, the name of the queue. Without this
            # binding they would be lost.
            yield AmqpBinding(dead_letter_name(name, "undeliverable"), dead, name)
    for binding in topology.bindings:
        yield AmqpBinding(topology.full_name(binding.queue), binding.exchange, binding.pattern)


def _work_arguments(queue: WorkQueue, dead: str) -> Arguments:
    arguments: dict[str, Argument] = {}
    if queue.type is not None or not queue.priorities:
        arguments["x-queue-type"] = queue.type or "quorum"
    if queue.priorities:
        arguments["x-max-priority"] = MAX_PRIORITY  # not on quorum queues in RabbitMQ 3
    if dead:
        arguments["x-dead-letter-exchange"] = dead
    if queue.consumer_timeout is not None:
        arguments["x-consumer-timeout"] = round(queue.consumer_timeout * 1000)
    arguments.update(queue.arguments)
    return {name: value for name, value in arguments.items() if value is not None}


def _retry_arguments(topology: Topology, main: str, name: str) -> Arguments:
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": main,
        "x-dead-letter-routing-key": name,
        "x-message-ttl": round(topology.retry.default_delay * 1000),
    }


def _dead_letter_arguments(topology: Topology, kind: str) -> Iterator[tuple[str, int]]:
    settings = topology.dead_letters["unhandled" if kind == "unhandled" else "undeliverable"]
    if settings.max_length is not None:
        yield "x-max-length", settings.max_length
    if settings.ttl is not None:
        yield "x-message-ttl", round(settings.ttl * 1000)
