"""Remote calls as a way in: finds the handler of a command, and replies before the request is
acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from matador.codec.data import encode_data
from matador.errors import (
    DontRetry,
    DoRetry,
    InvalidMessageError,
    MatadorError,
    RemoteError,
    TimeoutError,
    UnstorableError,
)
from matador.model.message import Delivery, Message, Properties
from matador.model.text import SHORT_TEXT, error_text, storable_text
from matador.policy.retry import Decision, Discard, RetryLater, SendToDeadLetters
from matador.rpc.wire import CORRELATION_ID, error_reply
from matador.runtime.dedup import Deduplicator
from matador.runtime.messages import (
    DeliveryContext,
    MessageOptions,
    MessageRoute,
    MessageWay,
    MessageWork,
    Unhandled,
    Unreadable,
)
from matador.runtime.outbox import Outbox, Parcel
from matador.runtime.way import Asked, Call, Failure, Finished, Refusal, Scope

log = logging.getLogger("matador.rpc")

_HIDDEN = "the command failed; the log of the server says why"
_VALIDATION = "ValidationError"
_SAFE = (InvalidMessageError, DoRetry, DontRetry, TimeoutError)
"""Errors about a call whose texts callers may see."""

_TOLD = Discard("the caller was told", answered=True)


class RpcContext(DeliveryContext):
    """Data about a call besides its payload. See also ``Context``.

    Attributes:
        command: the command, in upper case.
        wants_reply: whether a caller waits for the result; False for a ``notify``.
        correlation_id: the caller's id to trace related messages.
        deadline: when the caller stops waiting; None: no deadline.

    Example:
        >>> @server.handler("ADD")
        ... async def add(request: Add, ctx: RpcContext) -> int:
        ...     log.info("%s from %s", ctx.command, ctx.headers.get("user"))
        ...     return request.a + request.b
    """

    __slots__ = ("command", "wants_reply")
    used_by = "RPC"
    _send_instead = (
        "open an RpcClient beside the server: `await client.notify('LOG', data, "
        "correlation_id=ctx.correlation_id)`"
    )

    def __init__(self, work: MessageWork, scope: Scope | None) -> None:
        super().__init__(work, scope)
        self.command = command_of(work.delivery)
        self.wants_reply = _wants_reply(work.delivery)
        given = work.headers.get(CORRELATION_ID)
        if given is not None:
            self.correlation_id = str(given)


class RpcWay(MessageWay):
    """The way in of remote calls. ``commands`` may change while it is used."""

    def __init__(
        self,
        options: MessageOptions,
        commands: Mapping[str, MessageRoute],
        outbox: Outbox,
        *,
        hide_errors: bool,
        slow_call: float | None,
    ) -> None:
        super().__init__(options)
        self._commands = commands
        self._outbox = outbox
        self._hide_errors = hide_errors
        self._slow_call = slow_call
        self.encode = _encoded
        self.finished = self._reply

    def name_of(self, delivery: Delivery) -> str:
        return command_of(delivery)

    def route_of(self, delivery: Delivery, name: str) -> MessageRoute:
        route = self._commands.get(name)
        if route is None:
            raise UnknownCommand(name, self._commands)
        return route

    def arguments(self, work: MessageWork, scope: Scope | None) -> RpcContext:
        return RpcContext(work, scope)

    def call(self, work: MessageWork, scope: Scope | None) -> Call:
        call = super().call(work, scope)
        return call if self._slow_call is None else self._timed(work, call, self._slow_call)

    def _timed(self, work: MessageWork, call: Call, limit: float) -> Call:
        began = self._clock.monotonic()

        def done() -> None:
            took = self._clock.monotonic() - began
            if took >= limit:
                queue, request = work.delivery.receipt.queue, storable_text(work.id, SHORT_TEXT)
                log.warning("%s of %s took %.3g s (request %s)", work.name, queue, took, request)

        async def awaited(running: Any) -> Any:
            try:
                return await running
            finally:
                done()

        def called(function: Callable[[], Any]) -> Any:
            try:
                return function()
            finally:
                done()

        return (lambda: called(call)) if callable(call) else awaited(call)

    def decide(self, work: MessageWork, error: Exception, asked: Asked, random: float) -> Decision:
        """A waiting caller gets the error at once, unless the handler asks for another attempt."""
        if not _wants_reply(work.delivery) or isinstance(error, DoRetry):
            return super().decide(work, error, asked, random)
        if isinstance(error, RemoteError):
            return _TOLD
        return SendToDeadLetters("undeliverable", error_text(error))

    def refuse(self, refusal: Refusal) -> Decision | None:
        if refusal.kind != "undeliverable" and _wants_reply(refusal.delivery):
            return _TOLD
        return super().refuse(refusal)

    def successor(self, work: MessageWork, failure: Failure) -> Message:
        """No caller waits for a redriven dead letter, so it has no deadline."""
        message = super().successor(work, failure)
        given = message.properties
        if given is None or isinstance(failure.decision, RetryLater):
            return message
        return msgspec.structs.replace(message, properties=kept_properties(given))

    def duplicate_key(self, work: MessageWork, dedup: Deduplicator) -> str:
        return f"{work.name}:{super().duplicate_key(work, dedup)}"

    # -- replies ----------------------------------------------------------------------------------

    def _reply(self, work: MessageWork, body: bytes | None, failure: Failure | None) -> Finished:
        """Reply to a waiting caller once the outcome of its call is final."""
        properties = work.delivery.properties
        if properties is None or not properties.reply_to:
            return None
        if failure is not None:
            if isinstance(failure.decision, RetryLater):
                return None  # the caller waits for the next attempt
            body = self._told(failure.error)
        reply = Message(
            "",
            properties.reply_to,
            body or b"null",
            properties=Properties(correlation_id=properties.correlation_id, transient=True),
        )
        return self._sent(reply)

    async def _sent(self, reply: Message) -> None:
        """Send a reply; if it cannot be stored, send an error reply instead."""
        try:
            try:
                await self._outbox.begin(Parcel(reply, None, None))
            except UnstorableError as error:
                log.error("the reply to a call cannot be sent: %s", error)
                body = error_reply(type(error).__name__, f"the reply cannot be sent: {error}")
                shorter = msgspec.structs.replace(reply, body=body)
                await self._outbox.begin(Parcel(shorter, None, None))
        except MatadorError as error:
            log.warning(
                "a reply to %s was not sent, so its caller will time out: %s",
                storable_text(reply.queue, SHORT_TEXT),
                error,
            )

    def _told(self, error: Exception) -> bytes:
        """The error reply for a caller."""
        if isinstance(error, RemoteError):
            return error_reply(error.code, error.remote_message, error.details)
        if isinstance(error, UnknownCommand):
            return error_reply(_VALIDATION, error_text(error), error.details)
        if isinstance(error, Unreadable | Unhandled):
            return error_reply(_VALIDATION, error_text(error))
        code = type(error).__name__
        if self._hide_errors and not isinstance(error, _SAFE):
            return error_reply(code, _HIDDEN)
        try:
            details = getattr(error, "details", None)
        except Exception:  # noqa: BLE001 - a user's property may raise anything
            details = None
        return error_reply(code, error_text(error), None if callable(details) else details)


class UnknownCommand(Unhandled):
    """There is no handler for a command."""

    def __init__(self, command: str, known: Mapping[str, Any]) -> None:
        name = storable_text(command, SHORT_TEXT)
        super().__init__(f"No handler registered for command: {name}")
        self.details = {"command": name, "registeredCommands": sorted(known)}


def _encoded(work: MessageWork, result: Any) -> bytes:
    """The body of a reply."""
    if result is None:
        return b"null"
    return encode_data(result, f"the result of {work.name}", InvalidMessageError)


def command_of(delivery: Delivery) -> str:
    """The command of a request, in upper case; empty if it has none."""
    properties = delivery.properties
    return "" if properties is None or properties.type is None else properties.type.upper()


def kept_properties(given: Properties) -> Properties:
    """The properties of a request without a waiting caller."""
    return Properties(correlation_id=given.correlation_id, type=given.type)


def _wants_reply(delivery: Delivery) -> bool:
    properties = delivery.properties
    return properties is not None and bool(properties.reply_to)
