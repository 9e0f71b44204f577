"""``RabbitMQTransport``: the transport protocol on two AMQP connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from matador.errors import (
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    TransportError,
    UnsupportedError,
)
from matador.model.backoff import ReconnectBackoff
from matador.model.capabilities import Capabilities
from matador.model.message import (
    ConnectionState,
    Delivery,
    Finding,
    Message,
    QueueDepth,
    Release,
    Retry,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.topology import Topology
from matador.transports.base import TransportObserver
from matador.transports.clock import Clock, SystemClock
from matador.transports.rabbitmq import delays, looking
from matador.transports.rabbitmq.client import Connection
from matador.transports.rabbitmq.declaring import (
    declare,
    declare_at_once,
    has_delayed_exchange,
)
from matador.transports.rabbitmq.examining import examine
from matador.transports.rabbitmq.plan import delayed_exchange, plan_for
from matador.transports.rabbitmq.publishing import Parcel
from matador.transports.rabbitmq.routing import Routing
from matador.transports.rabbitmq.session import Session
from matador.transports.rabbitmq.settling import count, settle
from matador.transports.rabbitmq.subscription import RabbitMQSubscription
from matador.transports.rabbitmq.url import Address, checked, parse_url
from matador.transports.supervisor import ConnectionSupervisor

# Back within seconds of the broker, however long it was away, and not all at once.
_BACKOFF = ReconnectBackoff(base_delay=0.25, max_delay=3.0, jitter=0.5)

_SENDS, _SEND_SIZE = 64, 8
_TELLING = 0.3  # seconds in which consumers hear that their queue is gone
_REST = 1.0  # seconds until a queue that could not be made again is looked after once more

log = logging.getLogger("matador.rabbitmq")


class RabbitMQTransport:
    """RabbitMQ over AMQP 0-9-1: quorum queues, confirms, delays without a plugin.

    Speaks the format of services in other languages. ``apply_topology`` tells it which exchange
    belongs to a queue; queues it was not told of are reached directly by their name, but nothing
    can be delayed for them. A released delivery goes back as a copy at the end of its queue, so
    that the broker does not count it as a delivery.

    Args:
        url: ``amqp://user:password@host:5672/vhost``, ``amqps://`` with TLS, several hosts with
            commas between them, or an ``Address``. Options: ``heartbeat``, ``connect_timeout``,
            ``send_timeout``, ``window``, ``max_message_size``, ``delays``, ``delay_prefix``,
            ``management`` and, for TLS, ``cafile``, ``certfile``, ``keyfile``, ``verify``,
            ``server_name``.
        backoff: the waits between attempts to connect again.
        clock: where the time stamped on messages comes from.
        name: for logs and metrics.

    Example:
        >>> transport = RabbitMQTransport("amqp://app:secret@rabbit-1,rabbit-2/shop?heartbeat=10")
        >>> transport
        RabbitMQTransport('amqp://rabbit-1:5672,rabbit-2:5672/shop', disconnected)
    """

    def __init__(
        self,
        url: str | Address,
        *,
        backoff: ReconnectBackoff | None = None,
        clock: Clock | None = None,
        name: str = "rabbitmq",
    ) -> None:
        self._address = parse_url(url) if isinstance(url, str) else checked(url)
        self._name = name
        self._clock: Clock = clock or SystemClock()
        self._backoff = backoff or _BACKOFF
        self._routing = Routing(self._address, self._clock)
        self._topologies: dict[str, Topology] = {}
        self._subscriptions: set[RabbitMQSubscription] = set()
        self._observers: list[TransportObserver] = []
        self._plugin: bool | None = None
        self._sessions: list[Session] = []  # the present one, and lost ones that are being closed
        self._changing = asyncio.Lock()
        self._making = asyncio.Lock()
        self._applied: dict[str, float] = {}  # when each topology was applied
        self._in_vain: dict[str, float] = {}  # when a queue was missing although it was
        self._supervisor = ConnectionSupervisor(
            self._open,
            Session.wait_lost,
            self._restore,
            backoff=self._backoff,
            on_state=self._state_changed,
        )

    @classmethod
    def from_url(cls, url: str, *, name: str = "rabbitmq") -> RabbitMQTransport:
        """A transport from ``amqp://user:password@host:5672/vhost`` and its options.

        Raises:
            ConfigurationError: the address is malformed, or has an option nobody knows.
        """
        return cls(url, name=name)

    def __repr__(self) -> str:
        return f"RabbitMQTransport({str(self._address)!r}, {self.state.status})"

    @property
    def name(self) -> str:
        """See ``Transport``."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """See ``Transport``."""
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
            durable=True,
            docket_in_headers=True,
            max_message_size=self._address.max_message_size,
            max_delay=delays.MAX_DELAY,
        )

    # -- connection -------------------------------------------------------------------------------

    @property
    def state(self) -> ConnectionState:
        """See ``Transport``."""
        return self._supervisor.state

    def observe(self, observer: TransportObserver) -> None:
        """See ``Transport``."""
        self._observers.append(observer)

    async def connect(self) -> None:
        """See ``Transport``. One attempt at every host."""
        async with self._changing:
            await self._supervisor.start()

    async def disconnect(self) -> None:
        """See ``Transport``. Deliveries that are not settled go back, counted by the broker."""
        async with self._changing:
            if self.state.status == "disconnected":
                return
            await asyncio.gather(*(one.close() for one in list(self._subscriptions)))
            session = self._session_if_any()
            if session is not None:
                await session.publisher.drain()
            await self._supervisor.stop()
            await asyncio.gather(*(one.close() for one in self._sessions))
            self._sessions.clear()
            self._plugin = None

    def _session_if_any(self) -> Session | None:
        try:
            return self._supervisor.connection
        except NotConnectedError:
            return None

    async def _open(self) -> Session:
        session = await Session.open(self._address)
        self._sessions = [one for one in self._sessions if not one.is_closed] + [session]
        self._routing.frame_max = session.publishing.frame_max
        return session

    async def _restore(self, session: Session) -> None:
        """Bring everything back on a new connection, in the order in which it depends."""
        try:
            for topology in list(self._topologies.values()):
                await self._apply(session, topology)
            self._restoring = session
            for subscription in list(self._subscriptions):
                await subscription.restore()
        except BaseException:
            await session.close()
            raise
        finally:
            self._restoring = None

    _restoring: Session | None = None

    def _consuming(self) -> Connection:
        session = self._restoring or self._supervisor.connection
        return session.consuming

    def _state_changed(self, state: ConnectionState) -> None:
        if state.status == "failed":
            error = NotConnectedError(f"{self._address} is given up after {state.attempt} attempts")
            error.__cause__ = state.error
            for subscription in self._subscriptions:
                subscription.give_up(error)
        elif state.status == "connected":
            for subscription in self._subscriptions:
                subscription.go_on()
        for observer in self._observers:
            observer.connection_changed(self._name, state)

    # -- topology ---------------------------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``. Queues that are there with other arguments are used as they are."""
        session = self._supervisor.connection
        notes = await self._apply(session, topology)
        self._topologies[topology.namespace] = topology
        return notes

    async def check_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Checking``."""
        plan = plan_for(topology, due_exchange=None, plugin=False)
        return await declare(self._supervisor.connection, plan, only_look=True)

    async def examine(self) -> Sequence[Finding]:
        """See ``Examining``: the server, alarms, and what came too late for its queue."""
        return await examine(self._supervisor.connection)

    async def _apply(self, session: Session, topology: Topology) -> list[TopologyNote]:
        plugin = await self._has_plugin(session, topology.namespace)
        notes: list[TopologyNote] = []
        prefix = self._address.delay_prefix
        missing: MatadorError | None = None
        try:
            await declare_at_once(session, delays.objects(prefix))
        except NotConnectedError:
            raise
        except TransportError as error:
            missing = error
            if not plugin:
                notes.append(TopologyNote(None, f"nothing can be delayed: {error}"))
        due = None if missing else delays.due_exchange(prefix)
        plan = plan_for(topology, due_exchange=due, plugin=plugin)
        notes += await declare(session, plan)
        for queue in topology.queues:
            if queue.retention is not None:
                text = "keeps nothing that is finished: RabbitMQ has no retention"
                notes.append(TopologyNote(topology.full_name(queue.name), text))
        self._routing.learn(topology, plugin=plugin, delays_missing=missing)
        self._applied[topology.namespace] = asyncio.get_running_loop().time()
        return notes

    async def _has_plugin(self, session: Session, namespace: str) -> bool:
        if self._address.delays == "levels" or self._plugin is False:
            return False
        name = delayed_exchange(namespace)
        address = replace(self._address, hosts=self._address.hosts[:1])
        self._plugin = await has_delayed_exchange(address, session, name)
        if self._address.delays == "plugin" and not self._plugin:
            raise UnsupportedError(
                "the server has no delayed-message plugin; leave out delays=plugin"
            )
        return self._plugin

    async def _redeclare(self, queue: str) -> bool:
        """Make a queue again if it belongs to a topology that was applied here."""
        topology = self._owner(queue)
        if topology is None:
            return False
        await self._apply(self._supervisor.connection, topology)
        return True

    def _owner(self, queue: str) -> Topology | None:
        """The topology that a queue belongs to, or whose dead letters it has."""
        for topology in self._topologies.values():
            names = [topology.full_name(one.name) for one in topology.queues]
            names += [name for _, _, name in topology.dead_letter_names()]
            if queue in names:
                return topology
        return None

    # -- sending and receiving --------------------------------------------------------------------

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``Transport``.

        Outcomes: ``QueueNotFoundError`` (no queue takes it), ``SendRefusedError`` (the broker does
        not), ``StorageFullError`` (it blocks publishers), ``SendTimeoutError`` and
        ``SendUnconfirmedError`` (it may be stored), ``UnstorableError`` (it never can be).
        """
        session = self._supervisor.connection
        delayed = [message for message in messages if message.delay > 0]
        if delayed:
            await self._make_hops(session, delayed)
        parcel = self._routing.parcel
        parcels: list[Parcel] = []
        problems: dict[int, MatadorError] = {}
        for place, message in enumerate(messages):
            try:
                parcels.append(parcel(message))
            except MatadorError as error:
                problems[place] = error
        outcomes = await self._publish(session, parcels, delayed)
        if not problems:
            return outcomes
        rest = iter(outcomes)
        return [
            problems[place] if place in problems else next(rest) for place in range(len(messages))
        ]

    async def _publish(
        self, session: Session, parcels: Sequence[Parcel], delayed: Sequence[Message] = ()
    ) -> list[MatadorError | None]:
        """Publish; what somebody has deleted is made again if it is ours. Never raises."""
        started = asyncio.get_running_loop().time()
        outcomes = await session.publisher.publish(parcels)
        if not any(outcomes):
            return outcomes
        gone = [place for place, one in enumerate(outcomes) if isinstance(one, QueueNotFoundError)]
        if not gone:
            return outcomes
        queues = {parcels[place].key for place in gone}
        if await self._make_again(session, queues, delayed, started):
            again = await session.publisher.publish([parcels[place] for place in gone])
            for place, error in zip(gone, again, strict=True):
                outcomes[place] = error
                if isinstance(error, QueueNotFoundError):
                    self._in_vain[parcels[place].key] = asyncio.get_running_loop().time()
        return outcomes

    async def _make_again(
        self, session: Session, queues: set[str], delayed: Sequence[Message], since: float
    ) -> bool:
        """Make what these queues need, unless that was done ``since``; False: it is of no use."""
        now = asyncio.get_running_loop().time()
        worth = [queue for queue in queues if self._in_vain.get(queue, -_REST) + _REST < now]
        owners = {one.namespace: one for queue in worth if (one := self._owner(queue)) is not None}
        if not owners:
            return False
        try:
            async with self._making:
                for namespace, topology in owners.items():
                    if self._applied.get(namespace, -1.0) < since:
                        log.warning("%s: something was deleted, and is made again", namespace)
                        # RabbitMQ forgets to tell consumers of a quorum queue that is made again
                        # at once: they would wait for ever on what is no more.
                        await asyncio.sleep(_TELLING)
                        await self._apply(session, topology)
                await self._make_hops(session, delayed)
        except MatadorError as error:
            log.warning("what was deleted could not be made again: %s", error)
            return False
        return True

    async def _make_hops(self, session: Session, delayed: Sequence[Message]) -> None:
        """Make the queues of delays that were not used before.

        Raises:
            NotConnectedError: the connection is lost.
        """
        hops = self._routing.unmade(delayed)
        if not hops:
            return
        prefix = self._address.delay_prefix
        try:
            await declare_at_once(session, delays.hop_objects(prefix, hops))
        except NotConnectedError:
            raise
        except TransportError as error:
            self._routing.refused.update((hop, error) for hop in hops)
        else:
            self._routing.made.update(hops)

    async def subscribe(self, queue: str, *, prefetch: int) -> RabbitMQSubscription:
        """See ``Transport``. The broker pushes up to ``prefetch`` messages."""
        self._consuming()
        subscription = RabbitMQSubscription(
            queue,
            max(1, prefetch),
            connection=self._consuming,
            redeclare=self._redeclare,
            give_back=self._give_back,
            count=self._have_counted,
            closed=self._subscriptions.discard,
        )
        await subscription.start()
        self._subscriptions.add(subscription)
        return subscription

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``Transport``. A successor is confirmed before its original is acknowledged."""
        session = self._supervisor.connection
        delayed = [
            one.message for one in settlements if type(one) is Retry and one.message.delay > 0
        ]
        if delayed:
            await self._make_hops(session, delayed)
        return await settle(
            settlements,
            lambda parcels: self._publish(session, parcels, delayed),
            self._routing.settlement_parcel,
            blocked=session.publisher.blocked is not None,
        )

    async def _have_counted(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        session = self._session_if_any()
        if session is None or session.publisher.blocked is not None:
            return deliveries
        return await count(deliveries, session.publisher.publish, self._routing.copy)

    async def _give_back(self, releases: Sequence[Release]) -> None:
        await self.settle(releases)

    @property
    def sends_at_once(self) -> int:
        """See ``Pipelining``."""
        return _SENDS

    @property
    def send_size(self) -> int:
        """See ``Pipelining``."""
        return _SEND_SIZE

    # -- optional abilities -----------------------------------------------------------------------

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """See ``Browsing``, and ``looking`` for what AMQP makes of it: only what is ready."""
        session = self._supervisor.connection
        async for stored in looking.browse(session, self._routing, queue, after, limit):
            yield stored

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery]:
        """See ``Browsing``."""
        session = self._supervisor.connection
        return await looking.take(session, self._routing, queue, positions)

    async def purge(self, queue: str) -> int:
        """See ``Purging``. What is delayed stays: it is not in the queue yet."""
        return await looking.purge(self._supervisor.connection, queue)

    async def depth(self, queue: str) -> QueueDepth:
        """See ``Measuring``. What is delayed is not known, nor, without the management plugin,
        what is held."""
        return await looking.depth(self._supervisor.connection, queue)
