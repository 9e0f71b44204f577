"""A topology in RabbitMQ's terms: the exchanges, queues and bindings that must be there.

Declared exactly as services in other languages declare them: the broker refuses a queue that is
there with other arguments. No I/O here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from matador.model.topology import Argument, Topology, WorkQueue, dead_letter_name

Arguments: TypeAlias = dict[str, str | int]

MAX_PRIORITY = 10


@dataclass(frozen=True, slots=True)
class AmqpExchange:
    """A durable exchange."""

    name: str
    type: str
    arguments: Arguments = field(default_factory=dict[str, str | int])
    durable: bool = True


@dataclass(frozen=True, slots=True)
class AmqpQueue:
    """A durable queue. ``made``: False if it is somebody else's and only used."""

    name: str
    arguments: Arguments = field(default_factory=dict[str, str | int])
    made: bool = True


@dataclass(frozen=True, slots=True)
class AmqpBinding:
    """What comes to ``exchange`` with ``key`` goes to ``queue``."""

    queue: str
    exchange: str
    key: str
    arguments: Arguments = field(default_factory=dict[str, str | int])


@dataclass(frozen=True, slots=True)
class TopologyPlan:
    """All objects of a namespace. ``exchanges`` and ``queues`` come before ``bindings``."""

    exchanges: tuple[AmqpExchange, ...]
    queues: tuple[AmqpQueue, ...]
    bindings: tuple[AmqpBinding, ...]


def main_exchange(namespace: str) -> str:
    """Where messages for the work queues of a namespace are published."""
    return f"{namespace}.exchange"


def dead_letter_exchange(namespace: str) -> str:
    """Where its dead letters are published."""
    return f"{namespace}.dlx"


def delayed_exchange(namespace: str) -> str:
    """Where delayed messages are published if the broker has the plugin."""
    return f"{namespace}.delayed"


def plan_for(topology: Topology, *, due_exchange: str | None, plugin: bool) -> TopologyPlan:
    """What a topology needs.

    ``due_exchange``: where the delay levels end, None without them; ``plugin``: there is an
    exchange of the delayed-message plugin.
    """
    namespace = topology.namespace
    main, dead = main_exchange(namespace), dead_letter_exchange(namespace)
    exchanges = [AmqpExchange(main, "direct")]
    exchanges += [AmqpExchange(one.name, one.type, {}, one.durable) for one in topology.exchanges]
    kinds = topology.dead_letters.enabled_kinds
    if kinds:
        exchanges.append(AmqpExchange(dead, "direct"))
    queues: list[AmqpQueue] = []
    bindings: list[AmqpBinding] = []
    for queue in topology.queues:
        name = topology.full_name(queue.name)
        queues.append(AmqpQueue(name, _work_arguments(queue, dead, bool(kinds)), not queue.exact))
        sources = [main, *([due_exchange] if due_exchange is not None else [])]
        sources += [delayed_exchange(namespace)] if plugin else []
        bindings += [AmqpBinding(name, source, name) for source in sources]
        retry = f"{name}.retry"
        if topology.retry.enabled:
            queues.append(AmqpQueue(retry, _retry_arguments(topology, main, name)))
            bindings.append(AmqpBinding(retry, main, retry))
        for kind in kinds:
            letters = dead_letter_name(name, kind)
            queues.append(AmqpQueue(letters, dict(_dead_letter_arguments(topology, kind))))
            bindings.append(AmqpBinding(letters, dead, letters))
        if "undeliverable" in kinds:
            # What the broker itself dead-letters (expired, over length, delivered too often)
            # keeps its routing key, the queue's name: without this it would vanish.
            bindings.append(AmqpBinding(dead_letter_name(name, "undeliverable"), dead, name))
    bindings += [
        AmqpBinding(topology.full_name(one.queue), one.exchange, one.pattern)
        for one in topology.bindings
    ]
    return TopologyPlan(tuple(exchanges), tuple(queues), tuple(bindings))


def _work_arguments(queue: WorkQueue, dead: str, dead_letters: bool) -> Arguments:
    arguments: dict[str, Argument] = {}
    if queue.type is not None or not queue.priorities:
        arguments["x-queue-type"] = queue.type or "quorum"
    if queue.priorities:
        arguments["x-max-priority"] = MAX_PRIORITY  # quorum queues have none on RabbitMQ 3
    if dead_letters:
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
