"""Which queues there are. A BullMQ queue exists once it has metadata; ours are kept beside them.

The metadata of a queue are a hash that BullMQ keeps for it. The field ``matador`` there says which
dead letters are kept and whether messages have priorities, so that every process knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from matador.errors import QueueNotFoundError
from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind, Topology
from matador.transports.bullmq.errors import no_such_queue
from matador.transports.bullmq.link import Link, Session
from matador.transports.bullmq.names import letters_of

_FIELD = "matador"
_MOST_EVENTS = ("opts.maxLenEvents", 10_000)  # as BullMQ's own queues have it


class _Noted(msgspec.Struct, omit_defaults=True, rename="camel"):
    priorities: bool = False
    dead_letters: tuple[DeadLetterKind, ...] = DEAD_LETTER_KINDS


@dataclass(frozen=True, slots=True)
class Place:
    """Where messages of a name are: in a queue, or among its failed jobs.

    Attributes:
        queue: the name of the queue with the jobs.
        kind: dead letters of that kind; None: the queue itself.
        priorities: messages have priorities there.
        kinds: the dead letters that are kept.
    """

    queue: str
    kind: DeadLetterKind | None = None
    priorities: bool = False
    kinds: tuple[DeadLetterKind, ...] = DEAD_LETTER_KINDS


class Queues:
    """The queues that were declared, by this process or another."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._declared: dict[str, _Noted] = {}
        self._found: dict[str, _Noted] = {}

    async def declare(self, session: Session, topology: Topology) -> None:
        """Make the queues of a topology, those of somebody else too: a name is all it takes."""
        kinds = topology.dead_letters.enabled_kinds
        made = {
            topology.full_name(queue.name): _Noted(queue.priorities, kinds)
            for queue in topology.queues
        }
        await self._write(session, made)
        self._declared.update(made)

    async def restore(self, session: Session) -> None:
        """Declare again what was declared: the server may have lost it."""
        self._found.clear()
        await self._write(session, self._declared)

    async def _write(self, session: Session, queues: Mapping[str, _Noted]) -> None:
        commands: list[tuple[object, ...]] = []
        for queue, noted in queues.items():
            key = session.scripts(queue).key("meta")
            commands.append(("HSETNX", key, *_MOST_EVENTS))
            commands.append(("HSET", key, _FIELD, msgspec.json.encode(noted)))
        for answer in await self._link.run(session, commands):
            if isinstance(answer, Exception):
                raise answer

    async def find(self, session: Session, name: str) -> Place:
        """Where messages of this name are.

        Raises:
            QueueNotFoundError: there is no such queue, or its dead letters are turned off.
        """
        noted = await self._noted(session, name)
        if noted is not None:
            return Place(name, None, noted.priorities, noted.dead_letters)
        letters = letters_of(name)
        if letters is not None:
            queue, kind = letters
            noted = await self._noted(session, queue)
            if noted is not None and kind in noted.dead_letters:
                return Place(queue, kind, noted.priorities, noted.dead_letters)
        raise no_such_queue(name, self._link.where)

    async def find_or_none(self, session: Session, name: str) -> Place | QueueNotFoundError:
        """``find`` with the error as its answer."""
        try:
            return await self.find(session, name)
        except QueueNotFoundError as error:
            return error

    async def _noted(self, session: Session, queue: str) -> _Noted | None:
        known = self._declared.get(queue) or self._found.get(queue)
        if known is not None:
            return known
        key = session.scripts(queue).key("meta")
        ours, any_ = await self._link.run(session, [("HGET", key, _FIELD), ("EXISTS", key)])
        for answer in (ours, any_):
            if isinstance(answer, Exception):
                raise answer
        if not any_:
            return None
        try:
            noted = msgspec.json.decode(ours, type=_Noted) if ours else _Noted()
        except msgspec.MsgspecError:  # of a version that writes something else
            noted = _Noted()
        self._found[queue] = noted
        return noted
