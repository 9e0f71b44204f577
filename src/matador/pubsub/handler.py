"""Handles the messages of a subscriber: all matching handlers side by side, each for itself."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

from matador.errors import DontRetry
from matador.messages.context import Acknowledgement, Arrival
from matador.messages.counters import MessageCounters
from matador.messages.handler import (
    ERROR,
    Failure,
    HandlingOptions,
    MessageHandler,
    Nacked,
    Unhandled,
    Unreadable,
    decoded,
)
from matador.model.text import SHORT_TEXT, error_text, loggable, storable_text
from matador.policy.ack import DEAD_LETTER
from matador.policy.retry import RetryLater, SendToDeadLetters
from matador.pubsub.context import MessageContext, Received, routing_key_of
from matador.pubsub.registry import Registered, Registry
from matador.runtime.dedup import Deduplicator
from matador.runtime.worker import DeliveryWorker
from matador.transports.clock import Clock

log = logging.getLogger("matador.pubsub")

FAILED_HANDLERS = "x-matador-failed-handlers"
"""The header with the names of the handlers that run again; without it, all do."""

GIVEN_UP_HANDLERS = "x-matador-given-up-handlers"
"""The header with the names of handlers that have failed for good, while others are tried again."""

ErrorHandler: TypeAlias = Callable[[Exception, MessageContext], Any]
"""Is told about each error of a handler. May be async; others run in a thread."""


class HandlersFailed(Exception):
    """Some handlers of a message have failed.

    ``failures``: their errors in this attempt, by their names. ``given_up``: the names of those
    that failed for good in earlier attempts.
    """

    def __init__(self, failures: Mapping[str, Exception], given_up: Sequence[str]) -> None:
        parts = [f"{name}: {error_text(one, SHORT_TEXT)}" for name, one in failures.items()]
        super().__init__("; ".join(parts))
        self.failures = failures
        self.given_up = given_up


class SubscriberHandler(MessageHandler):
    """Runs the handlers of a subscriber.

    Args:
        worker, options, counters, dedup, clock: see ``MessageHandler``.
        registry: the handlers.
        exchange: the name of the exchange.
        continue_on_error: a message is done even if handlers fail.
        error_handler: is told about each error.
    """

    def __init__(
        self,
        worker: DeliveryWorker,
        options: HandlingOptions,
        *,
        registry: Registry,
        exchange: str,
        continue_on_error: bool = False,
        error_handler: ErrorHandler | None = None,
        counters: MessageCounters | None = None,
        dedup: Deduplicator | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(worker, options, counters=counters, dedup=dedup, clock=clock)
        self._registry = registry
        self._exchange = exchange
        self._continues = continue_on_error
        self._plain = not continue_on_error and options.timeout is None
        self._error_handler = error_handler

    def plain_call(self, arrival: Arrival) -> Coroutine[Any, Any, Any] | None:
        """See ``MessageHandler``. For an async handler that is the only one, and has no limit."""
        matching = self._registry.matching(routing_key_of(arrival))
        if len(matching) != 1 or not self._plain:
            return None
        function = matching[0].function
        if not function.is_plain or function.decode is None:
            return None
        data = decoded(function, arrival.body)
        if function.takes_data_alone:
            return function.function(data)
        return function.bind(Received(arrival, self._exchange), data)()

    async def run(self, arrival: Arrival, acknowledgement: Acknowledgement | None) -> bytes | None:
        """See ``MessageHandler``."""
        key = routing_key_of(arrival)
        matching = self._registry.matching(key)
        if not matching:
            raise Unhandled(f"no handler of this subscriber matches {key[:SHORT_TEXT]!r}")
        if len(matching) == 1 and not self._continues:
            await self._call(matching[0], arrival, acknowledgement)
            return None
        chosen, given_up = _chosen(arrival, matching)
        errors = await self._all(chosen, arrival, acknowledgement is not None)
        failures = {
            one.name: error for one, error in zip(chosen, errors, strict=True) if error is not None
        }
        unreadable = [error for error in failures.values() if isinstance(error, Unreadable)]
        if unreadable and len(unreadable) == len(matching):
            raise unreadable[0]
        if self._continues:
            for name, error in failures.items():
                self._ignored(name, arrival, error)
                await self._tell(arrival, error)
        elif failures or given_up:
            raise HandlersFailed(failures, given_up)
        if acknowledgement is not None:
            acknowledgement.decide(None)  # each handler had one of its own
        return None

    async def _call(
        self, one: Registered, arrival: Arrival, acknowledgement: Acknowledgement | None
    ) -> None:
        data = decoded(one.function, arrival.body)
        received = Received(arrival, self._exchange, acknowledgement)
        await self.call(one.function, received, data)

    async def _all(
        self, chosen: Sequence[Registered], arrival: Arrival, manual: bool
    ) -> Sequence[Exception | None]:
        if len(chosen) == 1:
            return [await self._error_of(chosen[0], arrival, manual)]
        tasks = [
            asyncio.create_task(
                self._error_of(one, arrival, manual), name=f"matador-handler-{one.name}"
            )
            for one in chosen
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            del tasks

    async def _error_of(self, one: Registered, arrival: Arrival, manual: bool) -> Exception | None:
        """Run one handler, and say what it raised."""
        if manual:
            own = Acknowledgement()
            ran = await self._calls.run(self.decided(self._call(one, arrival, own), own))
        else:
            ran = await self._calls.run(self._call(one, arrival, None))
        if ran.interrupted:
            raise asyncio.CancelledError
        try:
            return ran.error
        finally:
            del ran

    # -- failures ---------------------------------------------------------------------------------

    async def failed(self, arrival: Arrival, error: Exception) -> bool:
        """See ``MessageHandler``."""
        if isinstance(error, HandlersFailed):
            for one in error.failures.values():
                await self._tell(arrival, one)
        else:
            await self._tell(arrival, error)
        return False

    def judge(self, arrival: Arrival, error: Exception) -> Failure:
        """See ``MessageHandler``. Each handler is judged by its own error."""
        if not isinstance(error, HandlersFailed):
            return super().judge(arrival, error)
        again: dict[str, float] = {}
        reasons: dict[str, str] = {}
        for name, one in error.failures.items():
            decision = (
                SendToDeadLetters(DEAD_LETTER, error_text(one))
                if isinstance(one, Unreadable)
                else self.decide(one, arrival.attempt)
            )
            if isinstance(decision, RetryLater):
                again[name] = decision.delay
            else:
                reasons[name] = decision.reason
        ended = [*error.given_up, *reasons]
        if again:
            headers = {FAILED_HANDLERS: ",".join(again)}
            if ended:
                headers[GIVEN_UP_HANDLERS] = ",".join(ended)
            return Failure(_shown(error), RetryLater(max(again.values())), headers)
        reason = "; ".join(dict.fromkeys(reasons.values()))
        shown = _shown(error)
        if not reason:
            before = str(arrival.headers.get(ERROR, "")) or "no error is known"
            reason = f"failed in an earlier attempt: {before}"
            shown = DontRetry(reason)
        headers = {FAILED_HANDLERS: ",".join(ended)}
        if GIVEN_UP_HANDLERS in arrival.headers:
            headers[GIVEN_UP_HANDLERS] = ""
        return Failure(shown, SendToDeadLetters(DEAD_LETTER, storable_text(reason)), headers)

    def _ignored(self, name: str, arrival: Arrival, error: Exception) -> None:
        self.counters.failed += 1
        self.counters.last_error = f"{type(error).__name__}: {error_text(error, SHORT_TEXT)}"
        log.error(
            "the handler %s of message %s of %s failed (%s: %s); continue_on_error is set, so the "
            "message is done",
            name,
            storable_text(arrival.message_id, SHORT_TEXT),
            arrival.delivery.receipt.queue,
            type(error).__name__,
            error_text(error, SHORT_TEXT),
            exc_info=None if isinstance(error, Nacked) else loggable(error),
        )

    async def _tell(self, arrival: Arrival, error: Exception) -> None:
        tell = self._error_handler
        if tell is None:
            return
        context = Received(arrival, self._exchange).context
        try:
            if inspect.iscoroutinefunction(tell):
                await tell(error, context)
            else:
                await self._calls.in_thread(tell, error, context, limit=None, who="error_handler")
        except Exception:
            log.exception("the error_handler of a subscriber failed")


def _chosen(
    arrival: Arrival, matching: Sequence[Registered]
) -> tuple[Sequence[Registered], Sequence[str]]:
    """The handlers to run, and the names of those that were given up.

    The headers of a retry say which ones. If they name one that is not there (the program has
    changed meanwhile, or somebody else wrote them), all run: better once more than never.
    """
    again, ended = _names(arrival, FAILED_HANDLERS), _names(arrival, GIVEN_UP_HANDLERS)
    known = {one.name for one in matching}
    if not again or not known.issuperset((*again, *ended)):
        return matching, ()
    return [one for one in matching if one.name in again], ended


def _names(arrival: Arrival, header: str) -> Sequence[str]:
    found = arrival.headers.get(header)
    return [name for name in found.split(",") if name] if isinstance(found, str) else ()


def _shown(error: HandlersFailed) -> Exception:
    """The error to show: the only one there is, or all of them."""
    return next(iter(error.failures.values())) if len(error.failures) == 1 else error
