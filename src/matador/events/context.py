"""What a callback is given besides its envelope: remembered steps, sending, and the delivery."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from matador.events.steps import MISSING, Steps
from matador.model.envelope import Envelope
from matador.model.message import Receipt
from matador.model.options import Seconds
from matador.model.sending import SendResult
from matador.runtime.threads import Threads

T = TypeVar("T")


class EventSender(Protocol):
    """Who sends events: the application."""

    async def send(
        self,
        payload: Any,
        data: Any = ...,
        /,
        *,
        metadata: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        delay: Seconds | None = None,
        before: Any = None,
        priority: int | None = None,
        ordering_key: str | None = None,
    ) -> SendResult:
        """Send one event."""
        ...


class Context:
    """Given to callbacks that take ``(envelope, ctx)``. Valid while the callback runs.

    Example:
        >>> @subscriber(description="Charge the card.", idempotent="resumable")
        ... async def charge(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
        ...     payment = await ctx.io("charge", lambda: gateway.charge(envelope.data.order_id))
        ...     await ctx.send(PaymentTaken(payment.id))
    """

    __slots__ = ("_lost", "_sender", "_steps", "envelope", "receipt")

    def __init__(
        self, envelope: Envelope[Any], receipt: Receipt, sender: EventSender, steps: Steps | None
    ) -> None:
        self.envelope = envelope
        self.receipt = receipt
        self._sender = sender
        self._steps = steps
        self._lost = False

    @property
    def app(self) -> Any:
        """The application that runs the callback."""
        return self._sender

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1 on."""
        return self.envelope.docket.attempts

    @property
    def queue(self) -> str:
        """The full name of the queue the message came from."""
        return self.receipt.queue

    @property
    def redelivered(self) -> bool:
        """Was the message handed out before without an outcome?"""
        return self.receipt.redelivered

    @property
    def lease_lost(self) -> bool:
        """Does the message belong to somebody else by now? Then stop: the outcome is refused."""
        return self._lost

    def mark_lease_lost(self) -> None:
        """Called by the pipeline."""
        self._lost = True

    async def io(self, key: str, step: Callable[[], Awaitable[T] | T]) -> T:
        """Run a side effect once; on later attempts return its stored value instead.

        ``key`` must be unique in the callback and stable between attempts. A step that raises is
        not remembered. Only ``idempotent="resumable"`` subscribers remember; for others the step
        simply runs. A sync ``step`` runs on the event loop: give slow ones as async functions.

        Raises:
            DuplicateStepKeyError: the key was used in this run already.
            UnstorableStepValueError: the step's value cannot be stored; not retried.
            CheckpointStoreError: the store failed.
        """
        steps = self._steps
        if steps is None:
            return await _outcome(step)
        steps.claim(key)
        return await self._once(steps, key, step)

    async def all(self, steps: Sequence[tuple[str, Callable[[], Any]]]) -> list[Any]:
        """Run several steps side by side; their values, in order.

        If one fails the others still finish and are remembered; then the first error is raised.

        Example:
            >>> a, b = await ctx.all([("notify-a", notify_a), ("notify-b", notify_b)])
        """
        kept = self._steps
        if kept is not None:
            for key, _ in steps:  # before anything runs
                kept.claim(key)
        runs = [
            _outcome(step) if kept is None else self._once(kept, key, step) for key, step in steps
        ]
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return list(outcomes)

    async def send(
        self,
        payload: Any,
        data: Any = MISSING,
        /,
        *,
        metadata: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        delay: Seconds | None = None,
        before: Any = None,
        priority: int | None = None,
        ordering_key: str | None = None,
    ) -> SendResult:
        """Send an event, with the correlation id of the one being handled unless told otherwise.

        See ``Matador.send``.
        """
        arguments = (payload,) if data is MISSING else (payload, data)
        return await self._sender.send(
            *arguments,
            metadata=metadata,
            correlation_id=correlation_id or self.envelope.docket.correlation_id,
            delay=delay,
            before=before,
            priority=priority,
            ordering_key=ordering_key,
        )

    async def _once(self, steps: Steps, key: str, step: Callable[[], Awaitable[T] | T]) -> T:
        known = await steps.recall(key)
        if known is not MISSING:
            return known
        value = await _outcome(step)
        await steps.record(key, value)
        return value


async def _outcome(step: Callable[[], Awaitable[T] | T]) -> T:
    result: Any = step()
    return await result if inspect.isawaitable(result) else result


class SyncContext:
    """The same for sync callbacks: every method blocks the callback's thread, none the loop."""

    __slots__ = ("_context", "_loop")

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    @property
    def envelope(self) -> Envelope[Any]:
        """The message."""
        return self._context.envelope

    @property
    def receipt(self) -> Receipt:
        """How it was delivered."""
        return self._context.receipt

    @property
    def app(self) -> Any:
        """The application that runs the callback."""
        return self._context.app

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1 on."""
        return self._context.attempt

    @property
    def queue(self) -> str:
        """The full name of the queue the message came from."""
        return self._context.queue

    @property
    def redelivered(self) -> bool:
        """Was the message handed out before without an outcome?"""
        return self._context.redelivered

    @property
    def lease_lost(self) -> bool:
        """Does the message belong to somebody else by now?"""
        return self._context.lease_lost

    def io(self, key: str, step: Callable[[], T]) -> T:
        """As ``Context.io``; the step runs in a thread."""
        return self._wait(self._context.io(key, lambda: self._in_thread(step)))

    def all(self, steps: Sequence[tuple[str, Callable[[], Any]]]) -> list[Any]:
        """As ``Context.all``; the steps run in threads, side by side."""

        def threaded(step: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
            return lambda: self._in_thread(step)

        return self._wait(self._context.all([(key, threaded(step)) for key, step in steps]))

    def send(self, payload: Any, data: Any = MISSING, /, **options: Any) -> SendResult:
        """As ``Context.send``."""
        arguments = (payload,) if data is MISSING else (payload, data)
        return self._wait(self._context.send(*arguments, **options))

    async def _in_thread(self, step: Callable[[], T]) -> T:
        # A thread of its own: the callback's is blocked waiting, and the pool may be full of such.
        thread = Threads(1, "matador-step")
        context = contextvars.copy_context()
        try:
            return (await thread.start(lambda: context.run(step))).get()
        finally:
            thread.close()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
