"""What an application has only while it runs: a connection, a sending half and a receiving half."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

from matador.events.config import AppConfig
from matador.events.context import EventSender
from matador.events.dispatcher import Dispatcher
from matador.events.failures import Failures
from matador.events.fanout import FanOut
from matador.events.fit import Concurrency
from matador.events.handler import EventHandler
from matador.events.hooks import HookSet
from matador.events.listener import TransportListener
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
        self.fan_out = make_fan_out(config)
        self.dispatcher = Dispatcher(config.transport, self.hooks)
        self.worker: DeliveryWorker | None = None
        self.is_open = False

    @property
    def health(self) -> Health:
        """The connection, and how each queue is being consumed."""
        queues = () if self.worker is None else self.worker.health
        return Health(self._config.transport.state, queues)

    async def open(self) -> None:
        """Connect, apply the topology, and consume. What fails leaves nothing open."""
        config = self._config
        self._unobserve = config.transport.observe(self._listener)
        try:
            await config.transport.connect()
            await apply_topology(config)
            await config.checkpoints.open()
            self.fan_out = make_fan_out(config)  # what a transport can do is known once connected
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
        """Consume again after ``stop_receiving``; what was received before is finished first."""
        if self.worker is not None:
            await self.worker.finish()
            await self.worker.close()
            self.worker = await self._start_worker()

    async def stop_receiving(self) -> None:
        """Receive no more."""
        if self.worker is not None:
            await self.worker.stop_receiving()

    async def finish_receiving(self) -> None:
        """Wait for running callbacks and their settlements."""
        if self.worker is not None:
            await self.worker.finish()

    async def interrupt_receiving(self, grace: float) -> list[str]:
        """Cancel running callbacks; say what was abandoned."""
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
        codec = config.used_codec
        failures = Failures(
            codec=codec,
            retry=config.retry,
            hooks=self.hooks,
            checkpoints=config.checkpoints,
            topology=topology,
            capabilities=config.transport.capabilities,
            clock=config.clock,
            random=random.random,
        )
        handler = EventHandler(
            worker,
            schema=config.schema,
            codec=codec,
            hooks=self.hooks,
            checkpoints=config.checkpoints,
            clock=config.clock,
            failures=failures,
            sender=self._sender,
            transport_name=config.transport.name,
            delivery=config.delivery,
            malformed=config.malformed,
            max_message_size=config.max_message_size,
            timeouts={
                topology.full_name(queue.name): queue.consumer_timeout
                for queue in topology.queues
                if queue.consumer_timeout is not None
            },
        )
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


def make_fan_out(config: AppConfig) -> FanOut:
    """How events become messages."""
    return FanOut(
        schema=config.schema,
        topology=config.topology,
        codec=config.used_codec,
        capabilities=config.transport.capabilities,
        clock=config.clock,
        max_message_size=config.max_message_size,
        unsupported_delays=config.unsupported_delays,
    )


async def apply_topology(config: AppConfig) -> Sequence[TopologyNote]:
    """Create the queues that are missing; what the transport could not honour, also logged."""
    notes = await config.transport.apply_topology(config.topology)
    for note in notes:
        log.warning("topology: %s%s", f"{note.queue}: " if note.queue else "", note.text)
    return notes
