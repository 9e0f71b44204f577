"""Consumes one queue: receives, reads ahead, and hands deliveries to long-lived slots."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import cast

from matador.model.message import Delivery, Release
from matador.model.text import error_text, loggable, storable_text
from matador.runtime.activity import Activity
from matador.runtime.health import ConsumerHealth
from matador.runtime.interruption import Interruption
from matador.runtime.leases import LeaseKeeper
from matador.runtime.metrics import Counters
from matador.runtime.settle import Handler, Outcome, Settler
from matador.runtime.suspects import ALONE_AT_MOST, Suspects
from matador.transports.base import Pausing, Prefetching, ReadingAhead, Subscription
from matador.transports.clock import Clock

log = logging.getLogger("matador.worker")

SLOT = "matador-slot"
"""The prefix of the names of tasks that run callbacks."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0

MOST_HELD = 64
"""The maximum number of messages in flight when reading ahead, running ones included."""

MOST_COUNTED = 4 * MOST_HELD
"""The maximum number of deliveries that a transport counts in advance. This is enough for two
commits of half the size, one in flight while the messages of the other are handled."""

_AHEAD_SECONDS = 0.02
_MEASURE_FOR = 0.25
_ADJUST_AGAIN = 10.0
_LONGEST_WAIT = 1.0


