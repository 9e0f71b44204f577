"""``Subscriber``: receives messages by patterns of their routing keys, and runs handlers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack, cast
from uuid import uuid4

from matador.errors import ConfigurationError, LifecycleError, MatadorError, NotStartedError
from matador.model.message import Delivery
from matador.model.options import optional_whole_number
from matador.model.topology import Binding, Exchange, Topology, WorkQueue
from matador.policy.ack import DeadLetterOptions
from matador.policy.retry import may_run_again
from matador.pubsub.publisher import NAMESPACE, exchanges_of, require_routing
from matador.pubsub.registry import Registry
from matador.pubsub.way import ErrorHandler, PubSubWay
from matador.runtime.message_service import (
    HandlerOptions,
    MessageReceiver,
    ReceiverOptions,
    work_queue,
)
from matador.runtime.messages import MessageContext, MessageRoute, MessageWork
from matador.runtime.worker import DEFAULT_CONCURRENCY
from matador.transports.base import Routing, Transport

log = logging.getLogger("matador.pubsub")

BROADCAST_EXPIRES = 300.0
"""Seconds after which the queue of a broadcast subscriber is deleted if its process has died."""


Function = TypeVar("Function", bound=Callable[..., Any])


class Subscriber(MessageReceiver):
    """Receives published messages by patterns of routing keys, and runs a handler for each.

    Not to be confused with ``matador.Subscriber``, which ``@subscriber`` creates: a function that
    handles an event. This class is a running service, like ``RpcServer``.

    With a ``queue``, all subscribers of that name share its messages, and messages published while
    none of them runs wait. Without a ``queue``, every subscriber receives every message published
    after its start; its queue is deleted when it is closed.

    Args:
        url: the URL of the broker, or a transport.
        exchange: the exchange to receive from: the name of a topic exchange, or an ``Exchange``.
        queue: the name of the queue, or a ``WorkQueue`` with its options. None: a separate queue,
            ``{exchange}.{uuid}``.
        concurrency: how many messages are handled at once. None: the concurrency of the queue, or
            10.
        dead_letters: whether and how failed messages are kept. By default, they are kept in
            ``{queue}.dlq``; without a ``queue``, they are not.
        continue_on_error: a message completes even if handlers fail: nothing is retried or kept.
        error_handler: called with each error of a handler, and the context of its message.
        **options: see ``ReceiverOptions``.

    Raises:
        ConfigurationError: an argument is wrong.

    Example:
        >>> sub = Subscriber("amqp://localhost", exchange="events", queue="analytics")
        >>> @sub.on("orders.*")
        ... async def orders(message: dict, ctx: MessageContext) -> None:
        ...     print(ctx.routing_key, message)
        >>> sub.run()  # until SIGTERM; in a program of yours: async with sub
    """

    def __init__(
        self,
        url: str | Transport,
        *,
        exchange: str | Exchange,
        queue: str | WorkQueue | None = None,
        concurrency: int | None = None,
        dead_letters: DeadLetterOptions | bool | None = None,
        continue_on_error: bool = False,
        error_handler: ErrorHandler | None = None,
        **options: Unpack[ReceiverOptions],
    ) -> None:
        (self._exchange,) = exchanges_of((exchange,), "pub/sub Subscriber")
        name = self._exchange.name
        optional_whole_number(concurrency, "pub/sub Subscriber: concurrency", minimum=1)
        own = WorkQueue(f"{name}.{uuid4()}", expires=BROADCAST_EXPIRES)
        work = work_queue(
            own if queue is None else queue, "pub/sub Subscriber", concurrency=concurrency
        )
        where = f"pub/sub Subscriber({name if queue is None else work.name!r})"
        if error_handler is not None and not callable(error_handler):
            raise ConfigurationError(f"{where}: error_handler must be a function")
        self._broadcast = queue is None
        self._queue = work.name
        keeps = not self._broadcast if dead_letters is None else dead_letters
        self._concurrency = work.concurrency or DEFAULT_CONCURRENCY
        self._work = work.named(concurrency=self._concurrency)
        options.setdefault("timeout", work.consumer_timeout)
        letters = DeadLetterOptions.of(keeps)
        super().__init__(where, url, letters=letters, context=MessageContext, **options)
        self._continues = continue_on_error
        self._error_handler = error_handler
        self._registry = Registry(self._exchange, where, together=continue_on_error)
        self._made()  # a wrong name is an error at once

    def __repr__(self) -> str:
        return f"Subscriber(exchange={self._exchange.name!r}, queue={self._queue!r})"

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._queue

    @property
    def exchange(self) -> Exchange:
        """The exchange that it receives from."""
        return self._exchange

    @property
    def topology(self) -> Topology:
        """The queue, the exchange and the bindings that it creates."""
        return self._made()

    @property
    def bindings(self) -> Sequence[tuple[str, MessageRoute]]:
        """Each pattern with each of its handlers."""
        return self._registry.bindings

    @property
    def is_broadcast(self) -> bool:
        """Whether it has a separate queue, so that every subscriber receives every message."""
        return self._broadcast

    # -- handlers ---------------------------------------------------------------------------------

    def on(
        self, *patterns: str, **options: Unpack[HandlerOptions]
    ) -> Callable[[Function], Function]:
        """Call a function for each message whose routing key matches a pattern.

        ``*`` stands for one word, ``#`` for any number of words, also none. The function takes the
        data of the message, in the type that its annotation names, and the ``MessageContext`` if it
        has a parameter for it. It may be async; others run in threads. Several functions may match
        a message: they run concurrently. Each function is called once per message. ``options``: see
        ``HandlerOptions``.

        Raises:
            ConfigurationError: a pattern or the function is not valid.
            LifecycleError: the subscriber is running.

        Example:
            >>> @sub.on("orders.*", "invoices.#")
            ... async def store(order: Order) -> None: ...
        """
        if not patterns or callable(patterns[0]):
            raise ConfigurationError(
                f"{self._where} on() takes patterns: @sub.on('orders.*') above the function"
            )

        def register(function: Function) -> Function:
            if self.is_running:
                raise LifecycleError(f"{self._where} is running: add handlers before its start")
            for pattern in patterns:
                self._registry.add(pattern, function, lambda read: self._route(read, options))
            return function

        return register

    async def unbind(self, *patterns: str) -> None:
        """Stop messages for patterns of an earlier version from reaching the queue.

        The bindings of a named queue stay on the broker when the program no longer has a handler
        for them; messages that only match these bindings become dead letters. Call this after the
        start, once no process with the earlier version runs. Idempotent.

        Raises:
            ConfigurationError: there is a handler for the pattern.
            NotStartedError: it has not been started.

        Example:
            >>> await sub.unbind("orders.#")  # the program handled these once
        """
        if not self.is_running:
            raise NotStartedError(f"{self._where} has not been started")
        transport = cast("Routing", self._broker.transport)
        for pattern in patterns:
            if pattern in self._registry.patterns:
                raise ConfigurationError(f"{self._where} has a handler for {pattern!r}")
            await transport.unbind(self._exchange.name, self._queue, pattern)

    # -- life -------------------------------------------------------------------------------------

    def _check(self) -> None:
        if not self._registry.handlers:
            raise ConfigurationError(
                f"{self._where} has no handlers: add one with @sub.on('orders.*') before its start"
            )

    async def _open(self, transport: Transport) -> None:
        require_routing(transport, self._where)
        if self._broadcast:
            self._at_end("delete its queue", self._delete_queue)
        await self._broker.apply(self._made())
        await self._receive(
            transport,
            lambda options, worker: PubSubWay(
                options,
                self._registry,
                self._exchange.name,
                calls=worker.calls,
                counters=self._counters,
                continue_on_error=self._continues,
                error_handler=self._error_handler,
            ),
            {self._queue: self._concurrency},
            read_ahead=lambda _: all(
                may_run_again(one.idempotent) for one in self._registry.handlers
            ),
        )

    def _routes_of(self, delivery: Delivery, queue: str) -> Sequence[MessageRoute]:
        return self._registry.routes_of(delivery)

    def _letter_arguments(self, work: MessageWork) -> MessageContext:
        return MessageContext(work, None, self._exchange.name)

    async def _delete_queue(self) -> None:
        try:
            transport = self._broker.transport
            if isinstance(transport, Routing):
                await transport.delete_queue(self._queue)
        except MatadorError as error:  # the broker deletes it by itself
            log.info("%s: its queue is deleted in %g s: %s", self._where, BROADCAST_EXPIRES, error)

    # -- inside -----------------------------------------------------------------------------------

    def _made(self) -> Topology:
        return Topology(
            NAMESPACE,
            queues=[self._work],
            dead_letters=self._kept(),
            exchanges=[self._exchange],
            bindings=[
                Binding(self._exchange.name, self._queue, pattern)
                for pattern in self._registry.patterns
            ],
        )
