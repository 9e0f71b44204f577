"""Pub/sub as a way in: all matching handlers run concurrently, each with its own outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from matador.errors import (
    DontRetry,
    NonIdempotentCannotRetryError,
)
from matador.model.message import Delivery, Message
from matador.model.text import SHORT_TEXT, error_text, loggable, storable_text
from matador.policy.retry import (
    Decision,
    RetryLater,
    RetryPolicy,
    SendToDeadLetters,
    may_run_again,
    not_idempotent_reason,
)
from matador.pubsub.registry import Registry, SeveralRoute
from matador.runtime.acknowledgement import Acknowledgement, decided
from matador.runtime.calls import INTERRUPTED, Calls
from matador.runtime.messages import (
    ERROR,
    FAILED_HANDLERS,
    GIVEN_UP_HANDLERS,
    MessageContext,
    MessageOptions,
    MessageRoute,
    MessageWay,
    MessageWork,
    Unhandled,
    Unreadable,
    decoded,
)
from matador.runtime.metrics import Counters
from matador.runtime.way import Asked, Call, Failure, HandlersFailed, Route, Scope

log = logging.getLogger("matador.pubsub")

ErrorHandler: TypeAlias = Callable[[Exception, MessageContext], Any]
"""Called for each error of a handler. May be async; sync functions run in a thread."""


class PubSubWay(MessageWay):
    """The way in of pub/sub. ``counters`` count failures that ``continue_on_error`` ignores."""

    def __init__(
        self,
        options: MessageOptions,
        registry: Registry,
        exchange: str,
        *,
        calls: Calls,
        counters: Counters,
        continue_on_error: bool,
        error_handler: ErrorHandler | None,
    ) -> None:
        super().__init__(options)
        self._registry, self._exchange = registry, exchange
        self._calls, self._counters = calls, counters
        self._continues = continue_on_error
        self._error_handler = error_handler
        if error_handler is not None:
            self.finished = self._told

    def route_of(self, delivery: Delivery, name: str) -> Route:
        properties = delivery.properties
        key = "" if properties is None else properties.routing_key or ""
        route = self._registry.route(key)
        if route is None:
            raise Unhandled(f"no handler of this subscriber matches {key[:SHORT_TEXT]!r}")
        return route

    def data_of(self, route: Route, body: bytes) -> Any:
        """For several handlers, by name: the data of each, or the error."""
        if type(route) is not SeveralRoute:
            return super().data_of(route, body)
        if (problem := self._validation.problem_of(body)) is not None:
            raise Unreadable(problem)
        found: dict[str, Any] = {}
        for one in route.handlers:
            try:
                found[one.handler] = decoded(one.function, body)
            except Unreadable as error:
                found[one.handler] = error
        unreadable = [one for one in found.values() if isinstance(one, Unreadable)]
        if len(unreadable) == len(route.handlers):
            raise unreadable[0]
        return found

    def arguments(self, work: MessageWork, scope: Scope | None) -> MessageContext:
        return MessageContext(work, scope, self._exchange)

    def call(self, work: MessageWork, scope: Scope | None) -> Call:
        route = work.route
        if type(route) is SeveralRoute:
            return self._several(work, route, scope)
        return super().call(work, scope)

    # -- several handlers -------------------------------------------------------------------------

    async def _several(self, work: MessageWork, route: SeveralRoute, scope: Scope | None) -> None:
        chosen, given_up = _chosen(work, route.handlers)
        tasks = [
            asyncio.create_task(
                self._error_of(one, work, scope), name=f"matador-handler-{one.handler}"
            )
            for one in chosen
        ]
        try:
            errors = await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            if not all(may_run_again(one.idempotent) and one.is_async for one in chosen):
                # A release would run all of them again. A redelivery refuses those that must not
                # run again.
                work.route = msgspec.structs.replace(route, idempotent="unknown")
            raise
        finally:
            del tasks
        failures = {
            one.handler: error
            for one, error in zip(chosen, errors, strict=True)
            if error is not None
        }
        if self._continues:
            for name, error in failures.items():
                self._ignored(name, work, error)
                await self._tell(work, error)
        elif failures or given_up:
            raise HandlersFailed(failures, given_up)
        if scope is not None and scope.acknowledgement is not None:
            scope.acknowledgement.decide(None)  # each handler had its own timeout

    async def _error_of(
        self, one: MessageRoute, work: MessageWork, scope: Scope | None
    ) -> Exception | None:
        """Run one handler; return its error."""
        data = work.data[one.handler]
        if isinstance(data, Unreadable):
            return data
        if work.delivery.receipt.redelivered and not may_run_again(one.idempotent):
            return NonIdempotentCannotRetryError(not_idempotent_reason(one.idempotent))
        _, error = (await self._calls.run(self._run(one, work, data, scope))).outcome
        if error is INTERRUPTED:
            raise asyncio.CancelledError
        try:
            return error
        finally:
            del error

    async def _run(
        self, one: MessageRoute, work: MessageWork, data: Any, scope: Scope | None
    ) -> None:
        own, context = None, None
        if scope is not None:
            own = Acknowledgement() if scope.acknowledgement is not None else None
            steps = scope.steps if one.idempotent == "resumable" else None
            steps = None if steps is None else steps.of(one.handler)
            scope = msgspec.structs.replace(scope, steps=steps, acknowledgement=own)
        if one.takes_context:
            context = MessageContext(work, scope, self._exchange)
        bound = one.function.bind(context, data)
        if not one.is_async:
            call: Any = self._calls.in_thread(bound, limit=one.timeout, who=one.handler)
        elif one.timeout is not None:
            steps = None if scope is None else scope.steps
            who = f"the handler {one.handler}"
            call = self._calls.limited(bound(), one.timeout, who, steps)
        else:
            call = bound()
        await (call if own is None else decided(call, own, one.timeout))

    # -- failures ---------------------------------------------------------------------------------

    def policy(self, work: MessageWork) -> RetryPolicy:
        """Of several handlers, the policy of the one that allows the most deliveries."""
        route = work.route
        if type(route) is not SeveralRoute:
            return super().policy(work)
        found = [one.retry or self._options.policy for one in route.handlers]
        return max(found, key=lambda one: one.max_deliveries)

    def decide(self, work: MessageWork, error: Exception, asked: Asked, random: float) -> Decision:
        """The decision depends on the error of each handler."""
        if not isinstance(error, HandlersFailed):
            return super().decide(work, error, asked, random)
        again: dict[str, float] = {}
        reasons: dict[str, str] = {}
        for one in work.route.handlers if isinstance(work.route, SeveralRoute) else ():
            if one.handler in error.failures:
                decision = self._judged(one, work, error.failures[one.handler], asked, random)
                if isinstance(decision, RetryLater):
                    again[one.handler] = decision.delay
                else:
                    reasons[one.handler] = decision.reason
        error.again = list(again)
        error.given_up = [*error.given_up, *(n for n in reasons if n not in error.given_up)]
        if again:
            return RetryLater(max(again.values()))
        reason = "; ".join(dict.fromkeys(reasons.values()))
        if not reason:
            reason = f"failed in an earlier attempt: {work.headers.get(ERROR, 'unknown error')}"
        return SendToDeadLetters("undeliverable", reason)

    def _judged(
        self, one: MessageRoute, work: MessageWork, error: Exception, asked: Asked, random: float
    ) -> Decision:
        if isinstance(error, Unreadable):
            return SendToDeadLetters("undeliverable", error_text(error))
        own = msgspec.structs.replace(work, route=one)
        return self.policy(own).decide(self.retry_context(own, error, asked, random))

    def successor(self, work: MessageWork, failure: Failure) -> Message:
        """Stores in headers which of several handlers run again, and which failed permanently."""
        message, error = super().successor(work, failure), failure.error
        if not isinstance(error, HandlersFailed):
            return message
        headers = dict(message.headers)
        given_up = ",".join(error.given_up)
        if isinstance(failure.decision, RetryLater):
            headers[FAILED_HANDLERS] = ",".join(error.again)
            if given_up:
                headers[GIVEN_UP_HANDLERS] = given_up
        else:
            headers[FAILED_HANDLERS] = given_up
            if not error.failures:
                headers[ERROR] = work.headers.get(ERROR, "")
            if GIVEN_UP_HANDLERS in headers:
                headers[GIVEN_UP_HANDLERS] = ""
        return msgspec.structs.replace(message, headers=headers)

    async def _told(self, work: MessageWork, body: bytes | None, failure: Failure | None) -> None:
        """Call ``error_handler`` for a failed attempt."""
        if failure is None or not failure.ran:
            return
        error = failure.error
        for one in error.failures.values() if isinstance(error, HandlersFailed) else (error,):
            await self._tell(work, one)

    def _ignored(self, name: str, work: MessageWork, error: Exception) -> None:
        self._counters.failed += 1
        self._counters.note_error(error)
        log.error(
            "the handler %s of message %s of %s failed (%s: %s); continue_on_error is set, so the "
            "message is done",
            name,
            storable_text(work.id, SHORT_TEXT),
            work.delivery.receipt.queue,
            type(error).__name__,
            error_text(error, SHORT_TEXT),
            exc_info=None if isinstance(error, DontRetry) else loggable(error),
        )

    async def _tell(self, work: MessageWork, error: Exception) -> None:
        tell = self._error_handler
        if tell is None:
            return
        context = MessageContext(work, None, self._exchange)
        try:
            if inspect.iscoroutinefunction(tell):
                await tell(error, context)
            else:
                await self._calls.in_thread(tell, error, context, limit=None, who="error_handler")
        except Exception:
            log.exception("the error_handler of a subscriber failed")


def _chosen(
    work: MessageWork, matching: Sequence[MessageRoute]
) -> tuple[Sequence[MessageRoute], Sequence[str]]:
    """The handlers to run, and the names of those that failed permanently.

    The headers of a retry name them. If they name an unknown handler (the program has changed
    meanwhile, or another program wrote them), all handlers run, so that none is skipped.
    """
    again, ended = _names(work, FAILED_HANDLERS), _names(work, GIVEN_UP_HANDLERS)
    known = {one.handler for one in matching}
    if not again or not known.issuperset((*again, *ended)):
        return matching, ()
    return [one for one in matching if one.handler in again], ended


def _names(work: MessageWork, header: str) -> Sequence[str]:
    found = work.headers.get(header)
    return [name for name in found.split(",") if name] if isinstance(found, str) else ()
