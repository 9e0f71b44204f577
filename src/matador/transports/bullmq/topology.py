"""Declares queues and finds them. A BullMQ queue exists once it has metadata.

The metadata of a queue are a hash that BullMQ keeps for it. Our field ``matador`` there says which
dead letters are kept and whether messages have priorities, so that every process knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from matador.errors import ConfigurationError
from matador.model.topology import DeadLetterKind, Topology, dead_letter_name
from matador.transports.bullmq.client import BullMQSession
from matador.transports.bullmq.wire import letters_of
from matador.transports.kit.errors import queue_not_found

_FIELD = "matador"
_MOST_EVENTS = ("opts.maxLenEvents", 10_000)  # as BullMQ's own queues have it


class _QueueSettings(msgspec.Struct, omit_defaults=True, rename="camel"):
    priorities: bool = False
    dead_letters: tuple[DeadLetterKind, ...] = ("unhandled", "undeliverable")
    jobs: bool = False


_OF_JOBS = _QueueSettings(dead_letters=("undeliverable",), jobs=True)


@dataclass(frozen=True, slots=True)
class JobSet:
    """The jobs behind a name of a queue: those of a BullMQ queue, or its failed ones.

    Attributes:
        queue: the name of the BullMQ queue.
        kind: its dead letters of that kind; None: the queue itself.
        priorities: whether messages have priorities.
        native: it is a job queue: jobs are written as BullMQ's own.
    """

    queue: str
    kind: DeadLetterKind | None = None
    priorities: bool = False
    native: bool = False

    @property
    def name(self) -> str:
        """The name by which it was found."""
        return self.queue if self.kind is None else dead_letter_name(self.queue, self.kind)


class Queues:
    """The queues that were declared, by this process or another."""

    def __init__(self) -> None:
        self._declared: dict[str, _QueueSettings] = {}
        self._found: dict[str, _QueueSettings] = {}
        self._with_priorities: set[str] = set()

    async def declare(self, session: BullMQSession, topology: Topology) -> None:
        """Create the queues of a topology, ``exact`` ones, too: all it takes is a name."""
        made = {
            topology.full_name(queue.name): _QueueSettings(
                queue.priorities, topology.kinds_of(queue)
            )
            for queue in topology.queues
        }
        await self._write(session, made)
        self._declared.update(made)

    async def open_jobs(self, session: BullMQSession, queue: str) -> None:
        """Make a queue a job queue.

        Raises:
            ConfigurationError: it is a queue of messages, or BullMQ does not allow its name.
        """
        if ":" in queue:
            raise ConfigurationError(f"queue {queue!r}: BullMQ allows no colon in a name")
        self._found.pop(queue, None)
        known = self._declared.get(queue) or await self._stored(session, queue)
        if known is not None and not known.jobs:
            raise ConfigurationError(
                f"queue {queue!r} of {session.where} is one of messages; choose another name for "
                f"a queue of jobs"
            )
        await self._write(session, {queue: _OF_JOBS})
        self._declared[queue] = _OF_JOBS

    def has_priorities(self, queue: str) -> None:
        """Note that a job queue has jobs with priorities: those without one come last."""
        self._with_priorities.add(queue)

    async def find_jobs(self, session: BullMQSession, queue: str) -> JobSet:
        """Find a job queue.

        Raises:
            QueueNotFoundError: there is none of that name.
        """
        found = await self.find(session, queue)
        if found.native and found.kind is None:
            return found
        raise queue_not_found(queue, session.where)

    async def restore(self, session: BullMQSession) -> None:
        """Declare all queues again: the server may have lost them."""
        self._found.clear()
        await self._write(session, self._declared)

    async def _write(self, session: BullMQSession, queues: Mapping[str, _QueueSettings]) -> None:
        commands: list[tuple[object, ...]] = []
        for queue, settings in queues.items():
            key = session.scripts(queue).key("meta")
            commands.append(("HSETNX", key, *_MOST_EVENTS))
            commands.append(("HSET", key, _FIELD, msgspec.json.encode(settings)))
        for answer in await session.run(commands):
            if isinstance(answer, Exception):
                raise answer

    async def find(self, session: BullMQSession, name: str) -> JobSet:
        """Find the jobs behind a name.

        Raises:
            QueueNotFoundError: there is no such queue, or its dead letters are turned off.
        """
        settings = await self._settings_of(session, name)
        if settings is not None:
            priorities = settings.priorities or name in self._with_priorities
            return JobSet(name, None, priorities, settings.jobs)
        letters = letters_of(name)
        if letters is not None:
            queue, kind = letters
            settings = await self._settings_of(session, queue)
            if settings is not None and kind in settings.dead_letters:
                return JobSet(queue, kind, settings.priorities, settings.jobs)
        raise queue_not_found(name, session.where)

    async def _settings_of(self, session: BullMQSession, queue: str) -> _QueueSettings | None:
        known = self._declared.get(queue) or self._found.get(queue)
        if known is not None:
            return known
        settings = await self._stored(session, queue, _QueueSettings())
        if settings is not None:
            self._found[queue] = settings
        return settings

    async def _stored(
        self, session: BullMQSession, queue: str, default: _QueueSettings | None = None
    ) -> _QueueSettings | None:
        """Read the stored settings; ``default`` for a queue that only other programs use."""
        key = session.scripts(queue).key("meta")
        ours, any_ = await session.run([("HGET", key, _FIELD), ("EXISTS", key)])
        for answer in (ours, any_):
            if isinstance(answer, Exception):
                raise answer
        if not any_:
            return None
        try:
            return msgspec.json.decode(ours, type=_QueueSettings) if ours else default
        except msgspec.MsgspecError:  # written by another version
            return default
