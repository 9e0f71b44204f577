"""Settles what was handled, in batches, and sees to it that every settlement ends.

What fails for a reason that passes (the connection, a full disk) is tried again. What the broker
can never store is settled in a simpler form instead, down to one that always fits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from matador.errors import (
    AllTransportsFailedError,
    ConnectionFailedError,
    LeaseLostError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    SendFailedError,
    SendRefusedError,
    StorageFullError,
    StorageLockedError,
    TimeoutError,
    TransportError,
    UnstorableError,
)
from matador.model.message import DeadLetter, Delivery, Receipt, Retry, Settlement
from matador.model.topology import DeadLetterKind
from matador.runtime.activity import Activity
from matador.runtime.facts import Attempt
from matador.runtime.hooks import HookSet
from matador.runtime.leases import LeaseKeeper
from matador.transports.base import Transport

log = logging.getLogger("matador.worker")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
_MAX_BATCH = 1000
_MOST_TRIES = 5

_PASSING = (
    AllTransportsFailedError,
    ConnectionFailedError,
    NotConnectedError,
    QueueNotFoundError,
    SendFailedError,
    StorageFullError,
    StorageLockedError,
    TimeoutError,
)
"""Errors that say nothing against the settlement: it is tried again for as long as they last."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How a delivery ended: what the transport must do, and what follows once that is done.

    Attributes:
        receipt: the receipt of the delivery.
        settlement: what the transport must do. None leaves the message unacknowledged: its lease
            runs out.
        attempt: the fact to tell hooks about once the settlement is safe.
        then: runs once the settlement is safe.
        simpler: makes the outcome to settle instead if the broker can never store this one.
        tries: counts failures for an unknown reason, and refusals of a retry by a full queue, in
            all forms together.
    """

    receipt: Receipt
    settlement: Settlement | None
    attempt: Attempt | None = None
    then: Callable[[], Awaitable[None]] | None = None
    simpler: Callable[[], Outcome] | None = None
    tries: int = 0


AS_IT_ARRIVED = "kept as it arrived: the broker could not store it together with its error"
"""The reason of a dead letter that did not fit with its own."""


def kept_as_it_arrived(
    receipt: Receipt,
    kind: DeadLetterKind,
    reason: str,
    attempt: Attempt | None = None,
    then: Callable[[], Awaitable[None]] | None = None,
    letter: Callable[[DeadLetter], Settlement | None] = lambda made: made,
) -> Outcome:
    """A dead letter of the raw message; with a fixed reason, then bare, if that does not fit.

    ``letter`` makes the settlement that keeps it, if that is another one.
    """
    bare = letter(DeadLetter(receipt, kind, AS_IT_ARRIVED, bare=True))
    fixed = letter(DeadLetter(receipt, kind, AS_IT_ARRIVED))
    last = Outcome(receipt, bare, attempt, then)
    second = Outcome(receipt, fixed, attempt, then, lambda: last)
    first = letter(DeadLetter(receipt, kind, reason))
    return Outcome(receipt, first, attempt, then, lambda: second)


class Handler(Protocol):
    """What the runtime calls for each delivery. Called by many slots at once."""

    async def process(self, delivery: Delivery, /) -> Outcome:
        """Handle a delivery. Whatever happens is an outcome; nothing is raised but cancellation."""
        ...

    def give_up(self, delivery: Delivery, reason: str, /) -> Outcome:
        """The outcome of a delivery whose task was destroyed while it was being handled."""
        ...


class Settler:
    """Carries out settlements. Each flush takes all that has gathered while the last one ran.

    A settlement that fails for a reason that passes is tried again, with growing pauses, for as
    long as the application runs: forgetting it would run the message twice. One that can never
    succeed gives way to its simpler form; so does one that fails for an unknown reason again and
    again, and a retry that a full queue keeps refusing.
    """

    def __init__(
        self,
        transport: Transport,
        activity: Activity,
        leases: LeaseKeeper | None = None,
        on_error: Callable[[Receipt, MatadorError], None] | None = None,
        hooks: HookSet | None = None,
    ) -> None:
        self._on_error = on_error
        self._hooks = hooks or HookSet()
        self._transport = transport
        self._activity = activity
        self._leases = leases
        self._pending: list[Outcome] = []
        self._flusher: asyncio.Task[None] | None = None
        self._again: set[asyncio.TimerHandle] = set()
        self._waiting = 0
        self._room: list[asyncio.Future[None]] = []
        self._pause = _FIRST_PAUSE
        self._abandoned = False

    @property
    def backlog(self) -> int:
        """Outcomes that are not settled yet."""
        return self._waiting

    def submit(self, outcome: Outcome) -> None:
        """Settle in the next batch. After ``abandon`` nothing is settled any more."""
        if self._abandoned:
            return
        self._waiting += 1
        self._pending.append(outcome)
        if self._flusher is None:
            self._start_flusher()

    async def settle_now(self, settlement: Settlement) -> MatadorError | None:
        """Settle and wait for it: why it could not be, or None. Not tried again."""
        leases = self._leases
        if leases is None:
            return (await self._settle([settlement]))[0]
        with leases.settling([settlement.receipt]):
            error = (await self._settle([settlement]))[0]
            if error is None:
                leases.let_go(settlement.receipt)
        return error

    async def room(self, most: int, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until at most ``most`` outcomes are unsettled, or ``unless`` holds after a nudge."""
        while self._waiting > most and not unless():
            waiter = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            await waiter

    async def drain(self) -> None:
        """Wait until everything is settled."""
        await self.room(0)

    def nudge(self) -> None:
        """Have those who wait for room look at their ``unless`` again."""
        self._wake()

    def abandon(self) -> int:
        """Give up on what is not settled: it stays unacknowledged. Says how many there were."""
        self._abandoned = True
        for timer in self._again:
            timer.cancel()
        self._again.clear()
        self._pending.clear()
        if self._flusher is not None:
            self._flusher.cancel()
        left, self._waiting = self._waiting, 0
        self._activity.finished_processing(left)
        self._wake()
        return left

    def _start_flusher(self) -> None:
        self._flusher = asyncio.create_task(self._flush(), name="matador-settler")

    async def _flush(self) -> None:
        try:
            while self._pending:
                batch = self._pending[:_MAX_BATCH]
                del self._pending[:_MAX_BATCH]
                if self._leases is None:
                    failed, simpler = await self._flush_batch(batch)
                else:
                    with self._leases.settling([outcome.receipt for outcome in batch]):
                        failed, simpler = await self._flush_batch(batch)
                self._pending[:0] = simpler
                if failed:
                    self._try_again(failed)
                    self._pause = min(self._pause * 2, _LONGEST_PAUSE)
                else:
                    self._pause = _FIRST_PAUSE
        finally:
            self._flusher = None

    async def _flush_batch(self, batch: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
        """Settle a batch: those to try again after a pause, and those to settle in simpler form."""
        errors = await self._settle([o.settlement for o in batch if o.settlement is not None])
        if not any(errors):
            if self._leases is not None:
                self._leases.let_go_all([o.receipt for o in batch])
            await self._settled(batch)
            self._done(len(batch))
            return [], []
        position = 0
        settled: list[Outcome] = []
        failed: list[Outcome] = []
        simpler: list[Outcome] = []
        why: dict[tuple[str, str], int] = {}
        lost = 0
        for outcome in batch:
            error: MatadorError | None = None
            if outcome.settlement is not None:
                error = errors[position]
                position += 1
            if error is not None and self._on_error is not None:
                self._on_error(outcome.receipt, error)
            if error is not None and not isinstance(error, LeaseLostError):
                next_ = _next(outcome, error)
                if next_.settlement is outcome.settlement:
                    failed.append(next_)
                    key = (outcome.receipt.queue, str(error))
                    why[key] = why.get(key, 0) + 1
                else:
                    simpler.append(next_)
                continue
            if self._leases is not None:
                self._leases.let_go(outcome.receipt)
            if error is None:
                settled.append(outcome)
            else:
                lost += 1
                log.warning("a message of %s was not settled: %s", outcome.receipt.queue, error)
        for (queue, text), number in why.items():  # one line, however many wait for a broker
            what = "a message" if number == 1 else f"{number} messages"
            log.error("could not settle %s of %s, trying again: %s", what, queue, text)
        await self._settled(settled)
        self._done(len(settled) + lost)
        return failed, simpler

    async def _settled(self, outcomes: Sequence[Outcome]) -> None:
        """Tell hooks what was settled, then do what follows."""
        tell = self._hooks.attempted
        if tell is not None:
            attempts = [o.attempt for o in outcomes if o.attempt is not None]
            if attempts and (waiting := tell(attempts)) is not None:
                await waiting
        following = [o.then for o in outcomes if o.then is not None]
        if following:  # side by side: one that waits holds up its batch only once
            await asyncio.gather(*map(_afterwards, following))

    def _done(self, number: int) -> None:
        self._waiting -= number
        self._activity.finished_processing(number)
        self._wake()

    async def _settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        if not settlements:
            return ()
        try:
            return await self._transport.settle(settlements)
        except MatadorError as error:
            return [error] * len(settlements)
        except Exception as error:  # noqa: BLE001 - one may have been too much for the transport
            if len(settlements) > 1:  # the others are none the worse for it
                return [(await self._settle([one]))[0] for one in settlements]
            return [TransportError(f"{type(error).__name__}: {error}")]

    def _try_again(self, failed: Sequence[Outcome]) -> None:
        """After a pause: that of the settler, or of the outcome if nobody knows why it fails."""
        passing = [outcome for outcome in failed if not outcome.tries]
        if passing:
            self._later(passing, self._pause)
        for outcome in failed:
            if outcome.tries:
                self._later([outcome], _own_pause(outcome))

    def _later(self, outcomes: Sequence[Outcome], pause: float) -> None:
        def again() -> None:
            self._again.discard(timer)
            self._pending.extend(outcomes)
            if self._flusher is None:
                self._start_flusher()

        timer = asyncio.get_running_loop().call_later(pause, again)
        self._again.add(timer)

    def _wake(self) -> None:
        if self._room:
            waiters, self._room = self._room, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


async def _afterwards(then: Callable[[], Awaitable[None]]) -> None:
    try:
        await then()
    except Exception:
        log.exception("a message is settled, but what was to be done afterwards failed")


def _own_pause(outcome: Outcome) -> float:
    """How long to wait after a failure that counts, whatever else succeeds meanwhile.

    The pauses of a dead letter grow on from form to form. Otherwise a dead-letter queue that is out
    of order for three seconds would cost messages their ids and headers. It now takes 50 seconds.
    """
    tries = outcome.tries - 1
    if not isinstance(outcome.settlement, DeadLetter):
        tries %= _MOST_TRIES
    return min(_FIRST_PAUSE * 2 ** min(tries, 10), _LONGEST_PAUSE)


def _next(outcome: Outcome, error: MatadorError) -> Outcome:
    """What to settle after a failure: the same again, or its simpler form."""
    counts = not isinstance(error, (UnstorableError, *_PASSING)) or _is_full(outcome, error)
    tries = outcome.tries + 1 if counts else outcome.tries
    queue = outcome.receipt.queue
    enough = isinstance(error, UnstorableError) or (counts and tries % _MOST_TRIES == 0)
    if outcome.simpler is not None and enough:
        log.error("could not settle a message of %s, trying a simpler form: %s", queue, error)
        return msgspec.structs.replace(outcome.simpler(), tries=tries)
    return msgspec.structs.replace(outcome, tries=tries) if counts else outcome


def _is_full(outcome: Outcome, error: MatadorError) -> bool:
    """Whether the queue of a retry has no room for it, which need not pass by itself.

    The worker holds the message until its retry is stored, and a worker that holds all it may
    receives nothing that would make room. A dead letter has no simpler form that goes elsewhere.
    """
    if not isinstance(outcome.settlement, Retry):
        return False
    return isinstance(error, SendRefusedError) and error.queue is not None
