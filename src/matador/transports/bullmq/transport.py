"""The BullMQ transport: messages are jobs, dead letters are failed jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from matador.errors import MatadorError, TransportError
from matador.model.capabilities import Capabilities
from matador.model.message import (
    ConnectionState,
    Delivery,
    Finding,
    Message,
    QueueDepth,
    Receipt,
    Release,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.options import Seconds, seconds
from matador.model.topology import Topology
from matador.transports.base import TransportObserver, ignored_arguments
from matador.transports.bullmq import looking, sending
from matador.transports.bullmq.link import Link, Session
from matador.transports.bullmq.names import bull_name
from matador.transports.bullmq.queues import Queues
from matador.transports.bullmq.settling import Settling, renew
from matador.transports.bullmq.stalled import StalledCheck
from matador.transports.bullmq.subscription import BullMQSubscription
from matador.transports.bullmq.taking import Failed, Waiting
from matador.transports.bullmq.url import parse_url
from matador.transports.redis_client.doctor import examine

_DEFAULTS = {"lease": 30.0, "timeout": 10.0, "heartbeat": 5.0}
_LONGEST_BLOCK = 2.0  # a sign to wake up can be lost with the worker that got it


class BullMQTransport:
    """Messages as BullMQ jobs, through the official package and its scripts.

    A queue is the BullMQ queue of the same name, and a message a job that workers and dashboards
    in other languages see; how it is written is told in ``wire``. The dead letters of a queue are
    its failed jobs: those that other workers have failed count as ``undeliverable``.

    Args:
        url: ``bullmq://user:password@host:6379/0?prefix=bull&lease=30``.
        lease: seconds for which a job belongs to its receiver unless renewed (BullMQ's
            ``lockDuration``).
        timeout: seconds an answer of the server may take.
        heartbeat: seconds between questions whether the server is still there.
        prefix: what all keys begin with, as BullMQ's own option.
        name: see ``Transport``.

    Raises:
        ConfigurationError: the address is malformed, or has an option nobody knows.

    Example:
        >>> BullMQTransport("bullmq://localhost", lease=60).capabilities.lease
        60.0
    """

    def __init__(
        self,
        url: str,
        *,
        lease: Seconds | None = None,
        timeout: Seconds | None = None,
        heartbeat: Seconds | None = None,
        prefix: str | None = None,
        name: str = "bullmq",
    ) -> None:
        given = parse_url(url)
        options = {**_DEFAULTS, **given.seconds}

        def chosen(option: str, value: Seconds | None) -> float:
            return seconds(options[option] if value is None else value, option, minimum=0.1)

        self._name = name
        self._lease = chosen("lease", lease)
        wait = chosen("timeout", timeout)
        self._block = min(_LONGEST_BLOCK, wait / 2)
        self._observers: list[TransportObserver] = []
        self._connecting = asyncio.Lock()
        self._link = Link(
            given,
            prefix=prefix or given.prefix,
            name=f"matador-{name}",
            timeout=wait,
            heartbeat=chosen("heartbeat", heartbeat),
            restore=self._restore,
            on_state=self._tell,
        )
        self._queues = Queues(self._link)
        self._subscriptions: set[BullMQSubscription] = set()
        self._checks: dict[str, StalledCheck] = {}
        self._capabilities = Capabilities(
            delivery_modes=frozenset({"at-least-once", "at-most-once"}),
            delays=True,
            dead_letters="native",
            attempt_tracking=True,
            concurrency="worker",
            ordering="queue",
            priorities=True,
            browse=True,
            purge=True,
            depth=True,
            durable=True,
            lease=self._lease,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._link.where!r}, {self.state.status})"

    @property
    def name(self) -> str:
        """See ``Transport``."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """See ``Transport``."""
        return self._capabilities

    @property
    def state(self) -> ConnectionState:
        """See ``Transport``."""
        return self._link.state

    def observe(self, observer: TransportObserver) -> None:
        """See ``Transport``."""
        self._observers.append(observer)

    def _tell(self, state: ConnectionState) -> None:
        for observer in self._observers:
            observer.connection_changed(self._name, state)

    async def connect(self) -> None:
        """See ``Transport``."""
        async with self._connecting:
            await self._link.start()

    async def disconnect(self) -> None:
        """See ``Transport``. What is still held goes to others when its lease has passed."""
        async with self._connecting:
            for subscription in list(self._subscriptions):
                await subscription.close()
            checks, self._checks = list(self._checks.values()), {}
            for check in checks:
                await check.close()
            await self._link.stop()

    async def _restore(self, session: Session) -> None:
        await self._queues.restore(session)

    # -- queues ------------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``. ``exact`` queues are made as well: a BullMQ queue is but a name."""
        session = await self._link.session()
        await self._queues.declare(session, topology)
        return [*ignored_arguments(topology), *_notes(topology)]

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``Transport``."""
        session = await self._link.session()
        return await sending.store(self._link, session, self._queues, messages)

    async def subscribe(self, queue: str, *, prefetch: int) -> BullMQSubscription:
        """See ``Transport``. ``prefetch`` does not matter: nothing is held in advance."""
        session = await self._link.session()
        place = await self._queues.find(session, queue)
        if place.kind is not None:
            source = Failed(self._link, queue, place, lease=self._lease)
        else:
            source = Waiting(self._link, queue, place, lease=self._lease, block=self._block)
            if queue not in self._checks:
                self._checks[queue] = StalledCheck(self._link, queue, self._lease)
        subscription = BullMQSubscription(
            self._link, queue, source, give_back=self._give_back, closed=self._closed
        )
        self._subscriptions.add(subscription)
        return subscription

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        with contextlib.suppress(TransportError):  # then its lease runs out
            await self.settle([Release(delivery.receipt) for delivery in deliveries])

    def _closed(self, subscription: BullMQSubscription) -> None:
        self._subscriptions.discard(subscription)

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``Transport``. Each is atomic."""
        session = await self._link.session()
        return await Settling(self._link, session, self._queues).settle(settlements)

    # -- optional abilities ------------------------------------------------------------------------

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        """See ``Leasing``."""
        return await renew(self._link, await self._link.session(), receipts, self._lease)

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """See ``Browsing``. Within a millisecond, and when the job of ``after`` is gone, a
        message of that millisecond may be seen again in a later call."""
        session = await self._link.session()
        place = await self._queues.find(session, queue)
        async for stored in looking.browse(self._link, session, queue, place, after, limit):
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery]:
        """See ``Browsing``."""
        session = await self._link.session()
        place = await self._queues.find(session, queue)
        return await looking.take(self._link, session, queue, place, positions, self._lease)

    async def purge(self, queue: str) -> int:
        """See ``Purging``."""
        session = await self._link.session()
        return await looking.purge(self._link, session, await self._queues.find(session, queue))

    async def depth(self, queue: str) -> QueueDepth:
        """See ``Measuring``."""
        session = await self._link.session()
        return await looking.depth(self._link, session, await self._queues.find(session, queue))

    async def examine(self) -> Sequence[Finding]:
        """See ``Examining``: version, eviction policy, persistence."""
        session = await self._link.session()

        async def call(*command: str) -> Any:
            return await self._link.ask(session, *command)

        return await examine(call, primary="name the primary in the URL")


def _notes(topology: Topology) -> Iterator[TopologyNote]:
    for queue in topology.queues:
        name = topology.full_name(queue.name)
        if bull_name(name) != name:
            text = f"BullMQ allows no colon in a name: other workers find it as {bull_name(name)!r}"
            yield TopologyNote(name, text)
        if queue.retention is not None:
            yield TopologyNote(name, "BullMQ keeps nothing that is finished: no retention")
    for _, kind, name in topology.dead_letter_names():
        letters = topology.dead_letters[kind]
        if letters.max_length is not None or letters.ttl is not None:
            text = (
                "failed jobs of all kinds are in one set of BullMQ's: neither max_length nor ttl "
                "is kept for one kind, so they stay until they are purged or redriven"
            )
            yield TopologyNote(name, text)
