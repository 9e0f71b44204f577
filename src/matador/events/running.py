"""What exists only while an application runs: its connection, its sender and its worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from matador.events.config import AppConfig
from matador.events.context import EventSender
from matador.events.dispatcher import Dispatcher
from matador.events.fanout import FanOut
from matador.events.fit import Concurrency
from matador.events.handler import EventHandler
from matador.events.hooks import HookSet
from matador.events.listener import TransportListener
from matador.events.prepared import PreparedSends
from matador.model.message import TopologyNote
from matador.runtime.activity import Activity
from matador.runtime.health import Health
from matador.runtime.worker import DeliveryWorker

log = logging.getLogger("matador")


class Running:
    """A running application. The life cycle calls ``open`` first and ``close`` last."""

    def __init__(
        self,
        config: AppConfig,
        activity: Activity,
        sender: EventSender,
        on_closed: Callable[[], None],
    ) -> None:
        self._config = config
        self._activity = activity
        self._sender = sender
        self._on_closed = on_closed
        self.hooks = HookSet(config.hooks)
        self._listener = TransportListener(self.hooks)
        self.fan_out: FanOut  # these three are set by ``open``
        self.prepared: PreparedSends
        self.dispatcher: Dispatcher
        self.worker: DeliveryWorker | None = None
        self.is_open = False

    @property
    def health(self) -> Health:
        """The connection, and how each queue is being consumed."""
        queues = () if self.worker is None else self.worker.health
        return Health(self._config.transport.state, queues)

    async def open(self) -> None:
        """Connect, apply the topology and start consuming. A failure leaves nothing open."""
        config = self._config
        self._unobserve = config.transport.observe(self._listener)
        try:
            await config.transport.connect()
            await apply_topology(config)
            await config.checkpoints.open()
            self.fan_out = FanOut(config)  # its capabilities are known once it is connected
            self.prepared = PreparedSends(config, self.fan_out)
            self.dispatcher = Dispatcher(config.transport, self.hooks)
            self.is_open = True
            if config.consume_from:
                self.worker = await self._start_worker()
        except BaseException:
            await self._release()
            raise
        if self.hooks.on_start is not None:
            await self.hooks.on_start()

    async def receive_again(self) -> None:
        """Resume after ``stop_receiving``, once the messages received before are finished."""
        if self.worker is not None:
            await self.worker.finish()
            await self.worker.close()
            self.worker = await self._start_worker()

    async def stop_receiving(self) -> None:
        """Stop receiving."""
        if self.worker is not None:
            await self.worker.stop_receiving()

    async def finish_receiving(self) -> None:
        """Wait for running callbacks and their settlements."""
        if self.worker is not None:
            await self.worker.finish()

    async def interrupt_receiving(self, grace: float) -> list[str]:
        """Cancel running callbacks; returns what was abandoned."""
        return [] if self.worker is None else await self.worker.interrupt(grace)

    async def close(self) -> None:
        """Disconnect and release everything."""
        try:
            await self._release()
            if self.hooks.on_stop is not None:
                await self.hooks.on_stop()
        finally:
            self._on_closed()

    async def _release(self) -> None:
        worker, self.worker = self.worker, None
        self.is_open = False
        try:
            if worker is not None:
                await worker.close()
            await self._config.checkpoints.close()
            await self._config.transport.disconnect()
            await self._listener.drain()
        finally:
            self._unobserve()

    async def _start_worker(self) -> DeliveryWorker:
        config = self._config
        topology = config.topology
        worker = DeliveryWorker(
            config.transport,
            activity=self._activity,
            clock=config.clock,
            max_deliveries=config.retry.max_deliveries,
        )
        handler = EventHandler(config, worker, self.hooks, self._sender)
        concurrency = Concurrency(config.schema, topology, self.hooks)
        queues = [topology.full_name(queue) for queue in config.consume_from]
        try:
            await worker.start(
                handler,
                {queue: await concurrency.of(queue) for queue in queues},
                read_ahead=concurrency.may_read_ahead,
                ask_concurrency=concurrency.ask,
            )
        except BaseException:
            await worker.stop_receiving()
            await worker.interrupt(config.shutdown.grace)
            await worker.close()
            raise
        return worker


async def apply_topology(config: AppConfig) -> Sequence[TopologyNote]:
    """Create missing queues. Returns and logs what the transport could not apply."""
    notes = await config.transport.apply_topology(config.topology)
    for note in notes:
        log.warning("topology: %s%s", f"{note.queue}: " if note.queue else "", note.text)
    return notes
