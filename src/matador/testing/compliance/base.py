"""The base of all groups of compliance tests: the factory, the settings, benches and cleanup."""

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
    """Increasing durations to try in turn, because a busy machine may be too slow for the first."""
    return seconds, 5 * seconds, 25 * seconds


@pytest.mark.asyncio
class ComplianceBase:
    """The factory to implement, and the settings to override."""

    patience: float = 30.0
    """The time limit for expected events in seconds. Must be longer than the lease."""

    quiet: float = 0.1
    """Seconds to wait when no event may happen."""

    refuses_second_settlement: bool = True
    """Settling one delivery twice gives ``LeaseLostError``. False for brokers that cannot detect
    it: then the second settlement must return None and change nothing."""

    sees_only_ready: bool = False
    """Depth, browsing and purging only include ready messages. For brokers that neither count, show
    nor delete delayed messages and messages in flight."""

    releases_keep_their_place: bool = True
    """A released message is delivered again before messages sent after it. False for brokers where
    only a copy at the end of the queue is not counted."""

    retries_keep_their_place: bool = True
    """A retried message is delivered again before later messages with its ordering key. False for
    brokers that cannot change a stored message: a retry goes to the end of its key."""

    orders_without_keys: bool = True
    """If there is an order, messages without an ordering key are ordered, too. False for brokers
    that only order the messages of one key."""

    counts_queues: bool = True
    """``publish`` reports whether a message matched a queue. False for brokers that store it
    without that knowledge: then it returns 1 even if no binding matches."""

    delay_step: float = 0.1
    """Seconds by which two delays must differ to end one after the other."""

    body_limit: int | None = None
    """The size in bytes of the largest body that can always be stored. None:
    ``capabilities.max_message_size``. For brokers that count headers and encodings, too."""

    listens_first: bool = False
    """A message only reaches current subscriptions. The suite then subscribes to every queue of a
    topology, including dead letters, before it sends."""

    honors_arguments: bool = False
    """Types and arguments of queues have an effect. False: a note reports that they have none."""

    async def make_transport(self) -> Transport:
        """A transport that is not connected, on the same broker or store at every call in a test.

        Two calls may give the same object only if it is ``in_process`` and not ``durable``. Use a
        short lease of one or two seconds if the transport has leases: some tests wait for it to
        expire.
        """
        raise NotImplementedError("make_transport() must be overridden")

    async def make_patient_transport(self) -> Transport:
        """Like ``make_transport``, with a lease that does not expire on a busy machine, such as 30
        seconds. Used by nearly all tests, because no lease may expire in them."""
        return await self.make_transport()

    async def restart_broker(self) -> None:
        """Restart the broker, and return once it is up. Embedded transports have none."""

    async def make_exact_queue(self, name: str) -> None:
        """Create a queue and its dead letters as their owner would, if transports do not."""

    async def raw_entries(self) -> RawEntries | None:
        """A writer of odd entries that bypasses the transport. None only if no other program can
        write there: for ``in_process`` transports."""
        return None

    async def delete_queue(self, name: str) -> bool:
        """Delete a queue, by its full name, without the transport. False: the broker has no queues
        to delete."""
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
        """Before a test: choose a unique namespace."""
        self._opened = []
        self._namespace = f"t{uuid4().hex[:10]}"

    async def tidy_up(self) -> None:
        """After a test: disconnect its transports."""
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
        """A topology in the namespace of the test."""
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
        """Apply a topology, and subscribe first if necessary."""
        notes = await transport.apply_topology(topology)
        if self.listens_first:
            names = [topology.full_name(queue.name) for queue in topology.queues]
            for name in (*names, *(letters for _, _, letters in topology.dead_letter_names())):
                await transport.subscribe(name, prefetch=1)
        return notes

    async def reopen(
        self, bench: Bench, *, restart: bool = False, short_lease: bool = False
    ) -> Bench:
        """Disconnect, and connect another transport with the same topology."""
        await bench.transport.disconnect()
        if restart:
            await self.restart_broker()
        return await self.open(topology=bench.topology, short_lease=short_lease)

    async def nothing_is_left(self, bench: Bench) -> None:
        """Check that nothing is delivered from the first queue, even after a reconnect."""
        again = await self.reopen(bench)
        await again.nothing_comes(await again.subscribe())


async def ability(
    transport: object,
    protocol: type[T],
    declared: bool,
    *calls: Callable[[T], Awaitable[object]],
) -> T | None:
    """The transport, if it declares an ability; otherwise checks that it refuses ``calls`` and
    returns None.

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
