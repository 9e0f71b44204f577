"""``RabbitMQTransport``: the transport protocol on two AMQP connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Unpack

from matador.errors import MatadorError, NotConnectedError
from matador.model.capabilities import Capabilities
from matador.model.message import (
    ConnectionState,
    Delivery,
    Finding,
    Message,
    QueueDepth,
    Receipt,
    Release,
    Retry,
    Settlement,
    StoredMessage,
    TopologyNote,
    UnknownDepth,
)
from matador.model.topology import Topology
from matador.transports.clock import Clock, SystemClock
from matador.transports.kit.options import read_address, read_options
from matador.transports.kit.properties import ALL_PROPERTIES
from matador.transports.kit.replies import ReplySubscription
from matador.transports.kit.transport import BaseTransport
from matador.transports.rabbitmq import browse, delays
from matador.transports.rabbitmq.connection import AmqpConnection
from matador.transports.rabbitmq.declare import AppliedTopologies, declare
from matador.transports.rabbitmq.options import RabbitMQAddress, RabbitMQOptions
from matador.transports.rabbitmq.outgoing import OutgoingMessages
from matador.transports.rabbitmq.publisher import DIRECT_REPLY, UnroutableError
from matador.transports.rabbitmq.sender import Sender
from matador.transports.rabbitmq.session import AmqpSession
from matador.transports.rabbitmq.settle import settle
from matador.transports.rabbitmq.subscription import RabbitMQSubscription
from matador.transports.rabbitmq.topology import plan_for
from matador.transports.rabbitmq.wire import IncomingProperties
from matador.transports.supervisor import ConnectionSupervisor

log = logging.getLogger("matador.rabbitmq")


class RabbitMQTransport(BaseTransport):
    """RabbitMQ over AMQP 0-9-1: quorum queues, confirms, delays without a plugin.

    Uses the wire format of services in other languages. Queues of an applied topology are reached
    through its exchange. All other queues are reached directly by their name, but their messages
    cannot be delayed. A released delivery goes back as a copy at the end of its queue, so that the
    broker does not count it as a delivery.

    Args:
        url: ``amqp://user:password@host:5672/vhost``, ``amqps://`` with TLS, several hosts
            separated by commas, or a ``RabbitMQAddress``.
        clock: where the time on messages comes from.
        options: those of ``RabbitMQAddress``, in the URL or as keywords.

    Raises:
        ConfigurationError: the address is malformed, or has an unknown option.

    Example:
        >>> transport = RabbitMQTransport("amqp://app:secret@rabbit-1,rabbit-2/shop?heartbeat=10")
        >>> transport
        RabbitMQTransport('amqp://rabbit-1:5672,rabbit-2:5672/shop', disconnected)
    """

    sends_at_once = 64
    send_size = 8

    def __init__(
        self,
        url: str | RabbitMQAddress,
        *,
        clock: Clock | None = None,
        **options: Unpack[RabbitMQOptions],
    ) -> None:
        if isinstance(url, str):
            address = read_address(RabbitMQAddress, url, options)
        else:
            address = replace(url, **read_options(RabbitMQAddress, given=options))
        super().__init__(address.name)
        self._address = address
        self._outgoing = OutgoingMessages(address, clock or SystemClock())
        self._topologies = AppliedTopologies(address, self._outgoing)
        self._sender = Sender(self._outgoing, self._topologies)
        self._subscriptions: set[RabbitMQSubscription] = set()
        self._replies: ReplySubscription | None = None
        self._wants_replies = False
        self._sessions: list[AmqpSession] = []  # the current one, and lost ones being closed
        self._supervisor = ConnectionSupervisor(
            self._open_session,
            AmqpSession.wait_lost,
            self._restore,
            backoff=address.backoff,
            on_state=self._change_state,
        )

    @classmethod
    def from_url(cls, url: str, **options: Unpack[RabbitMQOptions]) -> RabbitMQTransport:
        """The same as ``RabbitMQTransport(url, ...)``."""
        return cls(url, **options)

    def __repr__(self) -> str:
        return f"RabbitMQTransport({str(self._address)!r}, {self.state.status})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            delivery_modes=frozenset({"at-least-once", "at-most-once"}),
            delays=True,
            dead_letters="native",
            attempt_tracking=True,
            concurrency="prefetch",
            ordering="queue",
            priorities=True,
            browse=True,
            purge=True,
            depth=True,
            properties=ALL_PROPERTIES,
            routing=True,
            durable=True,
            docket_in_headers=True,
            max_message_size=self._address.max_message_size,
            max_delay=delays.MAX_DELAY,
        )

    # -- connection -------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Try every host once."""
        await self._supervisor.start()

    async def _close(self) -> None:
        """Disconnect. The broker requeues and counts unsettled deliveries."""
        await asyncio.gather(*(one.close() for one in list(self._subscriptions)))
        if self._replies is not None:
            await self._replies.close()
        session = self._session_if_any()
        if session is not None:
            await session.publisher.drain()
        await self._supervisor.stop()
        await asyncio.gather(self._sender.close(), *(one.close() for one in self._sessions))
        self._sessions.clear()
        self._topologies.forget_server()

    def _session_if_any(self) -> AmqpSession | None:
        try:
            return self._supervisor.connection
        except NotConnectedError:
            return None

    async def _open_session(self) -> AmqpSession:
        session = await AmqpSession.open(self._address)
        self._sessions = [one for one in self._sessions if not one.is_closed] + [session]
        self._outgoing.frame_max = session.publishing.frame_max
        return session

    async def _restore(self, session: AmqpSession) -> None:
        """Restore everything on a new connection, first what the rest depends on."""
        try:
            await self._topologies.restore(session)
            if self._wants_replies:
                await session.publisher.receive_replies(self._reply_arrived)
            for subscription in list(self._subscriptions):
                await subscription.restore(session.consuming)
        except BaseException:
            await session.close()
            raise

    def _consuming(self) -> AmqpConnection:
        return self._supervisor.connection.consuming

    def _change_state(self, state: ConnectionState) -> None:
        error: NotConnectedError | None = None
        if state.status == "failed":
            error = NotConnectedError(f"{self._address}: gave up after {state.attempt} attempts")
            error.__cause__ = state.error
        if state.status in ("failed", "connected"):
            for subscription in self._subscriptions:
                subscription.give_up(error)
        super()._change_state(state)

    # -- topology ---------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """Declare a topology. Queues that exist with other arguments are used as they are."""
        return await self._topologies.apply(self._supervisor.connection, topology)

    async def check_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        plan = plan_for(topology, due_exchange=None, plugin=False)
        return (await declare(self._supervisor.connection, plan, only_look=True)).notes

    async def examine(self) -> Sequence[Finding]:
        return await self._supervisor.connection.examine()

    # -- sending ----------------------------------------------------------------------------------

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """Send messages.

        Outcomes: ``QueueNotFoundError`` (no queue accepts the message), ``SendRefusedError`` (the
        broker refuses it), ``StorageFullError`` (the broker blocks publishers),
        ``SendTimeoutError`` and ``SendUnconfirmedError`` (it may be stored), ``UnstorableError``
        (it can never be stored).
        """
        return await self._sender.send(self._supervisor.connection, messages)

    async def publish(
        self, exchange: str, messages: Sequence[Message]
    ) -> Sequence[int | MatadorError]:
        """Publish. RabbitMQ does not say in how many queues a message is stored: 0 or 1."""
        session = self._supervisor.connection
        outcomes = await self._sender.send_routed(session, exchange, messages)
        return [
            0 if isinstance(one, UnroutableError) else 1 if one is None else one for one in outcomes
        ]

    async def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        await self._topologies.unbind(self._supervisor.connection, exchange, queue, pattern)

    async def delete_queue(self, queue: str) -> None:
        await self._topologies.delete_queue(self._supervisor.connection, queue)

    async def reply_address(self) -> str:
        """Return a name that RabbitMQ replaces in each message with the address to reply to."""
        await self._supervisor.connection.publisher.receive_replies(self._reply_arrived)
        self._wants_replies = True
        return DIRECT_REPLY

    async def replies(self) -> ReplySubscription:
        """Receive replies by RabbitMQ's direct reply-to, on the channel that publishes."""
        address = await self.reply_address()
        if self._replies is None or not self._replies.active:
            self._replies = ReplySubscription(address, lambda _: None)
        return self._replies

    def _reply_arrived(self, properties: bytes, body: bytes) -> None:
        if self._replies is not None and self._replies.active:
            try:
                found = IncomingProperties(properties, redelivered=False)
            except Exception:  # an exception here would end the connection
                log.exception("the properties of a reply cannot be read; it is dropped")
                return
            receipt = Receipt(DIRECT_REPLY, None)
            self._replies.put(
                Delivery(
                    body, found.headers, receipt, found.problem, found.properties, found.id or ""
                )
            )

    # -- receiving --------------------------------------------------------------------------------

    async def subscribe(self, queue: str, *, prefetch: int) -> RabbitMQSubscription:
        """Subscribe. The broker pushes up to ``prefetch`` messages."""
        connection = self._consuming()
        subscription = RabbitMQSubscription(
            queue,
            max(1, prefetch),
            connection=self._consuming,
            redeclare=self._redeclare,
            give_back=self.settle,
            count=self._have_counted,
            is_internal=self._outgoing.is_internal,
            closed=self._subscriptions.discard,
        )
        await subscription.start(connection)
        self._subscriptions.add(subscription)
        return subscription

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """Settle deliveries. A successor is confirmed before its original is acknowledged."""
        session = self._supervisor.connection
        delayed = [
            one.message for one in settlements if type(one) is Retry and one.message.delay > 0
        ]
        if delayed:
            await self._outgoing.create_hops(session, delayed)
        return await settle(
            session,
            self._outgoing,
            settlements,
            lambda publications: self._sender.publish(session, publications, delayed),
        )

    async def _redeclare(self, queue: str) -> bool:
        return await self._topologies.redeclare(self._supervisor.connection, queue)

    async def _have_counted(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Replace deliveries by copies with a delivery count; return those without a copy."""
        session = self._session_if_any()
        if session is None or session.publishing.blocked is not None:
            return deliveries
        releases = [Release(delivery.receipt) for delivery in deliveries]
        errors = await settle(session, self._outgoing, releases, requeue=False)
        return [one for one, error in zip(deliveries, errors, strict=True) if error is not None]

    # -- optional abilities -----------------------------------------------------------------------

    browses_by_taking = True

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Browse. Only messages that are ready can be seen."""
        session = self._supervisor.connection
        async for stored in browse.browse(session, self._outgoing, queue, after, limit):
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        return await browse.take(self._supervisor.connection, self._outgoing, queue, positions)

    async def purge(self, queue: str) -> int:
        """Purge. Messages that the delayed-message plugin delays stay: only the plugin has them."""
        session = self._supervisor.connection
        async with session.channel() as channel:
            purged = await channel.purge(queue)
            if not browse.keeps_dead_letters(queue):
                purged += await browse.purge_delayed(session, self._outgoing, queue)
                purged += await channel.purge(queue)  # messages that became due meanwhile
        return purged

    async def depth(self, queue: str) -> QueueDepth:
        """Measure. How many messages are delayed is unknown. How many are in flight is only known
        with the management plugin."""
        session = self._supervisor.connection
        async with session.channel() as channel:
            ready, consumers = await channel.count(queue)
        held = await session.management.unacknowledged(queue)
        unknown: set[UnknownDepth] = {"delayed"} if held is not None else {"delayed", "in_flight"}
        return QueueDepth(ready, 0, held or 0, frozenset(unknown), consumers)
