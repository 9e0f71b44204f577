"""Runs one callback: inside the hooks, in a context of its own, in a thread if it is sync."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import contextvars
import inspect
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from matador.errors import TimeoutError
from matador.events.context import Context, EventSender, SyncContext
from matador.events.hooks import HookSet, Processing
from matador.events.steps import Steps
from matador.model.envelope import Envelope
from matador.model.message import Receipt
from matador.model.subscriber import Subscriber
from matador.runtime.interruption import Interruption
from matador.runtime.isolation import InOwnContext
from matador.runtime.leases import LeaseKeeper
from matador.runtime.threads import Threads

log = logging.getLogger("matador.worker")

_AWAITED = "the callback awaited something that was"


class Ran(msgspec.Struct):
    """What came of a callback: a result, an error, or neither if it was interrupted.

    An error's traceback has the frames that know this: they forget it when they end, or every
    failure would be kept, with its message, until the garbage collector finds it.
    """

    result: Any = None
    error: Exception | None = None
    interrupted: bool = False


class Runner:
    """Runs callbacks. Called by many slots at once.

    ``timeouts`` has the longest run a queue allows, by its full name.
    """

    def __init__(
        self,
        *,
        hooks: HookSet,
        sender: EventSender,
        leases: LeaseKeeper | None,
        threads: Threads,
        interruption: Interruption,
        transport_name: str,
        timeouts: Mapping[str, float],
    ) -> None:
        self._hooks = hooks
        self._sender = sender
        self._leases = leases
        self._threads = threads
        self._interruption = interruption
        self._transport = transport_name
        self._limits = timeouts

    async def run(
        self,
        envelope: Envelope[Any],
        subscriber: Subscriber[Any],
        receipt: Receipt,
        steps: Steps | None,
    ) -> Ran:
        """Run a callback once. Raises nothing but what ends the process (``SystemExit``).

        A cancellation from outside is an interruption. One that the callback raised, or had its
        own task cancelled with, is a failure.
        """
        ran = Ran()
        hooks = self._hooks
        hooked = bool(hooks.wraps) or hooks.on_worker_before_process is not None
        try:
            if hooked:
                event = Processing(envelope, subscriber, receipt.queue, self._transport, receipt)
                await InOwnContext(self._inside_hooks(event, steps, ran))
            elif subscriber.is_plain and steps is None and not self._limits:
                ran.result = await InOwnContext(subscriber.callback(envelope))
            else:
                await InOwnContext(self._guarded(envelope, subscriber, receipt, steps, ran))
        except Exception as error:  # noqa: BLE001 - the policy decides about it
            ran.error = error
        except asyncio.CancelledError as error:
            if self._interruption.happened:
                ran.interrupted = True
            else:
                what = "a hook around the callback had it" if hooked else _AWAITED
                ran.error = _wrapped(f"{what} cancelled", error)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            ran.error = _wrapped(f"{type(error).__name__}: {error}", error)
        if ran.error is not None and not self._interruption.happened:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # what decides about it may have to wait
                with contextlib.suppress(asyncio.CancelledError):
                    await self._interruption.forgive()
        try:
            return ran
        finally:
            del ran

    async def _inside_hooks(self, event: Processing, steps: Steps | None, ran: Ran) -> None:
        async def proceed() -> None:
            if self._hooks.on_worker_before_process is not None:
                await self._hooks.on_worker_before_process(event)
            await self._guarded(event.envelope, event.subscriber, event.receipt, steps, ran)

        await self._hooks.wrapped(event, proceed)

    async def _guarded(
        self,
        envelope: Envelope[Any],
        subscriber: Subscriber[Any],
        receipt: Receipt,
        steps: Steps | None,
        ran: Ran,
    ) -> None:
        """Call the callback; what it raises is noted, and seen by nobody further out."""
        try:
            if steps is not None:
                await steps.load()
            if subscriber.is_async and not subscriber.takes_context and not self._limits:
                ran.result = await subscriber.callback(envelope)
            else:
                ran.result = await self._call(envelope, subscriber, receipt, steps)
        except Exception as error:  # noqa: BLE001 - the policy decides about it
            ran.error = error
        except asyncio.CancelledError as error:
            if self._interruption.happened:
                raise
            ran.error = _wrapped(f"{_AWAITED} cancelled", error)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            ran.error = _wrapped(f"{type(error).__name__}: {error}", error)
        finally:
            del ran

    async def _call(
        self,
        envelope: Envelope[Any],
        subscriber: Subscriber[Any],
        receipt: Receipt,
        steps: Steps | None,
    ) -> Any:
        context: Context | None = None
        if subscriber.takes_context:
            context = Context(envelope, receipt, self._sender, steps)
            if self._leases is not None:
                self._leases.when_lost(receipt, context.mark_lease_lost)
        limit = self._limits.get(receipt.queue)
        if not subscriber.is_async:
            return await self._call_in_thread(envelope, subscriber, context, limit)
        call = subscriber.callback
        if limit is None:
            return await (call(envelope) if context is None else call(envelope, context))
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                return await (call(envelope) if context is None else call(envelope, context))
        except builtins.TimeoutError as error:
            if not scope.expired():
                raise
            raise TimeoutError(
                f"subscriber {subscriber.name!r} took longer than the {limit:g} s its queue allows"
            ) from error

    async def _call_in_thread(
        self,
        envelope: Envelope[Any],
        subscriber: Subscriber[Any],
        context: Context | None,
        limit: float | None,
    ) -> Any:
        loop = asyncio.get_running_loop()
        arguments: tuple[Any, ...] = (envelope,)
        if context is not None:
            arguments = (envelope, SyncContext(context, loop))
        own = contextvars.copy_context()
        future = self._threads.start(lambda: own.run(subscriber.callback, *arguments))
        if limit is not None:
            done, _ = await asyncio.wait([future], timeout=limit)
            if not done:  # a thread cannot be stopped; only waiting keeps it from running twice
                log.warning(
                    "the sync subscriber %r runs for longer than the %g s its queue allows",
                    subscriber.name,
                    limit,
                )
        result = (await future).get()
        return await result if inspect.isawaitable(result) else result


def _wrapped(text: str, cause: BaseException) -> RuntimeError:
    error = RuntimeError(text)
    error.__cause__ = cause
    return error
