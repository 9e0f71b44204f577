"""The worker: consumes queues with any handler until it is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from matador.errors import MatadorError
from matador.model.message import Receipt
from matador.runtime.activity import Activity
from matador.runtime.calls import Calls
from matador.runtime.consumer import Consumer
from matador.runtime.health import ConsumerHealth
from matador.runtime.hooks import HookSet
from matador.runtime.interruption import Interruption
from matador.runtime.leases import LeaseKeeper
from matador.runtime.loop_watch import LoopWatch
from matador.runtime.metrics import Counters
from matador.runtime.settle import Handler, Settler
from matador.runtime.suspects import Suspects
from matador.runtime.threads import Threads
from matador.transports.base import Leasing, Subscription, Transport
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.worker")

DEFAULT_CONCURRENCY = 10
"""The default number of messages of a queue that one worker handles concurrently."""

_ASK_CONCURRENCY_EVERY = 10.0
_MOST_THREADS = 1000  # the concurrency of the queues is the effective limit


class DeliveryWorker:
    """Receives messages, runs a handler for each, and settles the outcomes. Started once.

    A handler may use the parts it needs: ``calls`` runs callbacks, ``settler`` settles before a
    callback runs, ``leases`` reports lost leases.

    Args:
        transport: a connected transport.
        activity: counts what is being processed; shared with the owner.
        counters: counts what was received; shared with the owner.
        clock: the source of time.
        max_deliveries: after how many deliveries the handler refuses a message. Messages close to
            this limit are handled alone.
        on_settle_error: called for each failed settlement, even if it is retried.
        hooks: notified of settled attempts.

    Example:
        >>> worker = DeliveryWorker(transport)
        >>> await worker.start(handler, {"shop.events": 10})
    """

    def __init__(
        self,
        transport: Transport,
        *,
        activity: Activity | None = None,
        counters: Counters | None = None,
        clock: Clock | None = None,
        max_deliveries: int = 5,
        on_settle_error: Callable[[Receipt, MatadorError], None] | None = None,
        hooks: HookSet | None = None,
    ) -> None:
        lease = transport.capabilities.lease
        self._transport = transport
        self._activity = activity or Activity()
        self._counters = counters or Counters()
        self._clock = clock or SystemClock()
        self.leases: LeaseKeeper | None = None
        if lease is not None and isinstance(transport, Leasing):
            self.leases = LeaseKeeper(transport, lease)
        self.settler = Settler(transport, self._activity, self.leases, on_settle_error, hooks)
        self._threads = Threads(_MOST_THREADS)
        self._interruption = Interruption()
        self.calls = Calls(self._threads, self._interruption, self._clock)
        self._suspects = Suspects(max_deliveries)
        self._consumers: list[Consumer] = []
        self._resizer: asyncio.Task[None] | None = None
        self._watch = LoopWatch(self.leases, self._consumers)

    @property
    def consumers(self) -> Sequence[Consumer]:
        """One for each queue."""
        return self._consumers

    @property
    def health(self) -> tuple[ConsumerHealth, ...]:
        """The health of each consumer."""
        return tuple(consumer.health for consumer in self._consumers)

    async def start(
        self,
        handler: Handler,
        queues: Mapping[str, int],
        *,
        read_ahead: Callable[[str], bool] = lambda _: True,
        ask_concurrency: Callable[[str], Awaitable[int]] | None = None,
        around: Callable[[Subscription], Subscription] = lambda inner: inner,
        paused: bool = False,
    ) -> None:
        """Subscribe to queues, given by their full names with how many messages run at once.

        Args:
            handler: called for each delivery.
            queues: the queues and their concurrency.
            read_ahead: whether a queue's messages may be received before a slot is free. A crash
                counts as a delivery for received messages, so not for messages that may run only
                once, and never if the second delivery is already refused.
            ask_concurrency: asked for each queue every ten seconds, to change its concurrency.
            around: wraps each subscription, to observe deliveries and errors.
            paused: receive nothing until ``resume``.
        """
        self._interruption.start()
        if self.leases is not None:
            self.leases.start()
        self._watch.start()
        for queue, concurrency in queues.items():
            consumer = Consumer(
                around(await self._transport.subscribe(queue, prefetch=concurrency)),
                concurrency=concurrency,
                read_ahead=self._suspects.spares_others and read_ahead(queue),
                handler=handler,
                settler=self.settler,
                leases=self.leases,
                suspects=self._suspects,
                interruption=self._interruption,
                activity=self._activity,
                counters=self._counters,
                clock=self._clock,
            )
            self._consumers.append(consumer)
            consumer.start()
            if paused:
                await consumer.pause()
            log.info("consuming %s with concurrency %d", queue, concurrency)
        if ask_concurrency is not None:
            self._resizer = asyncio.create_task(
                self._resize(ask_concurrency), name="matador-concurrency"
            )

    async def pause(self) -> None:
        """Receive nothing until ``resume``. Running callbacks continue; other received messages are
        given back."""
        await asyncio.gather(*(consumer.pause() for consumer in self._consumers))

    def resume(self) -> None:
        """End a pause."""
        for consumer in self._consumers:
            consumer.resume()

    async def stop_receiving(self) -> None:
        """Stop receiving. Running callbacks continue."""
        if self._resizer is not None:
            self._resizer.cancel()
            await asyncio.gather(self._resizer, return_exceptions=True)
            self._resizer = None
        await asyncio.gather(*(consumer.stop_receiving() for consumer in self._consumers))

    async def finish(self) -> None:
        """Wait until every callback has returned and every outcome is settled."""
        await asyncio.gather(*(consumer.wait_finished() for consumer in self._consumers))
        await self.settler.drain()

    async def interrupt(self, grace: float) -> list[str]:
        """Cancel running callbacks and give their messages back; return descriptions of abandoned
        work."""
        running = {c.queue: c.in_progress for c in self._consumers if c.in_progress}
        abandoned = [f"{count} running in {queue}" for queue, count in running.items()]
        self._interruption.force()
        for consumer in self._consumers:  # without waiting, because there may be no time left
            consumer.interrupt()
        try:
            async with asyncio.timeout(grace):
                await self.finish()
        except TimeoutError:
            unsettled = self.settler.abandon()
            if unsettled:
                abandoned.append(f"{unsettled} unsettled")
        return abandoned

    async def close(self) -> None:
        """Release all resources. Called after ``finish`` or ``interrupt``."""
        await self._interruption.stop()
        await self._watch.stop()
        if self.leases is not None:
            await self.leases.stop()
        self.settler.abandon()  # outcomes of callbacks that cannot be stopped
        self._activity.finished_processing(self._activity.processing)
        self._threads.close()

    async def _resize(self, ask: Callable[[str], Awaitable[int]]) -> None:
        while True:
            await asyncio.sleep(_ASK_CONCURRENCY_EVERY)
            for consumer in self._consumers:
                await consumer.resize(await ask(consumer.queue))
