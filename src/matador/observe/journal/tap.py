"""The tap: lands the messages of a queue in the journal, for brokers that cannot be read twice.

Each message is on the disk before it is acknowledged, so a tap that is killed loses nothing; one
that is killed in between lands a message twice, and the lake keeps one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from matador.codec.base import Codec
from matador.errors import LeaseLostError, StorageFullError, TransportError
from matador.model.message import Complete, Delivery
from matador.model.options import Seconds, seconds, whole_number
from matador.observe.journal.convert import line_of
from matador.observe.journal.segments import Segment, make_folder, recover, writer_name
from matador.observe.paths import local_path
from matador.transports.base import Subscription, Transport
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.journal")

_BATCH = 1000
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0


class Tap:
    """Moves messages from one queue to a journal, until told to stop.

    It takes the messages away from whoever else consumes the queue: give it one of its own, for
    example by a plugin subscriber's stub with that queue.

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
        """Land messages until ``stop`` is set; with ``until_empty`` until there are none for a
        moment. Returns how many were landed. The transport must be connected.

        Raises:
            QueueNotFoundError: there is no such queue.
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
        pause = _FIRST_PAUSE
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                receiving = asyncio.ensure_future(subscription.receive(_BATCH))
                timeout = 0.5 if until_empty else self._rotate_age
                await asyncio.wait(
                    {receiving, stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if not receiving.done():
                    receiving.cancel()  # loses nothing: a transport gives back what it took
                    await asyncio.gather(receiving, return_exceptions=True)
                    if until_empty:
                        return
                    await asyncio.to_thread(self._rotate_if_due)
                    continue
                try:
                    deliveries = receiving.result()
                    if not deliveries:
                        return
                    await self._land(deliveries)
                    pause = _FIRST_PAUSE
                except TransportError as error:
                    log.warning("the tap pauses for %.1f s: %s", pause, error)
                    await _pause(stop, pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            stopped.cancel()

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
            # Not acknowledged: they come again once their lease has passed.
            raise StorageFullError(f"{self._folder} cannot take more: {error}") from error
        outcomes = await self._transport.settle([Complete(one.receipt) for one in deliveries])
        for outcome in outcomes:
            if outcome is not None and not isinstance(outcome, LeaseLostError):
                log.warning(
                    "a landed message was not acknowledged and will come again: %s", outcome
                )
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


async def _pause(stop: asyncio.Event, limit: float) -> None:
    try:
        async with asyncio.timeout(limit):
            await stop.wait()
    except TimeoutError:
        return
