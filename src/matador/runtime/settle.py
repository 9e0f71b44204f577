"""Settles handled messages in batches, and makes sure that every settlement ends.

Temporary failures (a lost connection, a full disk) are retried. A settlement that the broker can
never store is replaced by a simpler form, down to one that always fits.
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
"""Errors that are not caused by the settlement: it is retried for as long as they last."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a delivery: the settlement, and what to do once it is settled.

    Attributes:
        receipt: the receipt of the delivery.
        settlement: what the transport must do. None leaves the message unacknowledged: its lease
            expires.
        attempt: the fact to tell hooks about once the settlement is safe.
        then: runs once the settlement is safe.
        simpler: makes the outcome to settle instead if the broker can never store this one.
        tries: counts failures for unknown reasons, and refusals of a retry by a full queue, over
            all forms.
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

    ``letter`` makes the settlement that keeps it, if it is not the ``DeadLetter`` itself.
    """
    bare = letter(DeadLetter(receipt, kind, AS_IT_ARRIVED, bare=True))
    fixed = letter(DeadLetter(receipt, kind, AS_IT_ARRIVED))
    last = Outcome(receipt, bare, attempt, then)
    second = Outcome(receipt, fixed, attempt, then, lambda: last)
    first = letter(DeadLetter(receipt, kind, reason))
    return Outcome(receipt, first, attempt, then, lambda: second)


class Handler(Protocol):
    """Processes deliveries. Called by many slots concurrently."""

    async def process(self, delivery: Delivery, /) -> Outcome:
        """Handle a delivery. Every error becomes an outcome; only a cancellation is raised."""
        ...

    def give_up(self, delivery: Delivery, reason: str, /) -> Outcome:
        """The outcome of a delivery whose task was destroyed while it was being handled."""
        ...


class Settler:
    """Carries out settlements. Each flush takes all outcomes submitted during the previous one.

    A settlement that fails temporarily is retried with growing delays for as long as the
    application runs: dropping it would run the message twice. A settlement that can never succeed
    is replaced by its simpler form. The same applies to one that keeps failing for an unknown
    reason, and to a retry that a full queue keeps refusing.
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
        """The number of outcomes that are not settled yet."""
        return self._waiting

    def submit(self, outcome: Outcome) -> None:
        """Settle in the next batch. After ``abandon``, nothing is settled any more."""
        if self._abandoned:
            return
        self._waiting += 1
        self._pending.append(outcome)
        if self._flusher is None:
            self._start_flusher()

    async def settle_now(self, settlement: Settlement) -> MatadorError | None:
        """Settle at once, without retries; return None or the error."""
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
        """Make callers that wait in ``room`` check their ``unless`` again."""
        self._wake()

    def abandon(self) -> int:
        """Abandon unsettled outcomes: their messages stay unacknowledged. Returns their number."""
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
        """Settle a batch; return the outcomes to retry after a delay, and those to settle in a
        simpler form."""
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
        for (
            queue,
            text,
        ), number in why.items():  # one line for all outcomes
            what = "a message" if number == 1 else f"{number} messages"
            log.error("could not settle %s of %s, trying again: %s", what, queue, text)
        await self._settled(settled)
        self._done(len(settled) + lost)
        return failed, simpler

    async def _settled(self, outcomes: Sequence[Outcome]) -> None:
        """Report settled attempts to hooks, then run the follow-up steps."""
        tell = self._hooks.attempted
        if tell is not None:
            attempts = [o.attempt for o in outcomes if o.attempt is not None]
            if attempts and (waiting := tell(attempts)) is not None:
                await waiting
        following = [o.then for o in outcomes if o.then is not None]
        if following:  # concurrently: a slow step delays its batch only once
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
        except Exception as error:  # noqa: BLE001 - one outcome may have made the transport fail
            if len(settlements) > 1:  # the others can be settled separately
                return [(await self._settle([one]))[0] for one in settlements]
            return [TransportError(f"{type(error).__name__}: {error}")]

    def _try_again(self, failed: Sequence[Outcome]) -> None:
        """Retry after a delay: that of the settler, or that of the outcome if the reason is
        unknown."""
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
        log.exception("a message is settled, but its follow-up step failed")


def _own_pause(outcome: Outcome) -> float:
    """The delay after a failure that counts, independent of other outcomes.

    The delays of a dead letter keep growing across its forms. Otherwise messages would lose their
    ids and headers after a dead-letter queue was unavailable for three seconds. Now that takes 50
    seconds.
    """
    tries = outcome.tries - 1
    if not isinstance(outcome.settlement, DeadLetter):
        tries %= _MOST_TRIES
    return min(_FIRST_PAUSE * 2 ** min(tries, 10), _LONGEST_PAUSE)


def _next(outcome: Outcome, error: MatadorError) -> Outcome:
    """The outcome to settle after a failure: the same again, or its simpler form."""
    counts = not isinstance(error, (UnstorableError, *_PASSING)) or _is_full(outcome, error)
    tries = outcome.tries + 1 if counts else outcome.tries
    queue = outcome.receipt.queue
    enough = isinstance(error, UnstorableError) or (counts and tries % _MOST_TRIES == 0)
    if outcome.simpler is not None and enough:
        log.error("could not settle a message of %s, trying a simpler form: %s", queue, error)
        return msgspec.structs.replace(outcome.simpler(), tries=tries)
    return msgspec.structs.replace(outcome, tries=tries) if counts else outcome


def _is_full(outcome: Outcome, error: MatadorError) -> bool:
    """Whether the queue of a retry has no room for it, which may be permanent.

    The worker holds the message until its retry is stored, and a worker at its limit receives no
    messages, so it cannot make room. A dead letter has no simpler form that goes elsewhere.
    """
    if not isinstance(outcome.settlement, Retry):
        return False
    return isinstance(error, SendRefusedError) and error.queue is not None
