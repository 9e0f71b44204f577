"""Notes about parts of a topology that a transport cannot apply."""

from __future__ import annotations

from matador.model.message import TopologyNote
from matador.model.topology import Topology


def ignored_arguments(topology: Topology) -> list[TopologyNote]:
    """Notes of a transport without queue types and arguments."""
    return [
        TopologyNote(
            topology.full_name(queue.name),
            "type and arguments are for RabbitMQ only and are ignored",
        )
        for queue in topology.queues
        if queue.type is not None or queue.arguments
    ]


def ignored_limits(topology: Topology, broker: str) -> list[TopologyNote]:
    """Notes of a broker without queue limits."""
    return [
        TopologyNote(
            topology.full_name(queue.name), f"{broker} has none of {queue.limits}: ignored"
        )
        for queue in topology.queues
        if queue.limits
    ]


def ignored_exchanges(topology: Topology) -> list[TopologyNote]:
    """Notes of a transport without routing: exchanges and temporary queues."""
    notes = [
        TopologyNote(None, f"exchange {exchange.name!r} is ignored: this transport has no routing")
        for exchange in topology.exchanges
    ]
    for queue in topology.queues:
        if queue.expires is not None:
            text = "is not deleted when it is unused: this transport has no temporary queues"
            notes.append(TopologyNote(topology.full_name(queue.name), text))
    return notes