class Consumer:
    """As many slots as the queue's concurrency, and one fetcher that keeps them busy.

    **Reading ahead.** While callbacks return quickly, messages are received before a slot is free:
    as many as are handled in 20 ms, and never more than ``MOST_HELD`` in all; with a concurrency of
    1, where messages run strictly one after the other, none (a transport may count some ahead).
    Slow callbacks do not withhold messages from other workers: messages that waited for a second
    are given back. Messages that have not started are also given back, uncounted, on a stop and
    before a suspect is handled.

    **Settling** runs concurrently with the next messages, so that both share a round trip. At most
    twice the number of messages that may be in flight wait to be settled, plus the number counted
    in advance, where a transport counts deliveries.
    """

    def __init__(
        self,
        subscription: Subscription,
        *,
        concurrency: int,
        read_ahead: bool,
        handler: Handler,
        settler: Settler,
        leases: LeaseKeeper | None,
        suspects: Suspects,
        interruption: Interruption,
        activity: Activity,
        counters: Counters,
        clock: Clock,
    ) -> None:
        self._subscription = subscription
        self._concurrency = concurrency
        self._reads_ahead = read_ahead
        self._ahead = 0
        self._counted_ahead = 0
        self._adjust_again_at = 0.0
        self._prefetch = concurrency
        self._handler = handler
        self._settler = settler
        self._leases = leases
        self._suspects = suspects
        self._interruption = interruption
        self._suspect: Delivery | None = None
        self._activity = activity
        self._counters = counters
        self._clock = clock
        self._waiting: deque[Delivery] = deque()
        self._doubtful = 0  # how many of them may belong to another worker now
        self._received_late = False
        self._busy = 0
        self._idle: list[asyncio.Future[None]] = []
        self._waking = False
        self._slots: set[asyncio.Task[None]] = set()
        self._fetcher: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._stopping = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._paused: asyncio.Future[None] | None = None
        self._receiving = False
        self.last_poll = clock.monotonic()
        self.handled = 0
        self._measured, self._measured_at = 0, self.last_poll

    @property
    def queue(self) -> str:
        """The full name of the queue."""
        return self._subscription.queue

    @property
    def concurrency(self) -> int:
        """How many messages are handled at once."""
        return self._concurrency

    @property
    def in_progress(self) -> int:
        """Messages received whose callback has not returned."""
        return self._busy + len(self._waiting)

    @property
    def receives(self) -> bool:
        """Whether it is neither paused nor stopping."""
        return not self._is_held_up()

    @property
    def health(self) -> ConsumerHealth:
        """The health of the consumer."""
        alive = self._fetcher is not None and not self._fetcher.done()
        return ConsumerHealth(
            self.queue,
            self._concurrency,
            self._busy,
            len(self._waiting),
            self.handled,
            alive
            and (
                self._receiving
                or self._busy >= self._concurrency
                or not self._resumed.is_set()  # paused on purpose
            ),
            self._clock.monotonic() - self.last_poll,
        )

    def start(self) -> None:
        """Start to receive."""
        if self._reads_ahead and isinstance(self._subscription, ReadingAhead):
            self._subscription.read_ahead(0)  # until it is measured
        self._make_slots()
        self._fetcher = asyncio.create_task(self._fetch(), name=f"matador-fetch-{self.queue}")

    async def resize(self, concurrency: int) -> None:
        """Change how many messages are handled at once; running ones are not disturbed."""
        if concurrency == self._concurrency:
            return
        log.info("%s: concurrency %d -> %d", self.queue, self._concurrency, concurrency)
        self._concurrency = concurrency
        self._ahead = self._counted_ahead = 0  # until it is measured again
        if self._reads_ahead and isinstance(self._subscription, ReadingAhead):
            self._subscription.read_ahead(0)
        self._make_slots()
        self._wake_all()
        self._signal_room()
        await self._set_prefetch(concurrency)

    async def pause(self) -> None:
        """Receive nothing until ``resume``; messages that have not started are given back,
        uncounted."""
        if self._fetcher is None or self._fetcher.done() or not self._resumed.is_set():
            return
        self._resumed.clear()
        self._paused = asyncio.get_running_loop().create_future()
        self._signal_room()
        self._settler.nudge()
        if self._receiving:
            self._fetcher.cancel()  # messages received meanwhile go back to the queue
        await self._paused

    def resume(self) -> None:
        """End a pause."""
        self._resumed.set()

    async def stop_receiving(self) -> None:
        """Stop receiving; messages that have not started are given back, uncounted."""
        self._stopping.set()
        self._resumed.set()
        if not self._waiting:  # idle slots end at once, however long the broker takes
            self._wake_all()
        await self._subscription.close()
        if self._fetcher is not None:
            self._signal_room()
            self._settler.nudge()
            await asyncio.gather(self._fetcher, return_exceptions=True)
        self._counters.received -= len(self._waiting)
        while self._waiting:
            receipt = self._waiting.popleft().receipt
            self._settler.submit(Outcome(receipt, Release(receipt)))
        self._wake_all()

    async def wait_finished(self) -> None:
        """Wait until every started callback has returned. After ``stop_receiving``."""
        while self._slots:  # not gathered: a canceled wait must not cancel them
            await asyncio.wait(self._slots)

    def interrupt(self) -> None:
        """Cancel running callbacks: messages of async ones are given back; threads keep running."""
        for slot in self._slots:
            slot.cancel()

    # -- the fetcher ------------------------------------------------------------------------------

    async def _fetch(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._fetch_until_paused()
            except asyncio.CancelledError:
                if self._resumed.is_set() or self._stopping.is_set():
                    raise
                cast("asyncio.Task[None]", self._fetcher).uncancel()
            if self._resumed.is_set():
                return
            await self._stay_paused()

    def _is_held_up(self) -> bool:
        return self._stopping.is_set() or not self._resumed.is_set()

    async def _stay_paused(self) -> None:
        try:
            await self._give_back_waiting()
            if isinstance(self._subscription, Pausing):
                self._prefetch = self._concurrency  # pausing narrows it
                await self._subscription.pause()
        except Exception as error:  # noqa: BLE001 - the pause takes effect nevertheless
            log.warning("could not give back everything from %s: %s", self.queue, error)
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)
        await self._resumed.wait()

    async def _fetch_until_paused(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set() and self._resumed.is_set():
            limit = self._concurrency + self._ahead
            free = limit - self._busy - len(self._waiting)
            if free <= 0 or (self._waiting and 2 * free < limit):  # few at a time cost most
                await self._wait_for_room()
                continue
            most = 2 * limit + self._counted_ahead
            if self._settler.backlog > most:
                await self._settler.room(most, unless=self._is_held_up)
                continue
            try:
                began = self.last_poll
                stalls = self._leases.beat() if self._leases is not None else 0
                self._receiving = True
                deliveries = await self._subscription.receive(free)
                self._receiving = False
                self.last_poll = self._clock.monotonic()
                if not deliveries:
                    return
                if self._leases is not None and self.last_poll - began >= self._leases.certain:
                    self._doubtful = len(self._waiting)
                # A blocked event loop may have delayed the broker's reply for longer than a lease.
                self._received_late = self._leases is not None and self._leases.beat() != stalls
                suspect = self._suspects.first_suspect(deliveries)
                if suspect is not None:
                    await self._accept_alone(suspect, deliveries)
                else:
                    self._accept(deliveries)  # first: received messages must not be lost
                    if self._reads_ahead:
                        await self._measure()
            except Exception as error:  # noqa: BLE001 - other consumers continue
                if self._stopping.is_set():
                    return
                log.warning(
                    "could not receive from %s, trying again in %.2f s: %s",
                    self.queue,
                    pause,
                    error,
                )
                await self._pause(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause = _FIRST_PAUSE
            finally:
                self._receiving = False

    async def _measure(self) -> None:
        """Decide how many messages to read ahead from the speed of the callbacks."""
        handled = self.handled - self._measured
        elapsed = self.last_poll - self._measured_at
        enough = handled >= 2 * self._concurrency
        if not enough and elapsed < _MEASURE_FOR:
            return
        self._measured, self._measured_at = self.handled, self.last_poll
        if not enough and self._busy < self._concurrency:
            return  # too few messages to measure the callbacks
        soon = int(handled / max(elapsed, 1e-6) * _AHEAD_SECONDS)
        if isinstance(self._subscription, ReadingAhead):
            self._counted_ahead = min(soon, MOST_COUNTED)
            self._subscription.read_ahead(self._counted_ahead)
        if self._concurrency == 1:
            return  # one message at a time: another worker may take the next one
        most = max(0, MOST_HELD - self._concurrency)
        self._ahead = min(soon, most)
        if self._ahead == most:
            await self._adjust_prefetch(max(self._concurrency, MOST_HELD))
        elif self._ahead < most // 2:
            await self._adjust_prefetch(self._concurrency)

    async def _adjust_prefetch(self, prefetch: int) -> None:
        """Set the prefetch. If that fails, receiving continues, and it is retried later."""
        if self.last_poll < self._adjust_again_at:
            return
        try:
            await self._set_prefetch(prefetch)
        except Exception as error:  # noqa: BLE001 - a wrong prefetch loses nothing
            self._adjust_again_at = self.last_poll + _ADJUST_AGAIN
            log.warning(
                "could not set the prefetch to %d for %s, trying again in %.0f s: %s",
                prefetch,
                self.queue,
                _ADJUST_AGAIN,
                error,
            )

    async def _set_prefetch(self, prefetch: int) -> None:
        if prefetch != self._prefetch and isinstance(self._subscription, Prefetching):
            await self._subscription.set_prefetch(prefetch)
            self._prefetch = prefetch

    async def _wait_for_room(self) -> None:
        """Wait until a slot is free. Messages that waited for too long are given back to other
        workers."""
        loop = asyncio.get_running_loop()
        self._room = room = loop.create_future()
        timer = loop.call_later(_LONGEST_WAIT, self._signal_room) if self._waiting else None
        try:
            await room
        finally:
            if timer is not None:
                timer.cancel()
        if self._waiting and self._clock.monotonic() - self.last_poll >= _LONGEST_WAIT:
            try:  # first, or the broker would push them again
                await self._set_prefetch(self._concurrency)
            except Exception as error:  # noqa: BLE001 - they go back nevertheless
                log.warning("could not reduce the prefetch of %s: %s", self.queue, error)
            await self._give_back_waiting()

    async def _give_back_waiting(self) -> None:
        """Give back received messages that have not started."""
        self._ahead = self._counted_ahead = 0
        waiting = list(self._waiting)
        self._waiting.clear()
        self._doubtful = 0
        self._counters.received -= len(waiting)
        self._activity.finished_processing(len(waiting))
        await self._give_back(waiting)

    async def _accept_alone(self, suspect: Delivery, deliveries: Sequence[Delivery]) -> None:
        """Handle the suspect, and nothing else until it is finished."""
        alone = self._suspects.alone
        await self._give_back_waiting()
        if isinstance(self._subscription, Pausing):
            self._prefetch = self._concurrency  # pausing narrows it
            try:
                await self._subscription.pause()  # or a crash would count for pushed messages
            except Exception as error:  # noqa: BLE001 - received messages must not be lost
                log.warning("could not pause receiving from %s: %s", self.queue, error)
        if alone.locked():  # held by the suspect of another queue
            await self._give_back(deliveries)
            async with alone:
                return
        async with alone:
            await self._give_back([one for one in deliveries if one is not suspect])
            self._suspect = suspect
            self._accept([suspect])
            try:
                async with asyncio.timeout(ALONE_AT_MOST):
                    while self._suspect is suspect and not self._is_held_up():
                        self._room = asyncio.get_running_loop().create_future()
                        await self._room
            except TimeoutError:
                self._suspect = None
                log.warning(
                    "%s: a message that was delivered %d times is still being handled after %g s; "
                    "others are handled beside it from now on",
                    self.queue,
                    suspect.receipt.delivery_count,
                    ALONE_AT_MOST,
                )
            await asyncio.sleep(0)  # its settlement is on its way before the next one is claimed

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        releases = [Release(delivery.receipt) for delivery in deliveries]
        errors = await asyncio.gather(*map(self._settler.settle_now, releases))
        for release, error in zip(releases, errors, strict=True):
            if error is not None:  # tried again, or the broker would count it as held by us
                self._activity.processing += 1
                self._settler.submit(Outcome(release.receipt, release))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        self._activity.processing += len(deliveries)
        self._counters.received += len(deliveries)
        self._counters.last_message_at = self._clock.time()
        if self._leases is not None:
            for delivery in deliveries:
                self._leases.hold(delivery.receipt)
        self._waiting.extend(deliveries)
        if self._received_late:
            self._doubtful = len(self._waiting)
        self._wake()

    # -- the slots --------------------------------------------------------------------------------

    def _make_slots(self) -> None:
        for _ in range(self._concurrency - len(self._slots)):
            slot = asyncio.create_task(self._slot(), name=f"{SLOT}-{self.queue}")
            self._slots.add(slot)
            slot.add_done_callback(self._slot_ended)

    def _slot_ended(self, slot: asyncio.Task[None]) -> None:
        self._slots.discard(slot)
        if not slot.cancelled() and isinstance(slot.exception(), GeneratorExit):
            self._make_slots()

    def _torn(self, delivery: Delivery) -> None:
        """Handle a ``GeneratorExit`` raised by an awaitable of a callback, which destroys the task.

        Python also raises it in a task that is garbage-collected with its event loop; then nothing
        can be done.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self._settler.submit(self._handler.give_up(delivery, "its task was torn down"))

    def _unprocessed(self, delivery: Delivery, error: Exception) -> Outcome:
        """Settle a message after an unexpected error. Handlers raise nothing, so this is a bug in
        one, or in the code around it."""
        log.error("a message of %s could not be processed", self.queue, exc_info=loggable(error))
        reason = f"{type(error).__name__}: {error_text(error)}"
        return self._handler.give_up(delivery, storable_text(reason))

    async def _slot(self) -> None:
        while True:
            try:
                await self._work()
                return
            except asyncio.CancelledError:
                if self._interruption.happened:
                    return
                # A callback canceled this task, and the request arrived after the callback had
                # returned.
                await self._interruption.forgive()

    async def _work(self) -> None:
        me = cast("asyncio.Task[None]", asyncio.current_task())
        waiting, leases, monotonic = self._waiting, self._leases, self._clock.monotonic
        process, submit = self._handler.process, self._settler.submit
        self._waking = False
        while True:
            while waiting:
                delivery = waiting.popleft()
                self._busy += 1
                if not waiting and self._busy < self._concurrency:
                    self._signal_room()
                elif waiting and not self._waking:  # because this one may wait for something
                    self._wake()
                try:
                    if leases is not None and (
                        self._doubtful or monotonic() - self.last_poll >= leases.certain
                    ):  # the process was frozen, its event loop blocked, or the message waited
                        self._doubtful = max(0, self._doubtful - 1)
                        outcome = await self._confirmed(leases, delivery)
                    else:
                        outcome = await process(delivery)
                except asyncio.CancelledError:
                    if self._interruption.happened:
                        raise
                    outcome = Outcome(delivery.receipt, Release(delivery.receipt))
                except GeneratorExit:
                    self._torn(delivery)
                    raise
                except Exception as error:  # noqa: BLE001 - it would end the slot unnoticed
                    outcome = self._unprocessed(delivery, error)
                finally:
                    self._busy -= 1
                    if delivery is self._suspect:
                        self._suspect = None
                    if self._room is not None:
                        self._signal_room()
                self.handled += 1
                if me.cancelling():
                    if self._interruption.loop_is_ending:
                        return  # the settler is being canceled, too
                    self._settler.submit(outcome)
                    if self._interruption.happened:
                        return
                    await self._interruption.forgive()
                else:
                    submit(outcome)
            if self._stopping.is_set():
                return
            if len(self._slots) > self._concurrency:
                # Remove it at once: other woken slots check the set in the same iteration.
                self._slots.discard(me)
                return
            free = asyncio.get_running_loop().create_future()
            self._idle.append(free)
            await free
            self._waking = False

    async def _confirmed(self, leases: LeaseKeeper, delivery: Delivery) -> Outcome:
        """Handle a delivery if its lease is still valid; otherwise, do not start it."""
        if await leases.confirm(delivery.receipt):
            return await self._handler.process(delivery)
        return Outcome(delivery.receipt, None)

    def _wake(self) -> None:
        """Wake one slot; it wakes the next if there is more to do than it can take at once."""
        while self._idle:
            slot = self._idle.pop()
            if not slot.done():
                self._waking = True
                slot.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._idle:
            self._wake()

    def _signal_room(self) -> None:
        if self._room is not None:
            if not self._room.done():
                self._room.set_result(None)
            self._room = None
