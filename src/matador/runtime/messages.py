"""The way in that RPC, pub/sub and channels share: messages of a body and headers, without an
envelope. Their attempts and errors travel in headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec import structs

from matador.codec.data import encode_data
from matador.errors import ConfigurationError, InvalidMessageError, LifecycleError
from matador.model.message import Delivery, Headers, Message, Properties
from matador.model.text import BOM, SHORT_TEXT, error_text, storable_text
from matador.model.topology import DeadLetterKind
from matador.policy.ack import DEAD_LETTER
from matador.policy.retry import RetryLater, RetryPolicy, SendToDeadLetters
from matador.policy.validation import Validation
from matador.runtime.context import Context
from matador.runtime.dead_letters import CHANGED, Contents, Edit, Fresh, without_reason
from matador.runtime.dedup import Deduplicator
from matador.runtime.error_headers import error_headers, error_type
from matador.runtime.facts import Received, Way, moment
from matador.runtime.functions import MessageFunction
from matador.runtime.way import Call, Failure, Refusal, RefusalKind, Route, Scope, WayIn, Work
from matador.transports.clock import Clock

RETRY_COUNT = "x-retry-count"
"""The header with the number of attempts that have failed."""

FIRST_FAILURE = "x-first-failure"
"""The header with the time of the first failure, in milliseconds since 1970."""

ORIGINAL_QUEUE = "x-matador-original-queue"
"""The header of a dead letter with the queue it comes from."""

FIRST_QUEUE = "x-matador-first-queue"
"""The header of a message that failed in a queue that was deleted since: the name of that queue. It
is part of the key of its stored steps."""

FAILED_AT = "x-matador-failed-at"
"""The header of a dead letter with the time of the failure, in milliseconds since 1970."""

ERROR = "x-matador-last-error"
"""The header of a retry or a dead letter with the text of the last error."""

FAILED_HANDLERS = "x-matador-failed-handlers"
"""The header with the names of the handlers that a retry runs; without it, all run."""

GIVEN_UP_HANDLERS = "x-matador-given-up-handlers"
"""The header with the names of handlers that failed permanently, while others are retried."""

ENCODING = "content-encoding"
"""The header of a compressed message; its value is ``gzip``."""

_MOST = 1 << 53


class Unreadable(InvalidMessageError):
    """A message that cannot be read, or whose data is not of the type that its handler takes."""


class Unhandled(InvalidMessageError):
    """A message that has no handler."""


class MessageRoute(Route, frozen=True, kw_only=True):
    """A handler of messages; ``retry``: its own retry policy."""

    function: MessageFunction
    retry: RetryPolicy | None = None


_NO_ROUTE = Route(handler="")
"""The route of a message that has no handler."""


class MessageWork(Work, gc=False, kw_only=True):
    """A message that was read.

    Attributes:
        body: the body, decompressed.
        data: the payload in the type that the handler takes.
        name: the name of the message in facts.
        first_failure: when the first attempt failed, in seconds since 1970.
    """

    body: bytes
    data: Any = None
    name: str = ""
    first_failure: float | None = None

    @property
    def headers(self) -> Headers:
        """The headers."""
        return self.delivery.headers


class MessageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How messages are handled. ``keeps``: whether failed ones of a queue become dead letters, in
    ``{queue}.dlq``."""

    way: Way
    policy: RetryPolicy
    validation: Validation
    clock: Clock
    keeps: Callable[[str], bool]
    transport: str


