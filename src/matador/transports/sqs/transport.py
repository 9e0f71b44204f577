"""The SQS transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Unpack

from matador.errors import MatadorError
from matador.model.capabilities import Capabilities
from matador.model.message import (
    Delivery,
    Finding,
    Message,
    QueueDepth,
    Receipt,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.topology import DeadLetters, Topology, WorkQueue
from matador.transports.kit.notes import ignored_arguments, ignored_exchanges
from matador.transports.kit.properties import ALL_PROPERTIES
from matador.transports.kit.transport import BaseTransport
from matador.transports.sqs.browse import DeadLetterShelf
from matador.transports.sqs.client import SqsClient
from matador.transports.sqs.deliveries import Released
from matador.transports.sqs.doctor import check
from matador.transports.sqs.options import SqsOptions, read_sqs_address
from matador.transports.sqs.queues import SqsQueues
from matador.transports.sqs.settle import SqsSettler
from matador.transports.sqs.subscription import SqsSubscription
from matador.transports.sqs.wire import LARGEST

_LONGEST_IN_FIFO = 12 * 86_400.0  # seconds; SQS deletes what is older than 14 days


class SqsTransport(BaseTransport):
    """Messages in Amazon SQS, or in a server with the same API.

    A lease is a visibility timeout. SQS itself delays messages for up to 15 minutes. A longer delay
    is made of several: a worker that receives the message before it is due stores it again for the
    remaining time, so delays of more than 15 minutes need a running worker to make progress. Names
    that SQS does not allow are changed (``shop.events`` is ``shop__events``).

    Args:
        url: ``sqs://eu-west-1?fifo=true``; ``sqs://`` for the region of the AWS configuration.
            Credentials come from the usual AWS chain and are refused here.
        name: for logs and metrics.
        region: the AWS region.
        endpoint: the URL of another server with the SQS API (``http://localhost:9324``).
        fifo: FIFO queues: messages with one ordering key are handled one at a time and in order.
        lease: whole seconds for which a delivery belongs to its receiver unless renewed.
        wait: seconds of a long poll, at most 20. Closing a subscription takes up to that long.
        timeout: seconds for connecting, and for an answer.
        create: create the missing queues of a topology.
        max_receives: the number of receives after which SQS itself moves a message to the
            undeliverable dead letters (its redrive policy), for queues that the transport creates;
            0: never.

    Every option can be given in the address (``?lease=60``) or as a keyword, which wins.

    Raises:
        ConfigurationError: the address is malformed, or an option is invalid.

    Example:
        >>> SqsTransport("sqs://eu-west-1", lease=60).capabilities.lease
        60.0
    """

    def __init__(self, url: str, **options: Unpack[SqsOptions]) -> None:
        address = read_sqs_address(url, options)
        super().__init__(address.name)
        self._url, self._given = url, options
        self._address = address
        self._client = SqsClient(address, self._change_state)
        self._queues = SqsQueues(self._client, address)
        self._released = Released()
        self._settler = SqsSettler(self._queues, self._released, address.lease)
        self._shelf = DeadLetterShelf(self._queues, self._settler, address.lease)
        self._subscriptions: set[SqsSubscription] = set()
        self._capabilities = Capabilities(
            delivery_modes=frozenset({"at-least-once", "at-most-once"}),
            delays=True,
            dead_letters="manual",
            attempt_tracking=True,
            concurrency="worker",
            ordering="partition" if address.fifo else "none",
            priorities=False,
            purge=True,
            depth=True,
            properties=ALL_PROPERTIES,
            lease=address.lease,
            max_message_size=LARGEST,
            max_delay=_LONGEST_IN_FIFO if address.fifo else None,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address.where!r}, {self.state.status})"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def _open(self) -> None:
        await self._client.start()

    async def _close(self) -> None:
        """Unsettled messages become visible to other receivers when their leases expire."""
        await asyncio.gather(*[one.close() for one in list(self._subscriptions)])
        if self._client.is_connected:
            await self._shelf.give_back()
        await self._queues.drain()
        await self._client.stop()

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """Also creates missing ``exact`` queues, unless ``create`` is off."""
        await self._client.require()
        notes = await self._queues.declare(topology)
        return [*ignored_arguments(topology), *ignored_exchanges(topology), *notes]

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        await self._client.require()
        return await self._settler.send(messages)

    async def subscribe(self, queue: str, *, prefetch: int) -> SqsSubscription:
        """See ``Transport``. ``prefetch`` is ignored: nothing is held in advance."""
        await self._client.require()
        found = await self._queues.find(queue)
        subscription = SqsSubscription(
            self._client,
            self._queues,
            found,
            self._settler,
            self._released,
            wait=int(self._address.wait),
            lease=int(self._address.lease),
            closed=self._subscriptions.discard,
        )
        self._subscriptions.add(subscription)
        return subscription

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        await self._client.require()
        return await self._settler.settle(settlements)

    # -- optional abilities ------------------------------------------------------------------------

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        """SQS ends a lease after 12 hours, whether renewed or not."""
        await self._client.require()
        return await self._settler.renew(receipts)

    def twin(self) -> SqsTransport:
        """SQS accepts a receipt handle over any connection."""
        return SqsTransport(self._url, **self._given)

    browses_dead_letters = True
    browses_by_taking = True

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Browses dead letters only. They are received, and hidden from other receivers until this
        process disconnects or their leases expire."""
        await self._client.require()
        async for stored in self._shelf.browse(queue, after, limit):
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        await self._client.require()
        return await self._shelf.take(queue, positions)

    async def purge(self, queue: str) -> int:
        """The number is approximate.

        The purge of SQS deletes messages in flight, too. So while there are any, ready messages are
        received and deleted instead, and delayed ones stay.
        """
        await self._client.require()
        found = await self._queues.find(queue)
        depth = await found.depth()
        if depth.in_flight:
            return await found.delete_ready(depth.ready)
        await found.purge()
        return depth.total

    async def depth(self, queue: str) -> QueueDepth:
        """The numbers are approximate. Delayed messages of a FIFO queue count as ready or in
        flight."""
        await self._client.require()
        return await (await self._queues.find(queue)).depth()

    def job_topology(self, queue: str) -> Topology:
        """The queue has its plain name, which workers in other languages use."""
        dead_letters = DeadLetters(unhandled=False)
        return Topology("jobs", queues=[WorkQueue(queue, exact=True)], dead_letters=dead_letters)

    async def examine(self) -> Sequence[Finding]:
        await self._client.require()
        return [Finding("server", f"{self._address.where} answers")]

    async def check_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """Checks redrive policies, retention periods and delays that interfere."""
        await self._client.require()
        return await check(self._queues, topology)
