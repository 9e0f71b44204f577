"""The keys of queues, and the settings with which they are declared.

All keys of a queue, and those of its dead letters, share one hash tag: a script that moves a
message to the dead letters, or back, touches one slot of a cluster only.
"""

from __future__ import annotations

from matador.model.message import TopologyNote
from matador.model.topology import DEAD_LETTER_KINDS, Topology, WorkQueue
from matador.transports.kit.notes import ignored_arguments, ignored_exchanges, ignored_limits
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
            *_limits(queue),
        ]
        for queue in topology.queues
    }
    for queue, kind, name in topology.dead_letter_names():
        letters = topology.letters_of(queue)[kind]
        length = "" if letters.max_length is None else letters.max_length
        made[name] = [0, "", length, _milliseconds(letters.ttl)]
    return made


def ignored_with_priorities(topology: Topology) -> list[TopologyNote]:
    """Notes about limits of queues with several lanes, which streams do not support."""
    return [
        TopologyNote(
            topology.full_name(queue.name),
            f"{queue.limits} need a queue without priorities on Redis: ignored",
        )
        for queue in topology.queues
        if queue.priorities and queue.limits
    ]


def unsupported(topology: Topology, mode: str) -> list[TopologyNote]:
    """Notes about features that lists and pub/sub do not support."""
    notes = [
        *ignored_arguments(topology),
        *ignored_exchanges(topology),
        *ignored_limits(topology, mode),
    ]
    for queue in topology.queues:
        name = topology.full_name(queue.name)
        if queue.priorities:
            notes.append(TopologyNote(name, f"{mode} has no priorities: first in, first out"))
        if queue.retention is not None:
            notes.append(TopologyNote(name, f"{mode} keeps no finished messages: no retention"))
    for queue, kind, name in topology.dead_letter_names():
        letters = topology.letters_of(queue)[kind]
        if letters.max_length is not None or letters.ttl is not None:
            notes.append(TopologyNote(name, f"{mode} has no max_length and no ttl"))
    return notes


def _limits(queue: WorkQueue) -> tuple[Argument, Argument]:
    if queue.priorities:
        return "", ""
    length = "" if queue.max_length is None else queue.max_length
    return length, _milliseconds(queue.message_ttl)


def _milliseconds(given: float | None) -> Argument:
    return "" if given is None else round(given * 1000)
