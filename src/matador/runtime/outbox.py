"""Sends messages of every way in: batched, through an optional buffer and circuit breaker. Reports
stored messages to hooks, batch by batch.

Each caller awaits its own outcome. No message counts as sent before the broker has confirmed it.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections.abc import Awaitable, Callable, Sequence
from itertools import count, groupby
from operator import attrgetter
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
    UnsupportedError,
)
from matador.model.message import ConnectionState, Message, Once
from matador.model.options import seconds
from matador.policy.circuit import Circuit, CircuitBreaker, CircuitState
from matador.policy.recovery import Recovery
from matador.runtime.facts import Sent
from matador.runtime.hooks import Tell
from matador.runtime.metrics import Counters
from matador.transports.base import Choosing, Deduplicating, Pipelining, Routing, Transport
from matador.transports.clock import Clock, SystemClock
from matador.transports.coalescer import Coalescer

log = logging.getLogger("matador.send")

_MAX_BATCH = 1000
_CHUNK = 500
_CHUNK_ONCE = 2500  # ids are stored in an index, which is cheaper in large batches
_CLOSED = "it was closed, so nothing can be sent any more"
_UNCONFIRMED = "it was closed before the broker confirmed the message, which may be stored"

_COUNTED = (
    NotConnectedError,
    ConnectionFailedError,
    SendUnconfirmedError,
    StorageFullError,
    StorageLockedError,
)
"""Errors caused by the broker rather than by the message."""

_Outcomes: TypeAlias = Sequence[int | MatadorError]
"""For each parcel: the number of queues that stored it, or the error."""

Carry: TypeAlias = Callable[[str | None, Sequence[Message]], Awaitable[_Outcomes]]
"""Stores messages: in their queues, or through an exchange."""

NO_BUFFER = Recovery(buffer=False)
"""Sends fail at once while there is no connection."""


class Parcel(msgspec.Struct, gc=False):
    """A message, and the fact to report to hooks once it is stored.

    Attributes:
        message: the message.
        exchange: where it is published; None: it goes to its queue.
        fact: the fact for hooks; None: no hook needs it.
        transport: the member of a group of transports that stored it.
    """

    message: Message
    exchange: str | None
    fact: Sent | None
    transport: str | None = None


class _Waiting(msgspec.Struct, gc=False):
    place: int
    parcel: Parcel
    until: float
    outcome: asyncio.Future[int]


class Outbox:
    """Sends through one transport until ``close``.

    Args:
        transport: a connected transport.
        counters: counts what was sent.
        tell: reports stored messages to hooks; None: no hook needs them.
        recovery: the buffer for the time without a connection; ``NO_BUFFER``: none.
        breaker: the circuit breaker; None: none.
        clock: the source of time.
        carry: stores messages, if not the transport's ``send`` and ``publish``.
        on_state: called with each new state of the circuit breaker.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        counters: Counters,
        tell: Tell[Sent] | None = None,
        recovery: Recovery | None = None,
        breaker: CircuitBreaker | None = None,
        clock: Clock | None = None,
        carry: Carry | None = None,
        on_state: Callable[[CircuitState], object] = lambda _: None,
    ) -> None:
        self._carry = self._carried if carry is None else carry
        self._transport = transport
        self._counters = counters
        self._tell = tell
        self._recovery = recovery or Recovery()
        self._ttl = seconds(self._recovery.ttl, "Recovery: ttl")
        self._circuit = None if breaker is None else Circuit(breaker)
        self._clock = clock or SystemClock()
        self._on_state = on_state
        size, at_once = _MAX_BATCH, 1
        if carry is None and isinstance(transport, Pipelining):
            size, at_once = transport.send_size, transport.sends_at_once
        self._router = transport if isinstance(transport, Routing) else None
        self._group = transport if isinstance(transport, Choosing) and carry is None else None
        self._sends: Coalescer[Parcel, int | MatadorError] = Coalescer(
            self._flush, max_batch=size, at_once=at_once
        )
        self._chunks: dict[asyncio.Task[_Outcomes], int] = {}
        self._direct = not self._recovery.buffer and breaker is None
        self.post: Callable[[Parcel], Awaitable[int | MatadorError]] = (
            self._sends.submit if self._direct else self._posted
        )
        """Starts a send. Its outcome is the number of queues that stored the message, or an error.

        Messages are sent in the order of the calls, even if the connection is lost meanwhile.
        """
        self._waiting: list[_Waiting] = []
        self._places = count()
        self._pump: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self._remove = transport.observe(self)

    # -- state -----------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """How many sends wait for the connection."""
        return len(self._waiting)

    @property
    def circuit(self) -> CircuitState | None:
        """The state of the circuit breaker; None: there is none."""
        return None if self._circuit is None else self._circuit.at(self._clock.monotonic()).state

    # -- sending ----------------------------------------------------------------------------------

    async def send(self, parcel: Parcel) -> int:
        """Send a message; return the number of queues that stored it, once the broker confirms it.

        Raises:
            BufferFullError, BufferExpiredError, CircuitOpenError: it was not sent.
            MatadorError: the error of the transport.
        """
        outcome = await self.post(parcel)
        if isinstance(outcome, int):
            return outcome
        raise outcome

    async def _posted(self, parcel: Parcel) -> int | MatadorError:
        if self._closed:
            return ShuttingDownError(_CLOSED)
        place = next(self._places)
        try:
            if not self._is_clear:
                return await self._wait_for_connection(place, parcel)
            outcome = await self._sends.submit(parcel)
            if isinstance(outcome, int):
                if not self._is_sound:
                    self._note(outcome)
                return outcome
            self._note(outcome)
            if isinstance(outcome, NotConnectedError) and not self._closed:  # nothing was stored
                return await self._wait_for_connection(place, parcel, noted=True)
        except MatadorError as error:
            return error
        return outcome

    async def send_many(
        self, parcels: Sequence[Parcel], once: Once | None = None
    ) -> list[int | MatadorError]:
        """Send many messages, in order and in few round trips; return the outcome of each.

        With ``once``, messages that were stored before are not stored again, on transports that
        support it.
        """
        if self._closed:
            raise ShuttingDownError(_CLOSED)
        places = [] if self._direct else [next(self._places) for _ in parcels]
        compares = once is not None and self._transport.capabilities.once
        size = _CHUNK_ONCE if compares else _CHUNK
        outcomes: list[int | MatadorError] = []
        for start in range(0, len(parcels), size):
            chunk = parcels[start : start + size]
            if self._direct or self._is_clear:
                outcomes += await self._flush_chunk(chunk, once if compares else None)
            else:
                outcomes += [NotConnectedError() for _ in chunk]
        if self._direct:
            return outcomes
        for outcome in outcomes:
            if not isinstance(outcome, int) or not self._is_sound:
                self._note(outcome)
        return await self._wait_for_rest(list(zip(places, parcels, strict=True)), outcomes)

    async def _flush_chunk(self, chunk: Sequence[Parcel], once: Once | None) -> _Outcomes:
        """Send a part of ``send_many``, unless ``close`` abandons it."""
        flushing = asyncio.create_task(self._flush(chunk, once), name="matador-send-many")
        self._chunks[flushing] = len(chunk)
        flushing.add_done_callback(self._chunks.pop)
        try:
            return await asyncio.shield(flushing)
        except asyncio.CancelledError:
            if not flushing.cancelled():
                raise
            return [SendUnconfirmedError(_UNCONFIRMED)] * len(chunk)

    async def _wait_for_rest(
        self, parcels: Sequence[tuple[int, Parcel]], outcomes: list[int | MatadorError]
    ) -> list[int | MatadorError]:
        """Buffer messages that could not be sent because the connection is down."""
        waiting: dict[int, Awaitable[int]] = {}
        for at, (place, parcel) in enumerate(parcels):
            if isinstance(outcomes[at], NotConnectedError) and not self._closed:
                try:
                    waiting[at] = self._wait_for_connection(place, parcel, noted=True)
                except MatadorError as error:
                    outcomes[at] = error
        if waiting:
            found = await asyncio.gather(*waiting.values(), return_exceptions=True)
            for at, outcome in zip(waiting, found, strict=True):
                outcomes[at] = outcome if isinstance(outcome, int) else as_ours(outcome)
        return outcomes

    def begin(self, parcel: Parcel) -> asyncio.Future[int]:
        """Start to send a message; the future gets the result or error of ``send``.

        For callers that wait for something else, such as a reply. Canceling the future removes a
        buffered message.
        """
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        place = next(self._places)

        def sent(done: asyncio.Future[int | MatadorError]) -> None:
            found: int | BaseException = ShuttingDownError()
            if not done.cancelled():
                found = done.exception() or done.result()
            self._note(found)
            if outcome.done():
                return
            if isinstance(found, int):
                outcome.set_result(found)
            elif isinstance(found, NotConnectedError) and not self._closed:
                wait(noted=True)  # nothing was stored
            else:
                _fail(outcome, found)

        def wait(*, noted: bool) -> None:
            try:
                self._wait_for_connection(place, parcel, outcome, noted=noted)
            except MatadorError as error:
                _fail(outcome, error)

        if self._closed:
            _fail(outcome, ShuttingDownError(_CLOSED))
        elif not self._waiting and self._is_away is None and self._room is None:
            self._sends.submit(parcel).add_done_callback(sent)
        else:
            wait(noted=False)
        return outcome

    @property
    def _is_clear(self) -> bool:
        """Whether a send may start at once."""
        return (
            not self._waiting
            and self._transport.state.status == "connected"
            and (self._circuit is None or self._circuit.state == "closed")
        )

    async def _flush(self, parcels: Sequence[Parcel], once: Once | None = None) -> _Outcomes:
        """Send parcels in order, each run with the same destination in one call. Raises nothing.

        Reports stored messages to hooks before any caller continues.
        """
        outcomes: _Outcomes = ()
        for exchange, run in groupby(parcels, _exchange):
            together = list(run)
            messages = [one.message for one in together]
            if self._group is not None and exchange is None:
                found = await self._chosen(self._group, together, messages)
            else:
                found = await self._stored(exchange, messages, once)
            outcomes = [*outcomes, *found] if outcomes else found
        failed = [outcome for outcome in outcomes if outcome.__class__ is not int]
        counters = self._counters
        counters.sent += len(outcomes) - len(failed)
        counters.last_message_at = self._clock.time()
        if self._tell is not None:
            stored = parcels
            if failed:
                pairs = zip(parcels, outcomes, strict=True)
                stored = [parcel for parcel, outcome in pairs if isinstance(outcome, int)]
            facts = [parcel.fact for parcel in stored if parcel.fact is not None]
            if facts and (waiting := self._tell(facts)) is not None:
                await waiting
        return outcomes

    async def _stored(
        self, exchange: str | None, messages: Sequence[Message], once: Once | None
    ) -> _Outcomes:
        transport = self._transport
        try:
            if once is not None and isinstance(transport, Deduplicating):
                refused = await transport.send_once(messages, once)
                outcomes = [error or 1 for error in refused]
            else:
                outcomes = await self._carry(exchange, messages)
            if len(outcomes) != len(messages):
                raise RuntimeError(f"{len(outcomes)} outcomes for {len(messages)} messages")
            return outcomes
        except Exception as error:  # noqa: BLE001 - see as_ours
            return [as_ours(error)] * len(messages)

    async def _chosen(
        self, group: Choosing, parcels: Sequence[Parcel], messages: Sequence[Message]
    ) -> _Outcomes:
        """Send to a group of transports, and note which of them stored each message."""
        try:
            found = await group.send_to(messages)
        except Exception as error:  # noqa: BLE001 - see as_ours
            return [as_ours(error)] * len(messages)
        outcomes: list[int | MatadorError] = []
        for parcel, outcome in zip(parcels, found, strict=True):
            if isinstance(outcome, str):
                parcel.transport = outcome
                if parcel.fact is not None:
                    parcel.fact = parcel.fact.stored_in(transport=outcome)
            outcomes.append(1 if isinstance(outcome, str) else outcome)
        return outcomes

    async def _carried(self, exchange: str | None, messages: Sequence[Message]) -> _Outcomes:
        if exchange is None:
            sent = await self._transport.send(messages)
            return [error or 1 for error in sent]
        if self._router is None:
            raise UnsupportedError(f"the transport {self._transport.name!r} has no exchanges")
        return await self._router.publish(exchange, messages)

    # -- the buffer -------------------------------------------------------------------------------

    def _wait_for_connection(
        self,
        place: int,
        parcel: Parcel,
        outcome: asyncio.Future[int] | None = None,
        *,
        noted: bool = False,
    ) -> Awaitable[int]:
        """Wait in the order of the calls: a send that was in flight comes before later ones.

        ``noted``: its failure was counted already.
        """
        away = self._is_away
        if self._circuit is not None and self.circuit == "open":
            raise CircuitOpenError from away
        if not self._recovery.buffer and away is not None:
            if not noted:
                self._failed()
            raise away
        # Also without a buffer: sends wait while the circuit breaker probes the broker.
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
        return state.refusal(f"the transport {self._transport.name!r} is {state.status}")

    async def _send_waiting(self) -> None:
        """Send buffered messages in order once there is a connection; fail expired ones."""
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
            outcomes = await self._flush([one.parcel for one in batch])
        except asyncio.CancelledError:  # from ``close``, which timed out
            for one in batch:
                _fail(one.outcome, SendUnconfirmedError(_UNCONFIRMED))
            raise
        again: list[_Waiting] = []
        for one, outcome in zip(batch, outcomes, strict=True):
            self._note(outcome)
            if isinstance(outcome, int):
                if not one.outcome.done():
                    one.outcome.set_result(outcome)
            elif isinstance(outcome, NotConnectedError) and not self._closed:
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
        """How many sends may start now; None: no limit."""
        if self._circuit is None:
            return None
        self._put(self._circuit.at(self._clock.monotonic()))
        return self._circuit.room

    @property
    def _is_sound(self) -> bool:
        """Whether a success would not change the circuit breaker."""
        circuit = self._circuit
        return circuit is None or (circuit.state == "closed" and not circuit.failures)

    def _note(self, outcome: object) -> None:
        """Count the outcome of a send. A broker that refuses a message is reachable, so that is no
        failure.

        Sends in flight when the connection is lost are no failures either: the next sends wait in
        the buffer, and count as failures if they expire there.
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
        if self._circuit is not None:
            if state.status == "connected":
                self._put(self._circuit.connected())
            elif state.status == "failed" or (
                not self._recovery.buffer and state.status == "reconnecting" and state.attempt > 1
            ):
                self._failed()
        self._changed.set()

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        pass

    def dropped(self, queue: str, number: int) -> None:
        """See ``TransportObserver``."""

    async def close(self, timeout: float | None = None) -> int:
        """Send the remaining messages for at most ``timeout`` seconds; return how many sends were
        abandoned.

        Sends in flight fail with ``SendUnconfirmedError``: they may be stored.
        """
        self._closed = True
        self.post = self._posted  # which says so
        left = 0
        try:
            async with asyncio.timeout(timeout):
                if self._pump is not None:
                    await asyncio.gather(self._pump, return_exceptions=True)
                await self._sends.drain()
                if self._chunks:
                    await asyncio.wait(self._chunks)
        except TimeoutError:
            given_up = self._sends.give_up(
                ShuttingDownError(_CLOSED), SendUnconfirmedError(_UNCONFIRMED)
            )
            left = self.buffered + len(given_up) + sum(self._chunks.values())
            for chunk in self._chunks:
                chunk.cancel()
            if left:
                log.warning("%d sends were abandoned: the time to close ran out", left)
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        self._fail_waiting(ShuttingDownError("it was closed before there was a connection"))
        self._remove()
        return left


_place, _exchange = attrgetter("place"), attrgetter("exchange")


def _fail(outcome: asyncio.Future[int], error: BaseException | Any) -> None:
    if not outcome.done():
        outcome.set_exception(error)
        outcome.exception()  # its caller may have given up


def as_ours(error: BaseException) -> MatadorError:
    """Wrap an error that a transport should not raise: whether it stored anything is unknown."""
    if isinstance(error, MatadorError):
        return error
    return SendUnconfirmedError(f"{type(error).__name__}: {error}", cause=error)