class MessageWay(WayIn):
    """A way in of messages without an envelope. Subclasses find the handler of a message."""

    def __init__(self, options: MessageOptions) -> None:
        self._options = options
        self._validation = options.validation
        self._clock = options.clock
        self.malformed = options.validation.malformed
        self.open = self._decode_data

    # -- what a subclass says ---------------------------------------------------------------------

    def body_of(self, delivery: Delivery) -> tuple[bytes, str | None]:
        """The decompressed body, and the problem if it cannot be read."""
        return delivery.body, None

    def name_of(self, delivery: Delivery) -> str:
        """The name of a message in facts. Must not raise."""
        return routing_key_of(delivery) or delivery.receipt.queue

    def route_of(self, delivery: Delivery, name: str) -> Route:
        """The handler of a message.

        Raises:
            Unhandled: there is none.
        """
        raise NotImplementedError

    def data_of(self, route: Any, body: bytes) -> Any:
        """The data of a message in the type that its handler takes.

        Raises:
            Unreadable: it is not of that type.
        """
        function: MessageFunction = route.function
        if function.decode is None and (problem := self._validation.problem_of(body)) is not None:
            raise Unreadable(problem)
        return decoded(function, body)

    def arguments(self, work: MessageWork, scope: Scope | None) -> Any:
        """The source of the values of a handler's parameters besides its data."""
        raise NotImplementedError

    # -- the functions of a way in ----------------------------------------------------------------

    def read(self, delivery: Delivery) -> Work | Refusal:
        body, problem = self.body_of(delivery)
        work = self._work(delivery, body.removeprefix(BOM))
        problem = delivery.problem or problem
        if problem is None:
            try:
                work.route = self.route_of(delivery, work.name)
                return work
            except Unhandled as unhandled:
                problem = self._validation.problem_of(work.body)
                if problem is None:
                    return Refusal(delivery, unhandled, "unhandled", work)
        return Refusal(delivery, Unreadable(problem), "malformed", work)

    def _work(self, delivery: Delivery, body: bytes) -> MessageWork:
        properties, headers, attempts, failed = delivery.properties, delivery.headers, 0, None
        if headers:
            failed = _header_number(headers, FIRST_FAILURE)
            attempts = _header_number(headers, RETRY_COUNT) or 0
        return MessageWork(
            delivery,
            _NO_ROUTE,
            delivery.id or self._clock.new_id(),
            attempts + 1,
            None if properties is None else properties.expires_at,
            body=body,
            name=self.name_of(delivery),
            first_failure=None if failed is None else failed / 1000,
        )

    def _decode_data(self, work: MessageWork) -> Refusal | None:
        body, problem, error = work.body, None, None
        # Leave a body that starts like an object to the decoder of its handler.
        if len(body) > self._validation.max_size or not body.startswith(b"{"):
            problem = self._validation.problem_of(body)
        if problem is None:
            try:
                work.data = self.data_of(work.route, body)
                return None
            except Unreadable as unreadable:
                error, problem = unreadable, self._validation.problem_of(body)  # it may not be JSON
        if error is None or problem is not None:
            error = Unreadable(problem)
        return Refusal(work.delivery, error, "malformed", work)

    def call(self, work: MessageWork, scope: Scope | None) -> Call:
        function = cast("MessageRoute", work.route).function
        arguments = self.arguments(work, scope) if work.route.takes_context else None
        bound = function.bind(arguments, work.data)
        return bound() if function.is_async else bound

    def policy(self, work: MessageWork) -> RetryPolicy:
        return getattr(work.route, "retry", None) or self._options.policy

    def successor(self, work: MessageWork, failure: Failure) -> Message:
        delivery, decision = work.delivery, failure.decision
        receipt, longest = delivery.receipt, min(failure.longest_text, SHORT_TEXT)
        now = self._clock.time()
        first = now if work.first_failure is None else work.first_failure
        headers: dict[str, str | int] = {
            **delivery.headers,
            FIRST_FAILURE: round(first * 1000),
            ERROR: error_text(failure.shown, longest),
        }
        if failure.ran:
            headers[RETRY_COUNT] = work.attempt
        if isinstance(decision, SendToDeadLetters):
            full = failure.ran and not failure.bare
            headers |= {
                ORIGINAL_QUEUE: receipt.queue,
                FAILED_AT: round(now * 1000),
                **(error_headers(failure.shown) if full else error_type(failure.shown)),
            }
        delay = decision.delay if isinstance(decision, RetryLater) else 0.0
        return message_of(delivery, work.id, headers, delay)

    def fact(self, work: MessageWork) -> Received:
        delivery = work.delivery
        properties = delivery.properties
        return Received(
            self._options.way,
            work.id,
            work.name,
            delivery.receipt.queue,
            self._options.transport,
            delivery,
            work.attempt,
            self._clock.time(),  # these messages do not contain a creation time
            None,
            None if properties is None else properties.correlation_id,
            delivery.headers,
            known=work.route is not _NO_ROUTE,
            data=work.body,
            handler=work.route.handler,
        )

    def unread(self, delivery: Delivery) -> Received:
        return self.fact(self._work(delivery, delivery.body))

    def label(self, work: MessageWork) -> str:
        handler = work.route.handler
        what = f"message {storable_text(work.id, SHORT_TEXT)} of {work.delivery.receipt.queue}"
        return f"{handler}: {what}" if handler else what

    def dead_letters(self, queue: str, kind: RefusalKind) -> DeadLetterKind | None:
        return DEAD_LETTER if self._options.keeps(queue) else None

    def checkpoint_id(self, work: MessageWork) -> str:
        return checkpoint_id(work.delivery, work.id, work.delivery.receipt.queue)

    def duplicate_key(self, work: MessageWork, dedup: Deduplicator) -> str:
        key = dedup.key_of(work.delivery.id or None, work.body, lambda: self.keyed(work))
        return f"{work.delivery.receipt.queue}:{key}"


