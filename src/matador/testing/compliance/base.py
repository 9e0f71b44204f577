"""What every group of compliance tests has: the factory, the hooks, benches, and tidying up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import uuid4

import pytest
import pytest_asyncio

from matador.errors import UnsupportedError
from matador.model.message import TopologyNote
from matador.model.topology import DeadLetters, Topology, WorkQueue
from matador.testing.compliance.bench import Bench
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Transport

T = TypeVar("T")


def growing(seconds: float) -> tuple[float, float, float]:
    """Times to try one after the other: a busy machine may be too slow for the first of them."""
    return seconds, 5 * seconds, 25 * seconds


@pytest.mark.asyncio
class ComplianceBase:
    """The factory to be given, and the knobs that may be turned."""

    patience: float = 30.0
    """Seconds until something that must happen is given up. Must be longer than the lease."""

    quiet: float = 0.1
    """Seconds for which nothing must happen where nothing may."""

    refuses_second_settlement: bool = True
    """Settling one delivery twice gives ``LeaseLostError``. False for brokers that cannot tell:
    then the second settlement must be answered with None and change nothing."""

    sees_only_ready: bool = False
    """Depth, browsing and purging concern what is ready. For brokers that tell no more: neither
    what is delayed nor what somebody holds is counted, shown or deleted."""

    releases_keep_their_place: bool = True
    """What is released is delivered again before what was sent after it. False for brokers where
    only a copy at the end of the queue is uncounted."""

    retries_keep_their_place: bool = True
    """What is retried is delivered again before later messages with its ordering key. False for
    brokers that cannot change a stored message: a retry goes to the end of its key."""

    orders_without_keys: bool = True
    """Where there is an order at all, messages without an ordering key have one, too. False for
    brokers that order the messages of one key only."""

    counts_queues: bool = True
    """``publish`` says whether a message found a queue. False for brokers that store it without
    knowing who reads it: then it is 1 also for what no binding matches."""

    delay_step: float = 0.1
    """Seconds by which two delays must differ to end one after the other."""

    body_limit: int | None = None
    """Bytes of the largest body, of any content, that is sure to be stored. None: as many as
    ``capabilities.max_message_size``. For brokers that count headers and encodings, too."""

    listens_first: bool = False
    """A message reaches only those who listen when it is sent. The suite then subscribes to every
    queue of a topology, dead letters too, before anything is sent."""

    honors_arguments: bool = False
    """Types and arguments of queues mean something here. False: a note says that they do not."""

    async def make_transport(self) -> Transport:
        """A transport that is not connected, on the same broker or store at every call in a test.

        Two calls may give the same object only if it is ``in_process`` and not ``durable``. Use a
        short lease, one or two seconds, if the transport has leases: some tests wait for its end.
        """
        raise NotImplementedError("make_transport() must be overridden")

    async def make_patient_transport(self) -> Transport:
        """Like ``make_transport``, with a lease that a busy machine does not outlast: 30 seconds,
        say. For every test in which no lease may end, and that is nearly all of them."""
        return await self.make_transport()

    async def restart_broker(self) -> None:
        """Restart the broker, and return once it is up. Embedded transports have none."""

    async def make_exact_queue(self, name: str) -> None:
        """Make a queue, and its dead letters, as their owner would, where transports do not."""

    async def raw_entries(self) -> RawEntries | None:
        """A writer of odd entries, past the transport. None only if nobody else can write there:
        for transports that are ``in_process``."""
        return None

    async def delete_queue(self, name: str) -> bool:
        """Delete a queue, by its full name, behind the transport's back. False: the broker has no
        queues that could be deleted."""
        return False

    # -- for the tests ----------------------------------------------------------------------------

    _opened: list[Transport]
    _namespace: str

    @pytest_asyncio.fixture(autouse=True)
    async def _tidy(self) -> AsyncIterator[None]:
        self.prepare()
        yield
        await self.tidy_up()

    def prepare(self) -> None:
        """Before a test: a namespace of its own."""
        self._opened = []
        self._namespace = f"t{uuid4().hex[:10]}"

    async def tidy_up(self) -> None:
        """After a test: disconnect what it made."""
        for transport in self._opened:
            await transport.disconnect()

    async def make(self, *, short_lease: bool = False) -> Transport:
        """A transport, not connected, that is disconnected after the test."""
        make = self.make_transport if short_lease else self.make_patient_transport
        transport = await make()
        self._opened.append(transport)
        return transport

    def topology(
        self,
        *queues: str | WorkQueue,
        dead_letters: DeadLetters | None = None,
        namespace: str = "",
    ) -> Topology:
        """A topology in a namespace of the test's own."""
        return Topology(
            f"{self._namespace}{namespace}",
            queues=queues or ["events"],
            dead_letters=dead_letters,
        )

    async def open(
        self,
        *queues: str | WorkQueue,
        dead_letters: DeadLetters | None = None,
        topology: Topology | None = None,
        short_lease: bool = False,
    ) -> Bench:
        """A bench on a new transport, connected, with its topology applied."""
        transport = await self.make(short_lease=short_lease)
        await transport.connect()
        topology = topology or self.topology(*queues, dead_letters=dead_letters)
        notes = await self.declare(transport, topology)
        return Bench(transport, topology, notes, patience=self.patience, quiet=self.quiet)

    async def declare(self, transport: Transport, topology: Topology) -> Sequence[TopologyNote]:
        """Apply a topology, and listen first where that is needed."""
        notes = await transport.apply_topology(topology)
        if self.listens_first:
            names = [topology.full_name(queue.name) for queue in topology.queues]
            for name in (*names, *(letters for _, _, letters in topology.dead_letter_names())):
                await transport.subscribe(name, prefetch=1)
        return notes

    async def reopen(
        self, bench: Bench, *, restart: bool = False, short_lease: bool = False
    ) -> Bench:
        """Disconnect, and come back as another transport on the same topology."""
        await bench.transport.disconnect()
        if restart:
            await self.restart_broker()
        return await self.open(topology=bench.topology, short_lease=short_lease)

    async def nothing_is_left(self, bench: Bench) -> None:
        """Nothing is delivered from the first queue, not even after a reconnect."""
        again = await self.reopen(bench)
        await again.nothing_comes(await again.subscribe())


async def ability(
    transport: object,
    protocol: type[T],
    declared: bool,
    *calls: Callable[[T], Awaitable[object]],
) -> T | None:
    """The transport as what it declares to be; None if it does not, and then it refuses ``calls``.

    A transport may lack an ability altogether, or have its methods and refuse them.
    """
    if declared:
        assert isinstance(transport, protocol)
        return transport
    if isinstance(transport, protocol):
        for call in calls:
            with pytest.raises(UnsupportedError):
                await call(transport)
    return None
