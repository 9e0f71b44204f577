"""Handles requests: finds the handler of the command, runs it, replies, then has it settled."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from matador.codec.data import encode_data
from matador.errors import (
    InvalidMessageError,
    MatadorError,
    RemoteError,
    TimeoutError,
    UnstorableError,
)
from matador.messages.context import Acknowledgement, Arrival
from matador.messages.counters import MessageCounters
from matador.messages.functions import MessageFunction
from matador.messages.handler import (
    HandlingOptions,
    MessageHandler,
    Nacked,
    Unhandled,
    Unreadable,
    decoded,
)
from matador.messages.outbox import Outbox
from matador.model.message import Message, Properties
from matador.model.text import SHORT_TEXT, error_text, loggable, storable_text
from matador.rpc.wire import error_reply
from matador.runtime.dedup import Deduplicator
from matador.runtime.worker import DeliveryWorker
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.rpc")

_HIDDEN = "the command failed; the log of the server says why"
_VALIDATION = "ValidationError"
_SAFE = (InvalidMessageError, Nacked, TimeoutError)
"""Errors of Matador's own about a call, whose texts callers may see."""


class RpcHandler(MessageHandler):
    """A ``Handler`` of the delivery runtime. Used by many slots at once.

    Args:
        worker: what runs it.
        options: how requests are handled.
        commands: the handlers by their commands, which may change while it runs.
        outbox: sends the replies.
        hide_errors: whether callers are not told what unexpected errors say.
        slow_call: seconds after which a call is logged as slow; None: never.
        counters: counts what happens.
        dedup: finds duplicates; None: they are run, too.
        clock: where time comes from.
    """

    def __init__(
        self,
        worker: DeliveryWorker,
        options: HandlingOptions,
        *,
        commands: Mapping[str, MessageFunction],
        outbox: Outbox,
        hide_errors: bool,
        slow_call: float | None,
        counters: MessageCounters,
        dedup: Deduplicator | None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(worker, options, counters=counters, dedup=dedup, clock=clock)
        self._commands = commands
        self._outbox = outbox
        self._hide_errors = hide_errors
        self._slow_call = slow_call
        self._most_attempts = options.ack.max_retries
        self._time = clock or SystemClock()

    def key_of(self, dedup: Deduplicator, arrival: Arrival) -> str:
        """See ``MessageHandler``. Two commands never share a result."""
        return f"{command_of(arrival)}:{super().key_of(dedup, arrival)}"

    async def run(self, arrival: Arrival, acknowledgement: Acknowledgement | None) -> bytes:
        """See ``MessageHandler``. The result is the body of the reply."""
        command = command_of(arrival)
        function = self._commands.get(command)
        if function is None:
            raise _unknown(command, self._commands)
        data = decoded(function, arrival.delivery.body)
        began = self._time.monotonic()
        try:
            result = await self.call(function, (arrival, acknowledgement, command), data)
        finally:
            if self._slow_call is not None:
                self._tell_slow(command, arrival, self._time.monotonic() - began)
        if result is None:
            return b"null"
        return encode_data(result, f"the result of {command}", InvalidMessageError)

    def _tell_slow(self, command: str, arrival: Arrival, took: float) -> None:
        if self._slow_call is not None and took >= self._slow_call:
            log.warning(
                "%s of %s took %.3g s (request %s)",
                command,
                arrival.delivery.receipt.queue,
                took,
                storable_text(arrival.message_id, SHORT_TEXT),
            )

    # -- replies ----------------------------------------------------------------------------------

    async def finished(self, arrival: Arrival, result: bytes | None) -> None:
        """See ``MessageHandler``: the reply, before the request is acknowledged."""
        await self._reply(arrival, result or b"null")

    async def refused(self, arrival: Arrival, error: Exception) -> bool:
        """See ``MessageHandler``."""
        details: object = None
        code = type(error).__name__
        if isinstance(error, _UnknownCommand):
            details = error.details
        if isinstance(error, Unreadable | Unhandled):
            code = _VALIDATION
        return await self._reply(arrival, error_reply(code, error_text(error), details))

    async def failed(self, arrival: Arrival, error: Exception) -> bool:
        """See ``MessageHandler``."""
        if not _wants_reply(arrival):
            return False
        if isinstance(error, Nacked) and error.requeue and arrival.attempt < self._most_attempts:
            return False  # the caller waits for the next attempt
        expected = isinstance(error, RemoteError)
        log.log(
            logging.INFO if expected else logging.ERROR,
            "%s of %s failed (%s: %s); the caller is told",
            command_of(arrival),
            arrival.delivery.receipt.queue,
            type(error).__name__,
            error_text(error, SHORT_TEXT),
            exc_info=None if expected else loggable(error),
        )
        return await self._reply(arrival, self._told(error))

    def _told(self, error: Exception) -> bytes:
        """What a caller is told of an error."""
        if isinstance(error, RemoteError):
            return error_reply(error.code, error.remote_message, error.details)
        code = type(error).__name__
        if self._hide_errors and not isinstance(error, _SAFE):
            return error_reply(code, _HIDDEN)
        try:
            details = getattr(error, "details", None)
        except Exception:  # noqa: BLE001 - a property of the user's may raise anything
            details = None
        return error_reply(code, error_text(error), None if callable(details) else details)

    async def _reply(self, arrival: Arrival, body: bytes) -> bool:
        """Send a reply if somebody waits for it: whether somebody does."""
        properties = arrival.delivery.properties
        if properties is None or not properties.reply_to:
            return False
        reply = Message(
            "",
            properties.reply_to,
            body,
            properties=Properties(correlation_id=properties.correlation_id, transient=True),
        )
        try:
            await self._outbox.begin(reply)
        except UnstorableError as error:
            await self._reply_shorter(reply, error)
        except MatadorError as error:
            _tell_lost(reply, error)
        return True

    async def _reply_shorter(self, reply: Message, cause: UnstorableError) -> None:
        """The reply cannot be stored, because it is too large: say so instead."""
        log.error("the reply to a call cannot be sent: %s", cause)
        body = error_reply(type(cause).__name__, f"the reply cannot be sent: {cause}")
        try:
            await self._outbox.begin(
                Message("", reply.queue, body, properties=reply.properties),
            )
        except MatadorError as error:
            _tell_lost(reply, error)


class _UnknownCommand(Unhandled):
    """There is no handler for a command."""

    def __init__(self, message: str, details: object) -> None:
        super().__init__(message)
        self.details = details


def _unknown(command: str, known: Mapping[str, MessageFunction]) -> _UnknownCommand:
    name = storable_text(command, SHORT_TEXT)
    return _UnknownCommand(
        f"No handler registered for command: {name}",
        {"command": name, "registeredCommands": sorted(known)},
    )


def command_of(arrival: Arrival) -> str:
    """The command of a request, in upper case; empty if it has none."""
    properties = arrival.delivery.properties
    return "" if properties is None or properties.type is None else properties.type.upper()


def _wants_reply(arrival: Arrival) -> bool:
    properties = arrival.delivery.properties
    return properties is not None and bool(properties.reply_to)


def _tell_lost(reply: Message, error: MatadorError) -> None:
    log.warning(
        "a reply to %s was not sent, and its caller waits in vain: %s",
        storable_text(reply.queue, SHORT_TEXT),
        error,
    )
