"""Counts the messages and the dead letters of queues, and says which are paused."""

from __future__ import annotations

from dataclasses import dataclass

from matador.errors import UnsupportedError
from matador.events.queue_pauses import paused_of
from matador.model.message import QueueDepth
from matador.model.topology import Topology, WorkQueue
from matador.runtime.few_at_once import depths_of
from matador.transports.base import Measuring, Transport


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The depth of a queue and of its dead letters by kind; None: there is no such queue.

    ``paused``: whether it is paused; None: unknown, because the transport cannot pause queues
    or there is no such queue.
    """

    queue: str
    depth: QueueDepth | None
    dead_letters: dict[str, int | None]
    paused: bool | None = None


async def count(transport: Transport, topology: Topology) -> list[QueueCounts]:
    """The depths of all queues of a topology, on a connected transport.

    Raises:
        UnsupportedError: the transport does not know them.
    """
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        raise UnsupportedError(f"{transport.name} cannot count the messages of a queue")

    names: list[str] = []
    for queue in topology.queues:
        names.append(topology.full_name(queue.name))
        names += [topology.dead_letter_name(queue.name, kind) for kind in topology.kinds_of(queue)]
    depths = dict(zip(names, await depths_of(transport, names), strict=True))
    paused = await paused_of(transport, [topology.full_name(one.name) for one in topology.queues])

    def counts(queue: WorkQueue, is_paused: bool | None) -> QueueCounts:
        dead: dict[str, int | None] = {}
        for kind in topology.kinds_of(queue):
            letters = depths[topology.dead_letter_name(queue.name, kind)]
            dead[kind] = None if letters is None else letters.total
        name = topology.full_name(queue.name)
        return QueueCounts(name, depths[name], dead, is_paused)

    return list(map(counts, topology.queues, paused))
