"""The context of a callback: its resumable steps, its delivery, and a way to send."""

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
    """Sends events: the application."""

    @property
    def send(self) -> Callable[..., Awaitable[SendResult]]:
        """See ``Matador.send``."""
        ...


class _CallbackContext:
    """What ``Context`` and ``SyncContext`` have in common."""

    __slots__ = ("_lost", "_sender", "envelope", "receipt")

    def __init__(self, envelope: Envelope[Any], receipt: Receipt, sender: EventSender) -> None:
        self.envelope = envelope
        self.receipt = receipt
        self._sender = sender
        self._lost = False

    @property
    def app(self) -> Any:
        """The application that runs the callback."""
        return self._sender

    @property
    def attempt(self) -> int:
        """The number of this attempt, starting at 1."""
        return self.envelope.docket.attempts

    @property
    def queue(self) -> str:
        """The full name of the queue the message came from."""
        return self.receipt.queue

    @property
    def redelivered(self) -> bool:
        """Was the message delivered before without being settled?"""
        return self.receipt.redelivered

    @property
    def lease_lost(self) -> bool:
        """Does another worker have the message now? If so, stop: the outcome is refused."""
        return self._lost

    def mark_lease_lost(self) -> None:
        """Called by the runtime."""
        self._lost = True


class Context(_CallbackContext):
    """The second argument of callbacks that take ``(envelope, ctx)``. Valid while they run.

    Example:
        >>> @subscriber(description="Charge the card.", idempotent="resumable")
        ... async def charge(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
        ...     payment = await ctx.io("charge", lambda: gateway.charge(envelope.data.order_id))
        ...     await ctx.send(PaymentTaken(payment.id))
    """

    __slots__ = ("_steps",)

    def __init__(
        self, envelope: Envelope[Any], receipt: Receipt, sender: EventSender, steps: Steps | None
    ) -> None:
        super().__init__(envelope, receipt, sender)
        self._steps = steps

    async def io(self, key: str, step: Callable[[], Awaitable[T] | T]) -> T:
        """Run a side effect once; later attempts return its stored result instead.

        ``key`` must be unique in the callback and the same in every attempt. A step that raises an
        error is not stored. Only ``idempotent="resumable"`` subscribers store steps; for others,
        the step just runs. A sync ``step`` runs on the event loop, so slow ones should be async.

        Raises:
            DuplicateStepKeyError: the key was already used in this run.
            UnstorableStepValueError: the step's result cannot be stored; not retried.
            CheckpointStoreError: the store failed.
        """
        steps = self._steps
        if steps is None:
            return await _outcome(step)
        steps.claim(key)
        return await self._once(steps, key, step)

    async def all(self, steps: Sequence[tuple[str, Callable[[], Any]]]) -> list[Any]:
        """Run several steps concurrently and return their results, in order.

        If one fails, the others still finish and are stored; then the first error is raised.

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
        """Send an event with the correlation id of the current one, unless another is given.

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


class SyncContext(_CallbackContext):
    """``Context`` for sync callbacks. Its methods block the callback's thread, not the loop."""

    __slots__ = ("_context", "_loop")

    def __init__(
        self, envelope: Envelope[Any], receipt: Receipt, sender: EventSender, steps: Steps | None
    ) -> None:
        super().__init__(envelope, receipt, sender)
        self._context = Context(envelope, receipt, sender, steps)
        self._loop = asyncio.get_running_loop()

    def io(self, key: str, step: Callable[[], T]) -> T:
        """See ``Context.io``. The step runs in a thread."""
        return self._wait(self._context.io(key, lambda: self._in_thread(step)))

    def all(self, steps: Sequence[tuple[str, Callable[[], Any]]]) -> list[Any]:
        """See ``Context.all``. The steps run in threads, concurrently."""

        def threaded(step: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
            return lambda: self._in_thread(step)

        return self._wait(self._context.all([(key, threaded(step)) for key, step in steps]))

    def send(self, payload: Any, data: Any = MISSING, /, **options: Any) -> SendResult:
        """See ``Context.send``."""
        arguments = (payload,) if data is MISSING else (payload, data)
        return self._wait(self._context.send(*arguments, **options))

    async def _in_thread(self, step: Callable[[], T]) -> T:
        # Its own thread: the callback's thread is blocked, and others may fill the pool likewise.
        thread = Threads(1, "matador-step")
        context = contextvars.copy_context()
        try:
            return (await thread.start(lambda: context.run(step))).get()
        finally:
            thread.close()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