class MessageReader:
    """Reads and renews stored messages without an envelope. See ``StoredReader``.

    Args:
        validation: the requirements for messages.
        name_of: returns the name of a message in facts.
        routes_of: returns the handlers of a message that was sent to a queue; empty if there are
            none.
        body_of: returns the decompressed body, and the problem if it cannot be read.
        kept_properties: the properties that a renewed message keeps, without its deadline.
    """

    def __init__(
        self,
        validation: Validation,
        *,
        name_of: Callable[[Delivery], str],
        routes_of: Callable[[Delivery, str], Sequence[MessageRoute]],
        body_of: Callable[[Delivery], tuple[bytes, str | None]] = lambda one: (one.body, None),
        kept_properties: Callable[[Properties], Properties] = lambda one: one,
    ) -> None:
        self._validation = validation
        self._name_of = name_of
        self._routes_of = routes_of
        self._body_of = body_of
        self._kept_properties = kept_properties

    def read(self, delivery: Delivery, queue: str) -> Contents:
        headers, properties = delivery.headers, delivery.properties
        body, problem = self._body(delivery)
        error, original = headers.get(ERROR), headers.get(ORIGINAL_QUEUE)
        return Contents(
            id=delivery.id,
            name=self._name_of(delivery),
            receiver=", ".join(one.handler for one in self._routes_of(delivery, queue)),
            attempts=_header_number(headers, RETRY_COUNT) or 0,
            last_error=None if error is None else str(error),
            correlation_id=None if properties is None else properties.correlation_id,
            metadata=_metadata_of(headers),
            original_queue=None if original is None else str(original),
            plain=lambda: None if problem else msgspec.json.decode(body),
            problem=problem,
        )

    def _body(self, delivery: Delivery) -> tuple[bytes, str | None]:
        body, problem = self._body_of(delivery)
        body = body.removeprefix(BOM)
        return body, problem or self._validation.problem_of(body)

    def renewed(self, delivery: Delivery, queue: str, edit: Edit | None = None) -> Fresh:
        body, properties = delivery.body, delivery.properties
        headers = {k: v for k, v in without_reason(delivery.headers).items() if k not in _OF_FAILED}
        if edit is not None:
            found, problem = self._body(delivery)
            if edit.expected is not None and (
                problem or msgspec.json.decode(found) != edit.expected
            ):
                raise InvalidMessageError(CHANGED)
            body = encode_data(edit.data, "the payload", InvalidMessageError)
            for route in self._routes_of(delivery, queue):
                decoded(route.function, body)  # raises if the handler would not accept it
            headers.pop(ENCODING, None)
        if properties is not None:
            properties = self._kept_properties(structs.replace(properties, expires_at=None))
        return Fresh(body, headers, properties)

    def checkpoint_id(self, delivery: Delivery, id: str, queue: str) -> str:
        return checkpoint_id(delivery, id, queue)


def checkpoint_id(delivery: Delivery, id: str, queue: str) -> str:
    """The id of the steps of a message. It contains the queue, because a published message has the
    same id in every queue."""
    headers = delivery.headers
    return f"{headers.get(FIRST_QUEUE, queue) if headers else queue}:{id}"


_OF_FAILED = frozenset(
    (RETRY_COUNT, FIRST_FAILURE, ORIGINAL_QUEUE, FAILED_AT, ERROR, GIVEN_UP_HANDLERS)
)
"""The headers of failed attempts and dead letters. Renewed messages keep ``FAILED_HANDLERS``: of
several handlers, only those that have failed run again."""


def routing_key_of(delivery: Delivery) -> str:
    """The key that a message was published with; empty if it has none."""
    properties = delivery.properties
    return "" if properties is None else properties.routing_key or ""


def message_of(delivery: Delivery, id: str, headers: Headers, delay: float = 0.0) -> Message:
    """A delivered message, to store it again."""
    receipt = delivery.receipt
    return Message(
        id,
        receipt.queue,
        delivery.body,
        headers,
        delay,
        receipt.priority,
        receipt.ordering_key,
        delivery.properties,
    )


def decoded(function: MessageFunction, body: bytes) -> Any:
    """The data of a message in the type that its handler takes; None if it takes none.

    Raises:
        Unreadable: the data is not of that type.
    """
    if function.decode is None:
        return None
    try:
        return function.decode(body)
    except Exception as error:  # a user's validator may raise anything
        raise Unreadable(f"{function.name}: {error_text(error, SHORT_TEXT)}") from error


