"""Consumes one queue: grants credits, receives, and hands deliveries to long-lived slots."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import cast

from matador.model.message import Delivery, Release
from matador.runtime.activity import Activity
from matador.runtime.interruption import Interruption
from matador.runtime.leases import LeaseKeeper
from matador.runtime.settle import Handler, Outcome, Settler
from matador.runtime.suspects import ALONE_AT_MOST, Suspects
from matador.transports.base import Pausing, Subscription
from matador.transports.clock import Clock

log = logging.getLogger("matador.worker")

SLOT = "matador-slot"
"""What the names of the tasks that run callbacks start with."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0


class Consumer:
    """As many slots as the queue's concurrency, and one fetcher that keeps them busy.

    Never more is received than slots are free. A slot is free again as soon as its callback has
    returned: settling goes on beside the next message, so that both can share one round trip; at
    most twice the concurrency waits to be settled.
    """

    def __init__(
        self,
        subscription: Subscription,
        *,
        concurrency: int,
        handler: Handler,
        settler: Settler,
        leases: LeaseKeeper | None,
        suspects: Suspects,
        interruption: Interruption,
        activity: Activity,
        clock: Clock,
    ) -> None:
        self._subscription = subscription
        self._concurrency = concurrency
        self._handler = handler
        self._settler = settler
        self._leases = leases
        self._suspects = suspects
        self._interruption = interruption
        self._suspect: Delivery | None = None
        self._activity = activity
        self._clock = clock
        self._waiting: deque[Delivery] = deque()
        self._busy = 0
        self._idle: list[asyncio.Future[None]] = []
        self._waking = False
        self._slots: set[asyncio.Task[None]] = set()
        self._fetcher: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._stopping = asyncio.Event()
        self.last_poll = clock.monotonic()
        self.handled = 0

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

    def start(self) -> None:
        """Start to receive."""
        self._make_slots()
        self._fetcher = asyncio.create_task(self._fetch(), name=f"matador-fetch-{self.queue}")

    def resize(self, concurrency: int) -> None:
        """Change how many messages are handled at once; running ones are not disturbed."""
        if concurrency == self._concurrency:
            return
        log.info("%s: concurrency %d -> %d", self.queue, self._concurrency, concurrency)
        self._concurrency = concurrency
        self._make_slots()
        self._wake_all()
        self._signal_room()

    async def stop_receiving(self) -> None:
        """Receive no more; what has not started yet is given back, uncounted."""
        self._stopping.set()
        await self._subscription.close()
        if self._fetcher is not None:
            self._signal_room()
            self._settler.nudge()
            await asyncio.gather(self._fetcher, return_exceptions=True)
        while self._waiting:
            receipt = self._waiting.popleft().receipt
            self._settler.submit(Outcome(receipt, Release(receipt)))
        self._wake_all()

    async def wait_finished(self) -> None:
        """Wait until every started callback has returned. After ``stop_receiving``."""
        while self._slots:  # not gathered: who gives up waiting does not cancel them
            await asyncio.wait(self._slots)

    def interrupt(self) -> None:
        """Cancel running callbacks: async ones are given back, threads are left to themselves."""
        for slot in self._slots:
            slot.cancel()

    # -- the fetcher ------------------------------------------------------------------------------

    async def _fetch(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            free = self._concurrency - self._busy - len(self._waiting)
            if free <= 0:
                self._room = asyncio.get_running_loop().create_future()
                await self._room
                continue
            if self._settler.backlog > 2 * self._concurrency:
                await self._settler.room(2 * self._concurrency, unless=self._stopping.is_set)
                continue
            try:
                deliveries = await self._subscription.receive(free)
                self.last_poll = self._clock.monotonic()
                if not deliveries:
                    return
                suspect = self._suspects.first_suspect(deliveries)
                if suspect is None:
                    self._accept(deliveries)
                else:
                    await self._accept_alone(suspect, deliveries)
            except Exception as error:  # noqa: BLE001 - whatever it is, others go on receiving
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

    async def _accept_alone(self, suspect: Delivery, deliveries: Sequence[Delivery]) -> None:
        """Take up the suspect, and nothing else until it is done."""
        alone = self._suspects.alone
        if isinstance(self._subscription, Pausing):
            try:
                await self._subscription.pause()  # or a crash would count for what it holds unseen
            except Exception as error:  # noqa: BLE001 - what was received must not be forgotten
                log.warning("could not pause receiving from %s: %s", self.queue, error)
        if alone.locked():  # by another queue's suspect, whose crash must not count for ours
            await self._give_back(deliveries)
            async with alone:
                return
        async with alone:
            await self._give_back([one for one in deliveries if one is not suspect])
            self._suspect = suspect
            self._accept([suspect])
            try:
                async with asyncio.timeout(ALONE_AT_MOST):
                    while self._suspect is suspect and not self._stopping.is_set():
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
        if self._leases is not None:
            for delivery in deliveries:
                self._leases.hold(delivery.receipt)
        self._waiting.extend(deliveries)
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
        """A callback awaited something that raised ``GeneratorExit``, which tears down its task.

        Python does the same to a task that is thrown away together with its event loop: then
        there is nothing to be done.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self._settler.submit(self._handler.give_up(delivery, "its task was torn down"))

    async def _slot(self) -> None:
        while True:
            try:
                await self._work()
                return
            except asyncio.CancelledError:
                if self._interruption.happened:
                    return
                # A callback had this task cancelled, and the request came after it had returned.
                await self._interruption.forgive()

    async def _work(self) -> None:
        me = cast("asyncio.Task[None]", asyncio.current_task())
        waiting, leases, monotonic = self._waiting, self._leases, self._clock.monotonic
        self._waking = False
        while True:
            while waiting:
                delivery = waiting.popleft()
                self._busy += 1
                if waiting and not self._waking:  # in case this one has to wait for something
                    self._wake()
                try:
                    if leases is not None and monotonic() - self.last_poll >= leases.certain:
                        # The process was frozen, or its event loop blocked.
                        outcome = await self._confirmed(leases, delivery)
                    else:
                        outcome = await self._handler.process(delivery)
                except asyncio.CancelledError:
                    if self._interruption.happened:
                        raise
                    outcome = Outcome(delivery.receipt, Release(delivery.receipt))
                except GeneratorExit:
                    self._torn(delivery)
                    raise
                finally:
                    self._busy -= 1
                    if delivery is self._suspect:
                        self._suspect = None
                    if self._room is not None:
                        self._signal_room()
                self.handled += 1
                if me.cancelling():
                    if self._interruption.loop_is_ending:
                        return  # what would settle it is being cancelled, too
                    self._settler.submit(outcome)
                    if self._interruption.happened:
                        return
                    await self._interruption.forgive()
                else:
                    self._settler.submit(outcome)
            if self._stopping.is_set():
                return
            if len(self._slots) > self._concurrency:
                # Out of the set at once: others that were woken look at it in the same turn.
                self._slots.discard(me)
                return
            free = asyncio.get_running_loop().create_future()
            self._idle.append(free)
            await free
            self._waking = False

    async def _confirmed(self, leases: LeaseKeeper, delivery: Delivery) -> Outcome:
        """Handle a delivery that is still ours; one that is not is not begun."""
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
