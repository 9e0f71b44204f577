"""The keys of queues, and the settings with which they are declared.

All keys of a queue, and those of its dead letters, share one hash tag: a script that moves a
message to the dead letters, or back, touches one slot of a cluster only.
"""

from __future__ import annotations

from matador.model.message import TopologyNote
from matador.model.topology import DEAD_LETTER_KINDS, Topology
from matador.transports.kit.notes import ignored_arguments, ignored_exchanges
from matador.transports.redis_client.connection import Argument

_ENDINGS = tuple(f".{kind}" for kind in DEAD_LETTER_KINDS)


def key_of(prefix: str, queue: str) -> str:
    """The key of a queue's settings; all its other keys begin with it.

    Example:
        >>> key_of("matador", "shop.events"), key_of("matador", "shop.events.unhandled")
        ('matador:{shop.events}', 'matador:{shop.events}.unhandled')
    """
    for ending in _ENDINGS:
        if queue.endswith(ending) and queue != ending:
            return f"{prefix}:{{{queue.removesuffix(ending)}}}{ending}"
    return f"{prefix}:{{{queue}}}"


def stream_settings(topology: Topology) -> dict[str, list[Argument]]:
    """The arguments of the script ``declare`` for every queue."""
    made: dict[str, list[Argument]] = {
        topology.full_name(queue.name): [
            int(queue.priorities),
            _milliseconds(queue.retention),
            "",
            "",
        ]
        for queue in topology.queues
    }
    for _, kind, name in topology.dead_letter_names():
        letters = topology.dead_letters[kind]
        length = "" if letters.max_length is None else letters.max_length
        made[name] = [0, "", length, _milliseconds(letters.ttl)]
    return made


def unsupported(topology: Topology, mode: str) -> list[TopologyNote]:
    """Notes about what lists and pub/sub cannot do."""
    notes = [*ignored_arguments(topology), *ignored_exchanges(topology)]
    for queue in topology.queues:
        name = topology.full_name(queue.name)
        if queue.priorities:
            notes.append(TopologyNote(name, f"{mode} has no priorities: first in, first out"))
        if queue.retention is not None:
            notes.append(TopologyNote(name, f"{mode} keeps no finished messages: no retention"))
    for _, kind, name in topology.dead_letter_names():
        letters = topology.dead_letters[kind]
        if letters.max_length is not None or letters.ttl is not None:
            notes.append(TopologyNote(name, f"{mode} has no max_length and no ttl"))
    return notes


def _milliseconds(given: float | None) -> Argument:
    return "" if given is None else round(given * 1000)