def _header_number(headers: Headers, name: str) -> int | None:
    """A header as a non-negative whole number; None if it is not one."""
    value = headers.get(name)
    if value is None:
        return None
    try:
        found = int(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return found if 0 <= found <= _MOST else None


# -- the context of a handler ---------------------------------------------------------------------


class _Noted:
    """An optional awaitable: the work was already done by the call."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_NOTED = _Noted()


class DeliveryContext(Context):
    """Data about the message of a handler besides its payload.

    Attributes:
        message_id: the id of the message, the same in every attempt.
        attempts: the number of this attempt, from 1.
        first_failure: when the first attempt failed; None in the first attempt.
    """

    __slots__ = ("_acknowledgement", "attempts", "first_failure", "message_id")

    def __init__(
        self,
        work: MessageWork,
        scope: Scope | None,
        sender: Callable[..., Awaitable[Any]] | None = None,
    ) -> None:
        super().__init__(
            scope,
            work.delivery,
            id=work.id,
            attempt=work.attempt,
            metadata=_metadata_of(work.headers),
            deadline=moment(work.deadline),
            sender=sender,
        )
        self._acknowledgement = None if scope is None else scope.acknowledgement
        self.message_id = work.id
        self.attempts = work.attempt
        self.first_failure: datetime | None = moment(work.first_failure)

    def ack(self) -> _Noted:
        """Acknowledge the message. In manual mode, call this or ``nack`` for every message.

        The message is deleted when the handler returns. In auto mode, no call is needed.

        Example:
            >>> @sub.on("orders.*")  # of a Subscriber with AckStrategy(mode="manual")
            ... async def orders(order: dict, ctx: MessageContext) -> None:
            ...     await store(order)
            ...     ctx.ack()
        """
        return self._decide(None)

    def nack(self, requeue: bool = False) -> _Noted:
        """Reject the message: retry it, or make it a dead letter. For manual mode.

        Raises:
            ConfigurationError: the mode is ``auto``; raise an error instead.

        Example:
            >>> @sub.on("orders.*")  # of a Subscriber with AckStrategy(mode="manual")
            ... async def orders(order: dict, ctx: MessageContext) -> None:
            ...     ctx.nack(requeue=ctx.attempts < 3)
        """
        if self._acknowledgement is None:
            raise ConfigurationError(
                "nack() is for AckStrategy(mode='manual'); in auto mode, raise an error instead"
            )
        return self._decide(requeue)

    def _decide(self, requeue: bool | None) -> _Noted:
        if self._acknowledgement is not None:  # in auto mode, the message is acknowledged anyway
            try:
                self._acknowledgement.decide(requeue)
            except RuntimeError as error:
                ended = "the worker has ended, so nothing can be acknowledged"
                raise LifecycleError(ended) from error
        return _NOTED


class MessageContext(DeliveryContext):
    """Data about the message of a handler of pub/sub or a channel, besides its payload.

    Attributes:
        routing_key: the key that the message was published with, or its name in the channel.
        exchange: the exchange that it was published to; empty for a message of one consumer.

    Example:
        >>> @sub.on("orders.*")
        ... async def orders(order: dict, ctx: MessageContext) -> None:
        ...     print(ctx.routing_key, ctx.message_id, ctx.attempts)
    """

    __slots__ = ("exchange", "routing_key")
    used_by = "pub/sub and channels"
    _send_instead = (
        "open a Publisher beside the subscriber: `await publisher.publish('orders.paid', data, "
        "correlation_id=ctx.correlation_id)`"
    )

    def __init__(
        self,
        work: MessageWork,
        scope: Scope | None,
        exchange: str,
        sender: Callable[..., Awaitable[str]] | None = None,
    ) -> None:
        super().__init__(work, scope, sender)
        properties = work.delivery.properties
        self.routing_key = "" if properties is None else properties.routing_key or ""
        self.exchange = exchange

    def send(
        self, *arguments: object, correlation_id: str | None = None, **options: object
    ) -> Awaitable[str]:
        """Send a message to a consumer, with the arguments of ``QueueService.send``; return its id.

        It has the correlation id of the current message. In a sync consumer this blocks.

        Raises:
            ConfigurationError: this is pub/sub, which only receives here.

        Example:
            >>> await ctx.send("orders", "shipped", {"id": 1})
        """
        sent = super().send(*arguments, correlation_id=correlation_id, **options)
        return cast("Awaitable[str]", sent)


def _metadata_of(headers: Headers) -> Mapping[str, str | int]:
    """The sender's own headers, without those that brokers and Matador write."""
    return {name: value for name, value in headers.items() if not name.startswith("x-")}
