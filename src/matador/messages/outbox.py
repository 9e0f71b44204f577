"""Sends plain messages: together where they come together, through a buffer and a circuit breaker.

What a caller awaits is its own outcome: nothing counts as sent before the broker has confirmed it.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate, count
from typing import Any, TypeAlias

import msgspec

from matador.errors import (
    BufferExpiredError,
    BufferFullError,
    CircuitOpenError,
    ConnectionFailedError,
    MatadorError,
    NotConnectedError,
    SendUnconfirmedError,
    ShuttingDownError,
    StorageFullError,
    StorageLockedError,
    TransportClosedError,
    UnsupportedError,
)
from matador.messages.recording import MessageRecording
from matador.model.message import ConnectionState, Message
from matador.model.options import seconds
from matador.policy.circuit import Circuit, CircuitBreaker, CircuitState
from matador.policy.recovery import Recovery
from matador.transports.base import Pipelining, Routing, Transport
from matador.transports.clock import Clock, SystemClock
from matador.transports.coalescer import Coalescer

log = logging.getLogger("matador.messages")

_MAX_BATCH = 1000
_CLOSED = "it was closed, so nothing can be sent any more"
_UNCONFIRMED = "it was closed before the broker confirmed the message, which may be stored"

_NOT_SENT = (NotConnectedError, TransportClosedError)
"""Errors of a message that was not sent because there is no connection."""

_COUNTED = (
    *_NOT_SENT,
    ConnectionFailedError,
    SendUnconfirmedError,
    StorageFullError,
    StorageLockedError,
)
"""Errors that say something against the broker, and not against the message."""


_Outcomes: TypeAlias = Sequence[int | MatadorError]
"""For each parcel: in how many queues it is, or why in none."""


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """A message, and the exchange it is published to; None: it goes to its queue."""

    message: Message
    exchange: str | None = None


class _Waiting(msgspec.Struct, gc=False):
    place: int
    parcel: Parcel
    until: float
    outcome: asyncio.Future[int]


class Outbox:
    """Sends through one transport. Made by ``open``, ended by ``close``.

    Args:
        transport: a connected transport.
        recovery: the buffer for the time without a connection.
        breaker: the circuit breaker; None: none.
        clock: where time comes from.
        on_state: called with each new state of the circuit breaker.
        recording: records what was sent; None: nothing does.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        recovery: Recovery | None = None,
        breaker: CircuitBreaker | None = None,
        clock: Clock | None = None,
        on_state: Callable[[CircuitState], object] = lambda _: None,
        recording: MessageRecording | None = None,
    ) -> None:
        self._carry = self._carried if recording is None else recording.sending(self._carried)
        self._transport = transport
        self._recovery = recovery or Recovery()
        self._ttl = seconds(self._recovery.ttl, "Recovery: ttl")
        self._circuit = None if breaker is None else Circuit(breaker)
        self._clock = clock or SystemClock()
        self._on_state = on_state
        at_once = transport.sends_at_once if isinstance(transport, Pipelining) else 1
        size = transport.send_size if isinstance(transport, Pipelining) else _MAX_BATCH
        self._router = transport if isinstance(transport, Routing) else None
        self._sends: Coalescer[Sequence[Parcel], _Outcomes] = Coalescer(
            self._flush, max_batch=size, at_once=at_once
        )
        self._waiting: list[_Waiting] = []
        self._places = count()
        self._pump: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self._remove = transport.observe(self)

    # -- what it looks like -----------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """How many sends wait for the connection."""
        return len(self._waiting)

    @property
    def circuit(self) -> CircuitState | None:
        """The state of the circuit breaker; None: there is none."""
        return None if self._circuit is None else self._circuit.at(self._clock.monotonic()).state

    # -- sending ----------------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Store a message in its queue; returns once that is confirmed.

        Raises:
            BufferFullError, BufferExpiredError, CircuitOpenError: it was not sent.
            MatadorError: what the transport said.
        """
        await self._submit(Parcel(message))

    def publish(self, exchange: str, message: Message) -> Awaitable[int]:
        """Publish a message; returns in how many queues it was stored, once that is confirmed.

        Raises:
            BufferFullError, BufferExpiredError, CircuitOpenError: it was not sent.
            MatadorError: what the transport said.
        """
        return self._submit(Parcel(message, exchange))

    async def publish_many(
        self, messages: Sequence[tuple[str, Message]]
    ) -> list[int | BaseException]:
        """Publish messages to their exchanges, in order: what came of each, as in ``publish``."""
        if self._closed:
            raise ShuttingDownError(_CLOSED)
        parcels = [(next(self._places), Parcel(message, to)) for to, message in messages]
        outcomes: list[int | BaseException] = []
        if self._is_clear:
            whole = [parcel for _, parcel in parcels]
            batches = [whole[at : at + _MAX_BATCH] for at in range(0, len(whole), _MAX_BATCH)]
            sent = [self._sends.submit(batch) for batch in batches]
            found = await asyncio.gather(*sent, return_exceptions=True)
            for batch, each in zip(batches, found, strict=True):
                outcomes += [each] * len(batch) if isinstance(each, BaseException) else each
            for outcome in outcomes:
                if type(outcome) is not int or not self._is_sound:
                    self._note(outcome)
        else:
            outcomes = [NotConnectedError() for _ in parcels]
        if all(type(outcome) is int for outcome in outcomes):
            return outcomes
        return await self._wait_for_rest(parcels, outcomes)

    async def _wait_for_rest(
        self, parcels: Sequence[tuple[int, Parcel]], outcomes: list[int | BaseException]
    ) -> list[int | BaseException]:
        """Have those wait that were not sent for want of a connection."""
        waiting: dict[int, Awaitable[int]] = {}
        for at, (place, parcel) in enumerate(parcels):
            if isinstance(outcomes[at], _NOT_SENT) and not self._closed:
                try:
                    waiting[at] = self._wait_for_connection(place, parcel)
                except MatadorError as error:
                    outcomes[at] = error
        if waiting:
            found = await asyncio.gather(*waiting.values(), return_exceptions=True)
            for at, outcome in zip(waiting, found, strict=True):
                outcomes[at] = outcome
        return outcomes

    def begin(self, message: Message) -> asyncio.Future[int]:
        """Begin to send a message; the future has what ``send`` returns or raises.

        For callers who wait for something else, such as a reply. Cancelling the future takes a
        message that waits for the connection out of the buffer.
        """
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        place, parcel = next(self._places), Parcel(message)

        def sent(done: asyncio.Future[_Outcomes]) -> None:
            found: int | BaseException = ShuttingDownError()
            if not done.cancelled():
                found = done.exception() or done.result()[0]
            self._note(found)
            if outcome.done():
                return
            if isinstance(found, int):
                outcome.set_result(found)
            elif isinstance(found, NotConnectedError | TransportClosedError) and not self._closed:
                wait()  # nothing was stored
            else:
                _fail(outcome, found)

        def wait() -> None:
            try:
                self._wait_for_connection(place, parcel, outcome)
            except MatadorError as error:
                _fail(outcome, error)

        if self._closed:
            _fail(outcome, ShuttingDownError("it was closed, so nothing can be sent any more"))
        elif not self._waiting and self._is_away is None and self._room is None:
            self._sends.submit((parcel,)).add_done_callback(sent)
        else:
            wait()
        return outcome

    def _submit(self, parcel: Parcel) -> Awaitable[int]:
        """Begin to send. In the order of the calls, whatever happens meanwhile."""
        if self._closed:
            raise ShuttingDownError(_CLOSED)
        place = next(self._places)
        if self._is_clear:
            return self._sent_now(place, parcel)
        return self._wait_for_connection(place, parcel)

    @property
    def _is_clear(self) -> bool:
        """May a send start at once?"""
        return (
            not self._waiting
            and self._transport.state.status == "connected"
            and (self._circuit is None or self._circuit.state == "closed")
        )

    async def _sent_now(self, place: int, parcel: Parcel) -> int:
        (outcome,) = await self._sends.submit((parcel,))
        if isinstance(outcome, int):
            if not self._is_sound:
                self._note(outcome)
            return outcome
        self._note(outcome)
        if isinstance(outcome, _NOT_SENT) and not self._closed:
            return await self._wait_for_connection(place, parcel)  # nothing was stored
        raise outcome

    async def _flush(self, batches: Sequence[Sequence[Parcel]]) -> Sequence[_Outcomes]:
        """Send batches in order, all in one go."""
        outcomes = await self._flush_parcels([one for batch in batches for one in batch])
        if len(outcomes) == len(batches):
            return [(outcome,) for outcome in outcomes]
        ends = list(accumulate(map(len, batches)))
        return [outcomes[end - len(batch) : end] for batch, end in zip(batches, ends, strict=True)]

    async def _flush_parcels(self, parcels: Sequence[Parcel]) -> _Outcomes:
        """Send parcels in order: each run of the same destination in one call."""
        outcomes: list[int | MatadorError] = []
        start = 0
        while start < len(parcels):
            exchange = parcels[start].exchange
            end = start + 1
            while end < len(parcels) and parcels[end].exchange == exchange:
                end += 1
            messages = [parcel.message for parcel in parcels[start:end]]
            outcomes += await self._carry(exchange, messages)
            start = end
        return outcomes

    async def _carried(self, exchange: str | None, messages: Sequence[Message]) -> _Outcomes:
        try:
            if exchange is None:
                sent = await self._transport.send(messages)
                return [1 if error is None else error for error in sent]
            if self._router is None:
                raise UnsupportedError(f"the transport {self._transport.name!r} has no exchanges")
            return await self._router.publish(exchange, messages)
        except MatadorError as error:
            return [error for _ in messages]

    # -- the buffer -------------------------------------------------------------------------------

    def _wait_for_connection(
        self, place: int, parcel: Parcel, outcome: asyncio.Future[int] | None = None
    ) -> Awaitable[int]:
        """Wait in the order of the calls: one that was under way comes before later ones."""
        away = self._is_away
        if self._circuit is not None and self.circuit == "open":
            raise CircuitOpenError from away
        if not self._recovery.buffer and away is not None:
            self._failed()
            raise away
        # Without a buffer, too: while the circuit breaker tries the broker, sends wait their turn.
        if len(self._waiting) >= self._recovery.max_size:
            raise BufferFullError(
                f"Message buffer is full: {len(self._waiting)} sends wait for the connection"
            ) from away
        waiting = _Waiting(
            place,
            parcel,
            self._clock.monotonic() + self._ttl,
            outcome or asyncio.get_running_loop().create_future(),
        )
        insort(self._waiting, waiting, key=_place)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._send_waiting(), name="matador-outbox")
        return waiting.outcome

    @property
    def _is_away(self) -> NotConnectedError | None:
        state = self._transport.state
        if state.status == "connected":
            return None
        error = NotConnectedError(f"the transport {self._transport.name!r} is {state.status}")
        error.__cause__ = state.error
        return error

    async def _send_waiting(self) -> None:
        """Send what waits, in order, as soon as there is a connection; fail what has expired."""
        while self._waiting:
            self._drop_expired()
            if not self._waiting:
                return
            room = self._room
            if self._is_away is None and room != 0:
                size = self._batch_size(room)
                batch = [one for one in self._waiting[:size] if not one.outcome.done()]
                del self._waiting[:size]
                if batch:
                    await self._send_batch(batch)
                continue
            if self._is_away is None and self.circuit == "open":
                self._fail_waiting(CircuitOpenError())
                return
            self._changed.clear()
            first = self._waiting[0].until - self._clock.monotonic()
            try:
                async with asyncio.timeout(max(0.0, first)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _batch_size(self, room: int | None) -> int:
        most = len(self._waiting) if room is None else min(room, len(self._waiting))
        return min(most, _MAX_BATCH)

    async def _send_batch(self, batch: Sequence[_Waiting]) -> None:
        if self._circuit is not None:
            self._circuit = self._circuit.at(self._clock.monotonic()).begun(len(batch))
        try:
            (found,) = await asyncio.gather(
                self._sends.submit([one.parcel for one in batch]), return_exceptions=True
            )
        except asyncio.CancelledError:  # of ``close``, whose time ran out
            for one in batch:
                _fail(one.outcome, SendUnconfirmedError(_UNCONFIRMED))
            raise
        outcomes = [found for _ in batch] if isinstance(found, BaseException) else found
        again: list[_Waiting] = []
        for one, outcome in zip(batch, outcomes, strict=True):
            self._note(outcome)
            if isinstance(outcome, int):
                if not one.outcome.done():
                    one.outcome.set_result(outcome)
            elif isinstance(outcome, _NOT_SENT) and not self._closed:
                again.append(one)
            else:
                _fail(one.outcome, outcome)
        self._waiting = sorted([*again, *self._waiting], key=_place)

    def _drop_expired(self) -> None:
        now = self._clock.monotonic()
        while self._waiting and (self._waiting[0].until <= now or self._waiting[0].outcome.done()):
            one = self._waiting.pop(0)
            if not one.outcome.done():
                self._failed()
                error = BufferExpiredError(
                    f"Message expired: there was no connection for {self._ttl:g} s"
                )
                error.__cause__ = self._is_away
                _fail(one.outcome, error)

    def _fail_waiting(self, error: MatadorError) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            _fail(one.outcome, error)

    # -- the circuit breaker ----------------------------------------------------------------------

    @property
    def _room(self) -> int | None:
        """How many sends may start now; None: any number."""
        if self._circuit is None:
            return None
        self._put(self._circuit.at(self._clock.monotonic()))
        return self._circuit.room

    @property
    def _is_sound(self) -> bool:
        """Is there nothing that a success would change?"""
        circuit = self._circuit
        return circuit is None or (circuit.state == "closed" and not circuit.failures)

    def _note(self, outcome: object) -> None:
        """Count the outcome of a send. A broker that refuses a message answers, at least.

        All that was on its way when the connection was lost is no failure: the next sends wait in
        the buffer, and count if they wait in vain.
        """
        if isinstance(outcome, _COUNTED):
            if not self._recovery.buffer or self._is_away is None:
                self._failed()
            elif self._circuit is not None:
                self._put(self._circuit.undecided())
        elif self._circuit is not None:
            self._put(self._circuit.succeeded_once())

    def _failed(self) -> None:
        if self._circuit is not None:
            self._put(self._circuit.failed(self._clock.monotonic()))

    def _put(self, circuit: Circuit) -> None:
        before = self._circuit
        assert before is not None
        self._circuit = circuit
        if circuit.state != before.state:
            log.warning("the circuit breaker of %s is %s", self._transport.name, circuit.state)
            self._on_state(circuit.state)
            self._changed.set()

    # -- the connection ---------------------------------------------------------------------------

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        """See ``TransportObserver``."""
        if self._circuit is not None:
            if state.status == "connected":
                self._put(self._circuit.connected())
            elif state.status == "failed" or (
                not self._recovery.buffer and state.status == "reconnecting" and state.attempt > 1
            ):
                self._failed()
        self._changed.set()

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        """See ``TransportObserver``."""

    async def close(self, timeout: float | None = None) -> int:
        """Send what is left, for at most ``timeout`` seconds; how many sends were given up.

        Those that are under way fail with ``SendUnconfirmedError``: they may be stored.
        """
        self._closed = True
        left = 0
        try:
            async with asyncio.timeout(timeout):
                if self._pump is not None:
                    await asyncio.gather(self._pump, return_exceptions=True)
                await self._sends.drain()
        except TimeoutError:
            given_up = self._sends.give_up(
                ShuttingDownError(_CLOSED), SendUnconfirmedError(_UNCONFIRMED)
            )
            left = self.buffered + sum(map(len, given_up))
            if left:
                log.warning("%d sends were given up: the time to close ran out", left)
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        self._fail_waiting(ShuttingDownError("it was closed before there was a connection"))
        self._remove()
        return left


def _place(waiting: _Waiting) -> int:
    return waiting.place


def _fail(outcome: asyncio.Future[int], error: BaseException | Any) -> None:
    if not outcome.done():
        outcome.set_exception(error)
        outcome.exception()  # its caller may have given up
