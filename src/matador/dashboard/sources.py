"""The sources of the dashboard, with unique names for their queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matador.channels import QueueService
from matador.charts.markup import titled
from matador.errors import ConfigurationError
from matador.events.app import Matador
from matador.events.queue_pauses import pausing, why_not
from matador.jobs import Queue, Worker
from matador.model.topology import DeadLetterKind, WorkQueue
from matador.observe import sources as observed
from matador.observe.journal.hook import Journal
from matador.observe.sources import KINDS, Target
from matador.pubsub import Subscriber
from matador.rpc import RpcServer
from matador.runtime.checkpoints import CheckpointStore
from matador.runtime.dead_letters import Edit, Letter, delivery_of
from matador.transports.base import (
    Browsing,
    LocalStorage,
    browses_by_taking,
    browses_dead_letters,
)

_IN_HISTORY: Final = {"events": "event", "jobs": "job", "rpc": "rpc"}
"""The names of the ways in in the history; all others are messages."""


@dataclass(frozen=True, slots=True, eq=False)
class WatchedSource(observed.Source):
    """A service that receives messages, with the abilities of its transport."""

    @property
    def checkpoints(self) -> CheckpointStore | None:
        """The store for the steps of its handlers, if it has one."""
        return self.service.checkpoints

    @property
    def missing(self) -> str | None:
        """The reason why there is nothing to show yet; does not create the storage."""
        transport = self.transport
        if isinstance(transport, LocalStorage) and transport.missing_storage is not None:
            return f"{transport.missing_storage} does not exist yet: start a worker"
        return None

    @property
    def counts_messages(self) -> bool:
        """Whether messages can be counted."""
        jobs = self.jobs
        return self.transport.capabilities.depth if jobs is None else jobs.capabilities.counts

    @property
    def browses(self) -> bool:
        """Whether waiting messages can be shown."""
        return self.transport.capabilities.browse and isinstance(self.transport, Browsing)

    @property
    def browses_letters(self) -> bool:
        """Whether dead letters can be shown."""
        return browses_dead_letters(self.transport)

    @property
    def takes_to_browse(self) -> bool:
        """Whether messages must be taken in order to show them."""
        return browses_by_taking(self.transport)

    @property
    def pauses(self) -> bool:
        """Whether queues can be paused for all of their workers."""
        jobs = self.jobs
        return pausing(self.transport) is not None if jobs is None else jobs.capabilities.pause

    @property
    def why_not_pause(self) -> str:
        """The reason why queues cannot be paused, and what to do instead."""
        return why_not(self.transport)

    def check_edit(self, queue: str, letter: Letter, data: Any) -> None:
        """Check a new payload for a letter against the declared handlers.

        Raises:
            MatadorError: a handler could not read it.
        """
        reader = self.service.reader or self.reader
        reader.renewed(delivery_of(letter.stored), queue, Edit(data))

    def handlers_of(self, queue: str) -> dict[str, str]:
        """The handler of each name in a queue: job, command or consumer. Leaves out events and
        patterns."""
        match self.service:
            case Queue() as jobs:
                return {name or "any": "" for name in jobs.declared}
            case RpcServer() as server:
                return {name: one.name for name, one in server.functions.items()}
            case QueueService() as service if queue in service.consumers:
                consumer, function = service.consumers[queue]
                return {consumer.name: function.name}
            case _:
                return {}

    def title_of(self, name: str) -> str:
        """The name of a message of this way in in the history."""
        return titled(name, _IN_HISTORY.get(self.way, "message"))


@dataclass(frozen=True, slots=True, eq=False)
class WatchedQueue:
    """A queue of a source. ``name`` is unique in the dashboard: the short one, if it can be."""

    name: str
    full_name: str
    queue: WorkQueue
    source: WatchedSource

    @property
    def kinds(self) -> list[DeadLetterKind]:
        """The kinds of dead letters that are kept for it."""
        return [kind for queue, kind in self.source.letters.queues() if queue == self.queue]


class Sources:
    """All sources of a dashboard.

    Raises:
        ConfigurationError: there is nothing to watch.
        NotStartedError: a service uses an in-memory transport and has not been started.
    """

    def __init__(self, services: Iterable[Target]) -> None:
        given = list(services)
        for one in given:
            if not isinstance(one, KINDS):  # pyright: ignore[reportUnnecessaryIsInstance] - users
                raise ConfigurationError(
                    f"a dashboard shows applications, job queues and workers, RPC servers, "
                    f"subscribers and queue services, got {one!r}"
                )
        found = observed.sources({str(at): one for at, one in enumerate(given)})
        self.all = tuple(WatchedSource(_name(one.service), one.service, one.jobs) for one in found)
        if not self.all:
            raise ConfigurationError(
                "there is nothing to show: give an application, a job queue, an RPC server, a "
                "subscriber with a queue, or a queue service with consumers"
            )
        self.queues = tuple(_named(self.all))
        by_name = {one.name: one for one in self.queues}
        self._by_name = {**{one.full_name: one for one in self.queues}, **by_name}

    def queue(self, name: str) -> WatchedQueue | None:
        """The queue of a name, or of a full one."""
        return self._by_name.get(name)

    def of_jobs(self, name: str) -> WatchedQueue | None:
        """The queue of jobs of a name."""
        found = self._by_name.get(name)
        return found if found is not None and found.source.jobs is not None else None

    @property
    def app(self) -> Matador | None:
        """The first application."""
        return next((one.app for one in self.all if one.app is not None), None)

    @property
    def journal(self) -> Journal | None:
        """The first journal among the hooks."""
        return next(iter(observed.journals_of(self.all)), None)

    @property
    def title(self) -> str:
        """The title of the dashboard: the name of the application, or of its other sources."""
        if self.app is not None:
            return self.app.topology.namespace
        names = list(dict.fromkeys(one.name for one in self.all))
        return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def _name(service: Target) -> str:
    match service:
        case Matador():
            return service.topology.namespace
        case Queue():
            return service.name
        case RpcServer() | Subscriber() | Worker():
            return service.queue
        case QueueService():
            names = (consumer.channel for consumer, _ in service.consumers.values())
            return ", ".join(dict.fromkeys(names))


def _named(sources: Sequence[WatchedSource]) -> Iterable[WatchedQueue]:
    """All queues with names that differ: short, full, with the way in, or numbered."""
    every: list[tuple[WatchedSource, WorkQueue]] = []
    seen: set[tuple[str, str]] = set()
    for source in sources:
        for queue in source.topology.queues:
            key = repr(source.transport), source.topology.full_name(queue.name)
            if key not in seen:  # two objects may receive from one queue, which is shown once
                seen.add(key)
                every.append((source, queue))
    forms = [
        (
            queue.name,
            full := source.topology.full_name(queue.name),
            f"{full} ({source.way})",
            f"{full} ({source.way}, {at})",
        )
        for at, (source, queue) in enumerate(every)
    ]
    taken = [Counter(names) for names in zip(*forms, strict=True)]
    for (source, queue), names in zip(every, forms, strict=True):
        unique = (name for name, counts in zip(names, taken, strict=True) if counts[name] == 1)
        yield WatchedQueue(next(unique), names[1], queue, source)
