"""The view of tools on a service that receives messages: its transport, queues and dead letters.

An application, a job queue, a worker, an RPC server, a subscriber and a queue service are each a
``Source``, which hides their differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from matador.channels import QueueService
from matador.errors import NotStartedError, QueueNotFoundError, UnsupportedError
from matador.events.app import Matador
from matador.events.queue_counts import QueueCounts, count
from matador.events.queue_pauses import require_pausing
from matador.jobs import Queue, Worker
from matador.model.message import QueueDepth, TopologyNote, UnknownDepth
from matador.model.topology import DeadLetterKind, Topology
from matador.observe.journal.hook import Journal
from matador.observe.oldest import oldest_age
from matador.pubsub import Subscriber
from matador.rpc import RpcServer
from matador.runtime.dead_letters import DeadLetterOffice, StoredReader
from matador.transports.base import Checking, Measuring, Transport

Runner: TypeAlias = Matador | Worker | RpcServer | Subscriber | QueueService
"""A service that can be run."""

Target: TypeAlias = Runner | Queue
"""An object that tools can inspect."""

KINDS: Final = (Matador, Queue, Worker, RpcServer, Subscriber, QueueService)

_Received: TypeAlias = Matador | RpcServer | Subscriber | QueueService

_WAYS: Final[dict[type, str]] = {
    Matador: "events",
    Queue: "jobs",
    Worker: "jobs",
    RpcServer: "rpc",
    Subscriber: "pubsub",
    QueueService: "channels",
}
_UNKNOWN_JOBS: Final[dict[str, UnknownDepth]] = {"delayed": "delayed", "active": "in_flight"}


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A service that receives messages.

    Attributes:
        name: its name in the user's module.
        service: the object itself.
        jobs: its queue, if it is a queue of jobs or a worker: without hooks, so that inspecting
            jobs does not write to a journal.
    """

    name: str
    service: Target
    jobs: Queue | None = None

    @property
    def way(self) -> str:
        """Its way in: ``events``, ``jobs``, ``rpc``, ``pubsub`` or ``channels``."""
        return _WAYS[next(one for one in type(self.service).__mro__ if one in _WAYS)]

    @property
    def transport(self) -> Transport:
        """The transport with its messages.

        Raises:
            NotStartedError: it uses an in-memory transport, which is only known after the start.
        """
        return self.service.transport

    @property
    def topology(self) -> Topology:
        """Its queues."""
        return cast("Topology", (self.jobs or self.service).topology)

    @property
    def letters(self) -> DeadLetterOffice:
        """Its dead letters."""
        return self.jobs.dead_letters if self.jobs else cast("_Received", self.service).dead_letters

    @property
    def reader(self) -> StoredReader:
        """Reads its stored messages."""
        return cast("StoredReader", (self.jobs or self.service).reader)

    @property
    def app(self) -> Matador | None:
        """The application, if it is one."""
        return self.service if isinstance(self.service, Matador) else None

    @property
    def journals(self) -> list[Journal]:
        """The journals among its hooks."""
        return [one for one in self.service.hooks if isinstance(one, Journal)]

    @property
    def queues(self) -> list[str]:
        """The full names of its queues, without those of dead letters."""
        return [self.topology.full_name(one.name) for one in self.topology.queues]

    @property
    def letter_queues(self) -> list[tuple[str, DeadLetterKind, str]]:
        """The full name of each queue with a kind of dead letters, and their full name."""
        named = self.topology.dead_letter_names()
        return [(self.topology.full_name(queue.name), kind, name) for queue, kind, name in named]

    async def counts(self) -> list[QueueCounts]:
        """How many messages its queues have. The transport must be connected.

        Raises:
            UnsupportedError: the transport cannot count them.
        """
        if self.jobs is None:
            return await count(self.transport, self.topology)
        provider, transport = self.jobs.provider, self.transport
        if not provider.capabilities.counts:
            raise UnsupportedError(f"{transport.name} cannot count the jobs of a queue")
        (queue,) = self.queues
        kinds = [kind for _, kind, _ in self.letter_queues]
        if not await self.exists():
            return [QueueCounts(queue, None, dict.fromkeys(kinds))]
        found = await provider.store.count_jobs(queue)
        unknown = frozenset[UnknownDepth](
            _UNKNOWN_JOBS[one] for one in found.unknown if one in _UNKNOWN_JOBS
        )
        depth = QueueDepth(found.waiting, found.delayed, found.active, unknown)
        paused = found.paused if provider.capabilities.pause else None
        return [QueueCounts(queue, depth, dict.fromkeys(kinds[:1], found.failed), paused)]

    async def exists(self) -> bool:
        """Whether its first queue exists. True if the connected transport cannot tell."""
        if self.transport.capabilities.depth and isinstance(self.transport, Measuring):
            try:
                await self.transport.depth(self.queues[0])
            except QueueNotFoundError:
                return False
        return True

    async def age(self, queue: str) -> float | None:
        """Seconds that the oldest due message of a queue has waited; None if it is not known."""
        try:
            return await oldest_age(self.transport, queue)
        except QueueNotFoundError:
            return None

    async def apply(self) -> list[TopologyNote]:
        """Create missing queues; return what the connected transport does not support."""
        if self.jobs is not None:
            await self.jobs.provider.store.open_jobs(self.jobs.name)
            return []
        return list(await self.transport.apply_topology(self.topology))

    async def differences(self) -> list[TopologyNote]:
        """How existing queues differ from those declared. The transport must be connected."""
        if self.jobs is not None or not isinstance(self.transport, Checking):
            return []
        return list(await self.transport.check_topology(self.topology))

    async def pause(self, queue: str, paused: bool) -> None:
        """Pause or resume a queue for all of its workers.

        Raises:
            UnsupportedError: the transport cannot pause queues.
            QueueNotFoundError: there is no such queue.
        """
        if self.jobs is not None:
            store = self.jobs.provider.store
            await (store.pause_jobs(queue) if paused else store.resume_jobs(queue))
        else:
            transport = require_pausing(self.transport)
            await (transport.pause_queue(queue) if paused else transport.resume_queue(queue))


def sources(targets: Mapping[str, Target]) -> list[Source]:
    """The sources among named objects; each queue once.

    Leaves out broadcast subscribers and services that only send.
    """
    found: list[Source] = []
    seen: set[tuple[str, str]] = set()
    # Queues first: their workers add nothing.
    for name, one in sorted(targets.items(), key=lambda item: isinstance(item[1], Worker)):
        jobs = None
        if isinstance(one, Queue | Worker):
            jobs = Queue(one.name if isinstance(one, Queue) else one.queue, provider=one.transport)
        elif one.topology is None or (isinstance(one, Subscriber) and one.is_broadcast):
            continue
        source = Source(name, one, jobs)
        where = _where(one)
        queues = {(where, queue) for queue in source.queues}
        if not queues <= seen:
            seen |= queues
            found.append(source)
    return found


def _where(target: Target) -> str:
    """An identifier of the broker it uses."""
    try:
        return repr(target.transport)
    except NotStartedError:  # a memory of its own
        return f"memory {id(target)}"


def journals_of(sources: Iterable[Source]) -> list[Journal]:
    """The journals of all of them, each once."""
    return list(dict.fromkeys(journal for one in sources for journal in one.journals))
