"""What a handler of plain messages gets beside the data, and how it acknowledges the message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from datetime import UTC, datetime

import msgspec

from matador.errors import ConfigurationError, LifecycleError
from matador.model.message import Delivery, Headers

log = logging.getLogger("matador.messages")

RETRY_COUNT = "x-retry-count"
"""The header with the number of attempts that have failed."""

FIRST_FAILURE = "x-first-failure"
"""The header with the time of the first failure, in milliseconds since 1970."""

_MOST = 1 << 53


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A delivery, with what every handler needs of it. Made without an error, whatever arrived.

    ``body`` is the plain body, decompressed. ``has_id``: False if the sender gave it no id.
    ``problem`` says what cannot be read. ``attempt`` is the number of this attempt.
    ``first_failure`` and ``deadline`` are seconds since 1970.
    """

    delivery: Delivery
    body: bytes
    message_id: str
    has_id: bool
    attempt: int
    first_failure: float | None
    deadline: float | None
    problem: str | None = None

    @property
    def headers(self) -> Headers:
        """The headers."""
        return self.delivery.headers


def arrival_of(
    delivery: Delivery,
    new_id: Callable[[], str],
    body: bytes | None = None,
    problem: str | None = None,
) -> Arrival:
    """Read what is common to all plain messages. One without an id gets a new one.

    ``body``: the plain body, if it is another than the one that was delivered. ``problem``: why
    it cannot be read, beside that of the delivery.
    """
    properties, headers, attempts, failed = delivery.properties, delivery.headers, 0, None
    if headers:
        failed = header_number(headers, FIRST_FAILURE)
        attempts = header_number(headers, RETRY_COUNT) or 0
    return Arrival(
        delivery,
        delivery.body if body is None else body,
        delivery.id or new_id(),
        bool(delivery.id),
        attempts + 1,
        None if failed is None else failed / 1000,
        None if properties is None else properties.expires_at,
        delivery.problem or problem,
    )


def header_number(headers: Headers, name: str) -> int | None:
    """A header as a whole number that is not negative; None if it is none."""
    value = headers.get(name)
    if value is None:
        return None
    try:
        found = int(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return found if 0 <= found <= _MOST else None


def moment(seconds: float | None) -> datetime | None:
    """A time as a ``datetime``; None if there is none, or it cannot be one."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


class _Noted:
    """May be awaited, and need not be: it was done when it was called."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_NOTED = _Noted()


class Acknowledgement:
    """What a handler has decided in manual mode. Used from any thread."""

    __slots__ = ("_loop", "_waiter", "decided", "requeue")

    def __init__(self) -> None:
        self.decided = False
        """Has the handler called ``ack`` or ``nack``?"""
        self.requeue: bool | None = None
        """None after ``ack``; after ``nack``, whether to try again."""
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def decide(self, requeue: bool | None) -> None:
        """The handler has decided; only the first call counts.

        Raises:
            RuntimeError: the event loop is closed.
        """
        if self.decided:
            return
        self.requeue = requeue
        self.decided = True  # first this, then a look at who waits; `wait` does it the other way
        if self._waiter is not None:
            self._loop.call_soon_threadsafe(self._wake)

    async def wait(self) -> None:
        """Wait until the handler has decided, which may be after its return."""
        self._waiter = self._loop.create_future()
        if not self.decided:
            await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class DeliveryContext:
    """What a handler knows of a message beside its data.

    Attributes:
        message_id: the id of the message, the same in every attempt.
        correlation_id: what the sender gave to trace it; None if nothing.
        queue: the full name of the queue it came from.
        headers: its headers.
        attempts: the number of this attempt, from 1.
        first_failure: when the first attempt failed; None in the first attempt.
        deadline: when nobody needs the outcome any more; None: never.
    """

    __slots__ = (
        "_acknowledgement",
        "attempts",
        "correlation_id",
        "deadline",
        "first_failure",
        "headers",
        "message_id",
        "queue",
    )

    def __init__(self, arrival: Arrival, acknowledgement: Acknowledgement | None) -> None:
        """``acknowledgement``: None in auto mode."""
        delivery = arrival.delivery
        properties = delivery.properties
        self._acknowledgement = acknowledgement
        self.message_id = arrival.message_id
        self.correlation_id = None if properties is None else properties.correlation_id
        self.queue = delivery.receipt.queue
        self.headers = delivery.headers
        self.attempts = arrival.attempt
        self.first_failure = moment(arrival.first_failure)
        self.deadline = moment(arrival.deadline)

    def ack(self) -> _Noted:
        """The message is done. In manual mode, call this or ``nack`` for every message.

        The message is deleted when the handler returns. In auto mode this happens by itself.
        """
        return self._decide(None)

    def nack(self, requeue: bool = False) -> _Noted:
        """The message is not done: try it again, or make it a dead letter. For manual mode.

        Raises:
            ConfigurationError: the mode is ``auto``; raise an error instead.
        """
        if self._acknowledgement is None:
            raise ConfigurationError(
                "nack() is for AckStrategy(mode='manual'); in auto mode, raise an error instead"
            )
        return self._decide(requeue)

    def _decide(self, requeue: bool | None) -> _Noted:
        if self._acknowledgement is None:
            return _NOTED  # auto mode: it is acknowledged anyway
        try:
            self._acknowledgement.decide(requeue)
        except RuntimeError as error:
            raise LifecycleError("the worker has ended, so nothing can be acknowledged") from error
        return _NOTED
