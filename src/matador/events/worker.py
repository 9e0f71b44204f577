"""The receiving half of an application: its consumers and all they share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from matador.events.hooks import HookSet
from matador.events.processor import Processor
from matador.model.topology import Topology
from matador.runtime.activity import Activity
from matador.runtime.consumer import Consumer
from matador.runtime.interruption import Interruption
from matador.runtime.leases import LeaseKeeper
from matador.runtime.settle import Settler
from matador.runtime.suspects import Suspects
from matador.runtime.threads import Threads
from matador.transports.base import Transport
from matador.transports.clock import Clock

log = logging.getLogger("matador.worker")

DEFAULT_CONCURRENCY = 10
"""How many messages of a queue one worker handles at once, unless told otherwise."""

_ASK_CONCURRENCY_EVERY = 10.0


class EventWorker:
    """Consumes queues until told to stop. Started and stopped once."""

    def __init__(
        self,
        *,
        transport: Transport,
        topology: Topology,
        hooks: HookSet,
        processor: Processor,
        settler: Settler,
        leases: LeaseKeeper | None,
        suspects: Suspects,
        interruption: Interruption,
        threads: Threads,
        activity: Activity,
        clock: Clock,
    ) -> None:
        self._transport = transport
        self._topology = topology
        self._hooks = hooks
        self._processor = processor
        self._settler = settler
        self._leases = leases
        self._suspects = suspects
        self._interruption = interruption
        self._threads = threads
        self._activity = activity
        self._clock = clock
        self._consumers: list[Consumer] = []
        self._resizer: asyncio.Task[None] | None = None

    @property
    def consumers(self) -> Sequence[Consumer]:
        """One a queue."""
        return self._consumers

    async def start(self, queues: Sequence[str]) -> None:
        """Subscribe to queues, by their full names."""
        self._interruption.start()
        if self._leases is not None:
            self._leases.start()
        for queue in queues:
            concurrency = await self._concurrency(queue)
            subscription = await self._transport.subscribe(queue, prefetch=concurrency)
            consumer = Consumer(
                subscription,
                concurrency=concurrency,
                handler=self._processor,
                settler=self._settler,
                leases=self._leases,
                suspects=self._suspects,
                interruption=self._interruption,
                activity=self._activity,
                clock=self._clock,
            )
            self._consumers.append(consumer)
            consumer.start()
            log.info("consuming %s with concurrency %d", queue, concurrency)
        if self._hooks.get_queue_concurrency is not None:
            self._resizer = asyncio.create_task(self._resize(), name="matador-concurrency")

    async def stop_receiving(self) -> None:
        """Receive no more. Running callbacks go on."""
        if self._resizer is not None:
            self._resizer.cancel()
            await asyncio.gather(self._resizer, return_exceptions=True)
            self._resizer = None
        await asyncio.gather(*(consumer.stop_receiving() for consumer in self._consumers))

    async def finish(self) -> None:
        """Wait until every callback has returned and every outcome is settled."""
        await asyncio.gather(*(consumer.wait_finished() for consumer in self._consumers))
        await self._settler.drain()

    async def interrupt(self, grace: float) -> list[str]:
        """Cut running callbacks short and give their messages back; say what was abandoned."""
        running = {c.queue: c.in_progress for c in self._consumers if c.in_progress}
        abandoned = [f"{count} running in {queue}" for queue, count in running.items()]
        self._interruption.force()
        for consumer in self._consumers:  # at once: there may be no time at all
            consumer.interrupt()
        try:
            async with asyncio.timeout(grace):
                await self.finish()
        except TimeoutError:
            unsettled = self._settler.abandon()
            if unsettled:
                abandoned.append(f"{unsettled} unsettled")
        return abandoned

    async def close(self) -> None:
        """Release what is left. After ``finish`` or ``interrupt``."""
        await self._interruption.stop()
        if self._leases is not None:
            await self._leases.stop()
        self._settler.abandon()  # what a callback that cannot be stopped may still come up with
        self._activity.finished_processing(self._activity.processing)
        self._threads.close()

    async def _concurrency(self, queue: str) -> int:
        asked = None
        if self._hooks.get_queue_concurrency is not None:
            asked = await self._hooks.get_queue_concurrency(queue)
        given = self._topology.queue(queue).concurrency if self._topology.has_queue(queue) else None
        usual = given or DEFAULT_CONCURRENCY
        try:
            return max(1, int(asked or usual))
        except (TypeError, ValueError, OverflowError):
            log.error("get_queue_concurrency gave %r for %s, which is no number", asked, queue)
            return usual

    async def _resize(self) -> None:
        while True:
            await asyncio.sleep(_ASK_CONCURRENCY_EVERY)
            for consumer in self._consumers:
                consumer.resize(await self._concurrency(consumer.queue))
