"""The context of a subscriber: that of every handler, with the envelope and the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from matador.model.envelope import Envelope
from matador.model.message import Delivery, Receipt
from matador.runtime.context import Context
from matador.runtime.way import Scope

T = TypeVar("T")


class EventContext(Context):
    """Data about the event of a subscriber besides the envelope. See also ``Context``.

    Attributes:
        envelope: the envelope.
        receipt: the receipt of the delivery.
        app: the application that runs the subscriber.
    """

    __slots__ = ("app", "envelope", "receipt")
    used_by = "events"

    def __init__(
        self, envelope: Envelope[Any], delivery: Delivery, app: Any, scope: Scope | None
    ) -> None:
        docket = envelope.docket
        super().__init__(
            scope,
            delivery,
            id=envelope.id,
            attempt=docket.attempts,
            metadata=docket.metadata,
            correlation_id=docket.correlation_id,
            sender=app.send,
        )
        self.envelope = envelope
        self.receipt: Receipt = delivery.receipt
        self.app = app


class SyncContext(EventContext):
    """``Context`` for sync subscribers. Its methods block the thread, not the event loop."""

    __slots__ = ()

    def io(self, key: str, step: Callable[[], Awaitable[T] | T]) -> T:  # pyright: ignore[reportIncompatibleMethodOverride] - it blocks
        """Run a side effect once, in a thread; later attempts return its stored result instead."""
        return cast("T", super().io(key, step))

    def all(self, steps: Sequence[tuple[str, Callable[[], Awaitable[T] | T]]]) -> list[T]:  # pyright: ignore[reportIncompatibleMethodOverride] - it blocks
        """Run several steps in threads, concurrently, and return their results, in order."""
        return cast("list[T]", super().all(steps))
