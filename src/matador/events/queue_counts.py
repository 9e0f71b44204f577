"""Counts the messages and the dead letters of an application's queues, and says who is paused."""

from __future__ import annotations

from dataclasses import dataclass

from matador.errors import QueueNotFoundError, UnsupportedError
from matador.events.app import Matador
from matador.events.queue_pauses import pausing
from matador.model.message import QueueDepth
from matador.model.topology import WorkQueue
from matador.runtime.few_at_once import few_at_once
from matador.transports.base import Measuring


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The depth of a queue and of its dead letters by kind; None: there is no such queue.

    ``paused``: nobody receives from it; None: not known, because the transport cannot pause queues
    or there is no such queue.
    """

    queue: str
    depth: QueueDepth | None
    dead_letters: dict[str, int | None]
    paused: bool | None = None


async def count(app: Matador) -> list[QueueCounts]:
    """The depths of all queues of a connected application.

    Raises:
        UnsupportedError: the transport does not know them.
    """
    transport = app.transport
    if not transport.capabilities.depth or not isinstance(transport, Measuring):
        raise UnsupportedError(f"{transport.name} cannot count the messages of a queue")

    async def depth(name: str) -> QueueDepth | None:
        try:
            return await transport.depth(name)
        except QueueNotFoundError:
            return None

    pauses = pausing(transport)

    async def paused(name: str) -> bool | None:
        try:
            return None if pauses is None else await pauses.is_paused(name)
        except QueueNotFoundError:
            return None

    topology = app.topology

    async def counts(queue: WorkQueue) -> QueueCounts:
        dead: dict[str, int | None] = {}
        for kind in topology.kinds_of(queue):
            letters = await depth(topology.dead_letter_name(queue.name, kind))
            dead[kind] = None if letters is None else letters.total
        name = topology.full_name(queue.name)
        return QueueCounts(name, await depth(name), dead, await paused(name))

    return await few_at_once(counts, topology.queues)
