"""``Matador``, the application, and ``SyncMatador``, its blocking form."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Self, Unpack

from matador.codec.base import Codec
from matador.errors import LifecycleError
from matador.events.config import (
    DEFAULT_MAX_MESSAGE_SIZE,
    AppConfig,
    AppOptions,
    UnsupportedDelays,
)
from matador.events.fanout import FanOut
from matador.events.fit import Concurrency, check_fit
from matador.events.sender import SendsEvents
from matador.events.way import EventReader, EventWay
from matador.model.capabilities import DeliveryMode
from matador.model.message import TopologyNote
from matador.model.options import Seconds
from matador.model.schema import Schema
from matador.model.sending import SendErrors
from matador.model.topology import Topology
from matador.policy.dedup import Deduplication
from matador.policy.retry import RetryPolicy
from matador.policy.validation import Malformed
from matador.runtime.activity import AppState
from matador.runtime.blocking import Blocking, blocking
from matador.runtime.checkpoints import CheckpointStore
from matador.runtime.dead_letters import DeadLetterOffice
from matador.runtime.deadline import Deadline
from matador.runtime.dedup import in_memory
from matador.runtime.hooks import Hooks, hook_objects
from matador.runtime.outbox import NO_BUFFER
from matador.runtime.service import Shutdown
from matador.runtime.worker import DEFAULT_CONCURRENCY
from matador.transports.base import Transport
from matador.transports.clock import Clock


class Matador(SendsEvents):
    """An application: it sends events and consumes queues over one transport.

    Use it in the event loop in which it was started; in another one, its methods raise
    ``WrongLoopError``. ``sync()`` serves code without an event loop, ``producer()`` another loop.
    An application can be started again after a shutdown.

    Args:
        transport: a URL such as ``sqlite:///shop.db``, or a transport object.
        schema: the events and their subscribers.
        topology: the queues; by default, one queue ``events`` in the namespace ``matador``.
        consume_from: names of the queues to consume; empty for an application that only sends.
        codec: encodes envelopes; JSON by default, on AMQP with the docket in headers.
        retry: the retry policy; by default ``StandardRetryPolicy`` with the delays of the
            topology. A subscriber may have its own.
        timeout: the time limit of a subscriber in seconds; None: no limit. The limit of its queue
            (``consumer_timeout``) or its own takes precedence.
        concurrency: how many messages of a queue are handled at once, unless the topology says so.
        delivery: ``at-least-once`` (default) or ``at-most-once``; a subscriber may override it.
        shutdown: the time limit of a graceful shutdown, as ``Shutdown`` or seconds.
        checkpoints: the store for the steps of resumable subscribers.
        hooks: a hook object, or several.
        malformed: what to do with messages that cannot be decoded.
        max_message_size: in bytes; larger messages are neither sent nor decoded.
        send_errors: ``raise`` (default): ``send`` raises ``SendFailedError`` if a message was not
            stored; ``report``: it returns a ``SendResult`` with ``errors``.
        unsupported_delays: what to do if the transport does not support a delay.
        deduplication: how duplicates are detected. None: not at all.
        connect_timeout: seconds for which to retry the first connection.
        clock: the source of times and ids; tests pass their own.

    Example:
        >>> app = Matador("sqlite:///shop.db", schema=schema, consume_from=["events"])
        >>> async with app:
        ...     await app.send(OrderPlaced(order_id="1", amount=5))
    """

    def __init__(
        self,
        transport: str | Transport,
        *,
        schema: Schema,
        topology: Topology | None = None,
        consume_from: Iterable[str] = (),
        codec: Codec | None = None,
        retry: RetryPolicy | None = None,
        timeout: Seconds | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        delivery: DeliveryMode = "at-least-once",
        shutdown: Shutdown | Seconds | None = None,
        checkpoints: CheckpointStore | None = None,
        hooks: Hooks | Sequence[Hooks] | None = None,
        malformed: Malformed = "dead-letter",
        max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE,
        unsupported_delays: UnsupportedDelays = "error",
        send_errors: SendErrors = "raise",
        deduplication: Deduplication | None = None,
        connect_timeout: Seconds = 0.0,
        clock: Clock | None = None,
    ) -> None:
        config = AppConfig.of(
            transport=transport,
            schema=schema,
            topology=topology,
            consume_from=consume_from,
            codec=codec,
            retry=retry,
            timeout=timeout,
            concurrency=concurrency,
            delivery=delivery,
            shutdown=shutdown,
            checkpoints=checkpoints,
            hooks=hooks,
            malformed=malformed,
            max_message_size=max_message_size,
            unsupported_delays=unsupported_delays,
            send_errors=send_errors,
            deduplication=deduplication,
            connect_timeout=connect_timeout,
            clock=clock,
        )
        super().__init__(config)

    def __repr__(self) -> str:
        consuming = ", ".join(self.consume_from) or "nothing"
        return f"<Matador on {self.transport!r}, consuming {consuming}, {self._status}>"

    # -- configuration and state ------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """The events and their subscribers."""
        return self._config.schema

    @property
    def topology(self) -> Topology:
        """The queues."""
        return self._config.topology

    @property
    def transport(self) -> Transport:
        """The transport."""
        return self._config.transport

    @property
    def codec(self) -> Codec:
        """The codec for envelopes."""
        return self._config.used_codec

    @property
    def checkpoints(self) -> CheckpointStore:
        """The store for the steps of resumable subscribers."""
        return self._config.checkpoints

    @property
    def consume_from(self) -> tuple[str, ...]:
        """The names of the queues it consumes."""
        return self._config.consume_from

    @property
    def dead_letters(self) -> DeadLetterOffice:
        """The dead letters: browse, redrive or purge them.

        Example:
            >>> async for letter in app.dead_letters.browse():
            ...     print(letter.id, letter.reason)
        """
        return self._office(self.topology, self.reader, self.checkpoints)

    @property
    def reader(self) -> EventReader:
        """The reader of the messages stored in its queues."""
        return EventReader(self._config)

    def with_(self, **changes: Unpack[AppOptions]) -> Self:
        """A new application with the same options, except for ``changes``; not started.

        Takes the options of ``Matador``. An application made with a URL gives the new one its own
        connection. One made with a transport object, or in memory, shares its transport, so only
        one of the two can run at a time.

        Raises:
            ConfigurationError: an option is unknown or invalid.
            LifecycleError: the application is running and its transport cannot be shared.

        Example:
            >>> slow = app.with_(topology=Topology("shop", queues=["events"]), shutdown=300)
        """
        if "transport" not in changes:
            if self._config.url is not None and not self.transport.capabilities.in_process:
                changes["transport"] = self._config.url
            elif self._status not in ("new", "stopped"):
                raise LifecycleError(
                    f"the application is running, and its transport {self.transport.name} cannot "
                    f"be shared; shut it down first, or create the application with a URL"
                )
        other = copy(self)  # keeps the attributes of a subclass
        SendsEvents.__init__(other, self._config.with_(**changes))
        return other

    def producer(self) -> Self:
        """The same application, not started, that only sends: for a web process or another thread.

        See ``with_`` for its connection.

        Raises:
            LifecycleError: the application is running and its transport cannot be shared.

        Example:
            >>> async with app.producer() as shop:
            ...     await shop.send(OrderPlaced(order_id="1", amount=5))
        """
        return self.with_(consume_from=())

    @contextmanager
    def configured(self, **changes: Unpack[AppOptions]) -> Generator[Self]:
        """Change the options of this application temporarily, for tools and tests.

        Code that refers to the application keeps working. ``hooks`` are added before the existing
        ones. The application must not be running at the start or at the end of the block.

        Raises:
            LifecycleError: it is running.
            ConfigurationError, QueueNotFoundError: an option is unknown or invalid.

        Example:
            >>> with app.configured(transport=MemoryTransport()):
            ...     async with app: ...
        """
        before = self._config
        self.configure(**changes)
        try:
            yield self
        finally:
            self._configure(before)

    @contextmanager
    def rehosted(
        self,
        transport: Transport,
        clock: Clock,
        checkpoints: CheckpointStore,
        hooks: Sequence[Hooks] = (),
    ) -> Generator[Self]:
        with self.configured(
            transport=transport,
            clock=clock,
            checkpoints=checkpoints,
            hooks=hooks,
            deduplication=in_memory(self._config.deduplication, clock),
        ):
            self.tested_in = get_running_loop()
            yield self

    def configure(self, *, replace_hooks: bool = False, **changes: Unpack[AppOptions]) -> None:
        """Change the options of this application permanently. See ``configured``.

        With ``replace_hooks``, ``hooks`` are the only ones afterwards.
        """
        if self._status not in ("new", "stopped"):
            raise LifecycleError("a running application cannot be changed; shut it down first")
        if "hooks" in changes and not replace_hooks:
            given = hook_objects(changes["hooks"], "Matador")
            changes["hooks"] = (*given, *self._config.hooks)
        self._configure(self._config.with_(**changes))

    def _configure(self, config: AppConfig) -> None:
        status, counters = self._status, self._counters
        SendsEvents.__init__(self, config)
        self._status, self._counters = status, counters

    def check(self) -> None:
        """Check that schema, topology and transport match. ``start`` does this first.

        Raises:
            InvalidSchemaError, SubscriberIsStubError, UnsupportedError: see ``start``.
        """
        check_fit(self._config)

    # -- life cycle -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Check the options, connect, apply the topology and start consuming.

        A second call does nothing.

        Raises:
            InvalidSchemaError: the schema is invalid; lists every problem.
            SubscriberIsStubError: a queue to be consumed receives messages for a stub.
            UnsupportedError: the transport does not support a requested delivery mode.
            ConnectionFailedError: the broker is unreachable.
            WrongLoopError: it is still running in another event loop.
        """
        await super().start()

    async def stop_sending(self) -> None:
        """Send nothing more; sends in progress are finished. Receiving continues.

        Raises:
            ShuttingDownError: from ``send`` afterwards, until the next start.
        """
        self._check_loop()
        outbox = self._outbox
        if outbox is not None:
            await outbox.close()

    def sync(self) -> SyncMatador:
        """The blocking form of the application, for code without an event loop. See ``Blocking``.

        It consumes the same queues as the application. To only send, use ``app.producer().sync()``,
        once for all threads.

        Example:
            >>> with app.sync() as shop:
            ...     shop.send(OrderPlaced(order_id="1", amount=5))
        """
        return self._blocking(SyncMatador)

    def another(self) -> Self:
        return self.with_()

    async def apply_topology(self) -> Sequence[TopologyNote]:
        """Create missing queues. Returns what the transport could not apply."""
        self._check_loop()
        assert self._connection is not None
        return await self._connection.apply(self.topology)

    # -- internals --------------------------------------------------------------------------------

    _elsewhere = "use app.producer() here, or app.sync(), which any thread may call"

    def _check(self) -> None:
        self.check()

    async def _open(self, transport: Transport) -> None:
        config = self._config
        await self.apply_topology()
        await config.checkpoints.open()
        # The capabilities of a transport are known once it is connected.
        self._fan_out = FanOut(config, tells=self._hooks.hears_sends)
        self._open_outbox(transport, recovery=NO_BUFFER)
        if config.consume_from:
            await self._open_dedup(config.deduplication)
            await self._receive()

    async def _receive(self) -> None:
        config, topology = self._config, self._config.topology
        concurrency = Concurrency(config, self._hooks)
        queues = [topology.full_name(queue) for queue in config.consume_from]
        await self._consume(
            config.transport,
            EventWay(config, self),
            {queue: await concurrency.of(queue) for queue in queues},
            max_deliveries=config.used_retry.max_deliveries,
            checkpoints=config.checkpoints,
            dedup=self._dedup,
            delays=topology.retry.enabled,
            read_ahead=concurrency.may_read_ahead,
            ask_concurrency=concurrency.ask,
        )

    async def _close(self, deadline: Deadline) -> None:
        await deadline.do_last(self._config.checkpoints.close(), "close the checkpoint store")

    @property
    def _consumes(self) -> bool:
        return bool(self._config.consume_from)


# -- for code without an event loop ---------------------------------------------------------------


class SyncMatador(Blocking[Matador]):
    """``app.sync()``: an application for code without an event loop. See ``Blocking``.

    Example:
        >>> with app.sync() as shop:
        ...     shop.send(OrderPlaced(order_id="1", amount=5), delay=30)
    """

    _called = "app"

    @property
    def app(self) -> Matador:
        """The application in the background; before the start, the copy that would run."""
        return self.running

    @property
    def state(self) -> AppState:
        return self.running.state

    send = blocking(Matador.send)
    send_many = blocking(Matador.send_many)
    wait_idle = blocking(Matador.wait_idle)
    pause = blocking(Matador.pause)
    resume = blocking(Matador.resume)
