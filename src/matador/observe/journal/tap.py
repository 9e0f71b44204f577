"""The tap: moves the messages of a queue to the journal, for brokers that cannot be read again.

Each message is on disk before it is acknowledged, so a tap that is killed loses nothing. It may
write a message twice; the lake removes duplicates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from matador.codec.base import Codec
from matador.errors import LeaseLostError, StorageFullError, TransportError
from matador.events.queue_pauses import pausing
from matador.model.message import Complete, Delivery
from matador.model.options import Seconds, seconds, whole_number
from matador.observe.journal.records import line_of
from matador.observe.journal.segments import Segment, make_folder, recover, writer_name
from matador.storage.paths import local_path
from matador.transports.base import Measuring, Subscription, Transport
from matador.transports.clock import Clock, SystemClock
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.errors import queues_paused

log = logging.getLogger("matador.journal")

_BATCH = 1000


class Tap:
    """Moves messages from a queue to a journal until it is stopped.

    Other consumers of the queue do not receive these messages, so use a separate queue, for example
    that of a plugin subscriber's stub.

    Example:
        >>> tap = Tap(app.transport, "shop.lake", "journal/", codec=app.codec)
        >>> await tap.run(stop=asyncio.Event())
    """

    def __init__(
        self,
        transport: Transport,
        queue: str,
        folder: str | Path,
        *,
        codec: Codec,
        rotate_size: int = 64 * 1024 * 1024,
        rotate_age: Seconds = 60.0,
        clock: Clock | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._transport = transport
        self._queue = queue
        self._folder = local_path(folder, "Tap: folder")
        self._codec = codec
        self._rotate_size = whole_number(rotate_size, "Tap: rotate_size", minimum=1)
        self._rotate_age = seconds(rotate_age, "Tap: rotate_age", minimum=0.01)
        self._clock: Clock = clock or SystemClock()
        self._progress = progress
        self._writer = writer_name()
        self._segment: Segment | None = None
        self._number = 0
        self.landed = 0
        self.malformed = 0

    async def run(self, *, stop: asyncio.Event, until_empty: bool = False) -> int:
        """Move messages until ``stop`` is set, or with ``until_empty``, until the queue is empty.

        Returns the number of messages. The transport must be connected.

        Raises:
            QueueNotFoundError: the queue does not exist.
            QueuePausedError: with ``until_empty``, there are messages, but the queue is paused.
        """
        make_folder(self._folder)
        recover(self._folder)
        subscription = await self._transport.subscribe(self._queue, prefetch=_BATCH)
        try:
            await self._land_all(subscription, stop, until_empty)
        finally:
            await subscription.close()
            await asyncio.to_thread(self._finish)
        return self.landed

    async def _land_all(
        self, subscription: Subscription, stop: asyncio.Event, until_empty: bool
    ) -> None:
        backoff = Backoff(0.1, 10.0)
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                receiving = asyncio.ensure_future(subscription.receive(_BATCH))
                timeout = 0.5 if until_empty else self._rotate_age
                await asyncio.wait(
                    {receiving, stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if not receiving.done():
                    receiving.cancel()  # safe: the transport releases its messages
                    await asyncio.gather(receiving, return_exceptions=True)
                    if until_empty:
                        await self._check_not_paused()
                        return
                    await asyncio.to_thread(self._rotate_if_due)
                    continue
                try:
                    deliveries = receiving.result()
                    if not deliveries:
                        return
                    await self._land(deliveries)
                    backoff.reset()
                except TransportError as error:
                    pause = backoff.next()
                    log.warning("the tap pauses for %.1f s: %s", pause, error)
                    await asyncio.wait({stopped}, timeout=pause)
        finally:
            stopped.cancel()

    async def _check_not_paused(self) -> None:
        transport, pauses = self._transport, pausing(self._transport)
        if pauses is None or not await pauses.is_paused(self._queue):
            return
        if not isinstance(transport, Measuring) or (await transport.depth(self._queue)).ready:
            raise queues_paused([self._queue])

    async def _land(self, deliveries: Sequence[Delivery]) -> None:
        lines = bytearray()
        malformed = 0
        for delivery in deliveries:
            line, readable = line_of(
                delivery,
                queue=self._queue,
                transport=self._transport.name,
                codec=self._codec,
                stamp=self._clock,
                writer=self._writer,
                source="tap",
            )
            malformed += not readable
            lines += line + b"\n"
        try:
            await asyncio.to_thread(self._store, bytes(lines))
        except OSError as error:
            # Not acknowledged: they are delivered again when their lease expires.
            raise StorageFullError(f"cannot write to {self._folder}: {error}") from error
        outcomes = await self._transport.settle([Complete(one.receipt) for one in deliveries])
        for outcome in outcomes:
            if outcome is not None and not isinstance(outcome, LeaseLostError):
                log.warning("a message was not acknowledged and will be repeated: %s", outcome)
        self.landed += len(deliveries)
        self.malformed += malformed
        if self._progress is not None:
            self._progress(self.landed, self.malformed)

    def _store(self, lines: bytes) -> None:
        if self._segment is None:
            self._number += 1
            self._segment = Segment(self._folder, self._writer, self._number)
        self._segment.append(lines)
        self._segment.sync()
        self._rotate_if_due()

    def _rotate_if_due(self) -> None:
        segment = self._segment
        if segment is not None and (
            segment.size >= self._rotate_size or segment.age >= self._rotate_age
        ):
            self._finish()

    def _finish(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.finish()
