"""The context of a handler, in every way in: data about its message, and resumable steps."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from matador.errors import ConfigurationError
from matador.model.message import Delivery
from matador.model.signature import HandlerContext
from matador.runtime.steps import MISSING, Steps
from matador.runtime.threads import Threads
from matador.runtime.way import Scope

T = TypeVar("T")


class Context(HandlerContext):
    """Data about the message of a handler besides its payload. Valid while the handler runs.

    Attributes:
        id: the id of the message, the same in every attempt.
        attempt: the number of this attempt, from 1.
        queue: the full name of the queue it came from.
        headers: the headers of the message.
        metadata: the sender's data besides the payload.
        correlation_id: the sender's id to trace related messages.
        deadline: when the sender stops waiting; None: no deadline.
        redelivered: the message was delivered before and not settled.
        lease_lost: another worker has the message now. Stop: the broker will refuse the outcome.

    In a sync handler, which runs in a thread, ``io`` and ``all`` block until they are done.
    """

    __slots__ = (
        "_loop",
        "_lost",
        "_sender",
        "_steps",
        "attempt",
        "correlation_id",
        "deadline",
        "headers",
        "id",
        "metadata",
        "queue",
        "redelivered",
    )

    _send_instead: ClassVar[str] = (
        "open a client, a publisher or a queue beside it and pass correlation_id=ctx.correlation_id"
    )

    def __init__(
        self,
        scope: Scope | None,
        delivery: Delivery,
        *,
        id: str,
        attempt: int,
        metadata: Mapping[str, Any],
        correlation_id: str | None = None,
        deadline: datetime | None = None,
        sender: Callable[..., Awaitable[object]] | None = None,
    ) -> None:
        self._steps: Steps | None = None
        self._lost = False
        self._loop: asyncio.AbstractEventLoop | None = None
        if scope is not None:
            self._steps = scope.steps
            self._loop = asyncio.get_running_loop()
            scope.when_lost(self._lose)
        receipt, properties = delivery.receipt, delivery.properties
        if correlation_id is None and properties is not None:
            correlation_id = properties.correlation_id
        self.id, self.attempt, self.queue = id, attempt, receipt.queue
        self.headers, self.metadata = delivery.headers, metadata
        self.correlation_id, self.deadline = correlation_id, deadline
        self.redelivered = receipt.redelivered
        self._sender = sender

    def _lose(self) -> None:
        self._lost = True

    @property
    def lease_lost(self) -> bool:
        """Whether another worker has the message now. If so, stop: the outcome will be refused."""
        return self._lost

    def io(self, key: str, step: Callable[[], Awaitable[T] | T]) -> Awaitable[T]:
        """Run a side effect once; later attempts return its stored result instead.

        ``key`` must be unique in the handler and the same in every attempt. A step that raises an
        error is not stored. Only ``idempotent="resumable"`` handlers store steps; for others, the
        step just runs. A sync ``step`` of an async handler runs on the event loop, so slow ones
        should be async. In a sync handler this blocks, and returns the result itself.

        Raises:
            DuplicateStepKeyError: the key was already used in this run.
            UnstorableStepValueError: the step's result cannot be stored; not retried.
            CheckpointStoreError: the store can never save it.

        Example:
            >>> payment = await ctx.io("charge", lambda: gateway.charge(order.id))
        """
        return self._done(self._io, key, step)

    def all(
        self, steps: Sequence[tuple[str, Callable[[], Awaitable[T] | T]]]
    ) -> Awaitable[list[T]]:
        """Run several steps concurrently and return their results, in order.

        If one fails, the others still finish and are stored; then the first error is raised. In a
        sync handler this blocks, and returns the results themselves.

        Example:
            >>> a, b = await ctx.all([("notify-a", notify_a), ("notify-b", notify_b)])
        """
        return self._done(self._all, steps)

    def send(self, *arguments: Any, correlation_id: str | None = None, **options: Any) -> Any:
        """Send a message of the same way in, with the correlation id of the current one.

        Takes the arguments of ``Matador.send`` in a subscriber of events, and those of
        ``QueueService.send`` in a consumer of a channel. RPC servers and subscribers cannot send;
        the error says what to use instead. In a sync handler this blocks, and returns the result
        itself.

        Raises:
            ConfigurationError: the service of this handler only receives.

        Example:
            >>> await ctx.send("orders", "shipped", {"id": 1})  # in a consumer of a channel
        """
        sender = self._sender
        if sender is None:
            raise ConfigurationError(
                f"{type(self).__name__}.send: the service of this handler only receives; "
                f"{self._send_instead}"
            )

        async def sending(_: object) -> object:
            return await sender(
                *arguments, correlation_id=correlation_id or self.correlation_id, **options
            )

        return self._done(sending)

    async def _io(
        self, key: str, step: Callable[[], Any], run: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> Any:
        steps = self._steps
        if steps is None:
            return await run(step)
        steps.claim(key)
        return await _once(steps, key, step, run)

    async def _all(
        self,
        given: Sequence[tuple[str, Callable[[], Any]]],
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> list[Any]:
        steps = self._steps
        if steps is not None:
            for key, _ in given:  # before anything runs
                steps.claim(key)
        runs = [run(step) if steps is None else _once(steps, key, step, run) for key, step in given]
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return list(outcomes)

    def _done(self, call: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        """On the event loop, return an awaitable; in a thread, block and return the result."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._loop is None:  # outside of a worker: a unit test, say
                return asyncio.run(call(*arguments, _on_loop))
            found = call(*arguments, _in_thread)
            return asyncio.run_coroutine_threadsafe(found, self._loop).result()
        return call(*arguments, _on_loop)


async def _once(
    steps: Steps, key: str, step: Callable[[], Any], run: Callable[[Any], Awaitable[Any]]
) -> Any:
    known = await steps.recall(key)
    if known is not MISSING:
        return known
    value = await run(step)
    await steps.record(key, value)
    return value


async def _on_loop(step: Callable[[], Any]) -> Any:
    result = step()
    return await result if inspect.isawaitable(result) else result


async def _in_thread(step: Callable[[], Any]) -> Any:
    # Use a separate thread: the handler blocks its own, and other handlers may fill the pool in the
    # same way.
    thread = Threads(1, "matador-step")
    context = contextvars.copy_context()
    try:
        return (await thread.start(lambda: context.run(step))).get()
    finally:
        thread.close()
