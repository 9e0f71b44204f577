"""The base of the services of RPC, pub/sub and channels: sends messages without an envelope, with
facts and metadata, and receives them with one set of options."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, TypedDict, TypeVar, Unpack, get_args

import msgspec

from matador.errors import ConfigurationError, DontRetry, InvalidMessageError, MatadorError
from matador.model.arguments import check_arguments
from matador.model.capabilities import DeliveryMode
from matador.model.message import Delivery, Headers, Message
from matador.model.options import Seconds, one_of, optional_seconds
from matador.model.subscriber import Idempotency
from matador.model.topology import DeadLetterQueue, DeadLetters, WorkQueue, dead_letter_name
from matador.policy.ack import DEAD_LETTER, AckStrategy, DeadLetterOptions
from matador.policy.dedup import Deduplication
from matador.policy.recovery import Recovery
from matador.policy.retry import CustomRetryPolicy, RetryPolicy
from matador.policy.validation import Validation
from matador.runtime.calls import Calls
from matador.runtime.checkpoints import CheckpointStore
from matador.runtime.connection import Connection
from matador.runtime.dead_letters import DeadLetterOffice
from matador.runtime.dedup import in_memory
from matador.runtime.facts import Kind, Sent, Way
from matador.runtime.functions import MessageFunction, read_function
from matador.runtime.hooks import HookSet, Sending
from matador.runtime.messages import (
    DeliveryContext,
    MessageOptions,
    MessageReader,
    MessageRoute,
    MessageWay,
    MessageWork,
    decoded,
    routing_key_of,
)
from matador.runtime.metrics import Counters
from matador.runtime.outbox import Parcel
from matador.runtime.service import Service, ServiceOptions, check_options
from matador.runtime.way import Refusal, Route, Scope, WayIn, Work
from matador.runtime.worker import DeliveryWorker
from matador.transports.base import Transport
from matador.transports.clock import Clock

log = logging.getLogger("matador.worker")

T = TypeVar("T")

# -- sending --------------------------------------------------------------------------------------

_RESERVED = ("x-retry", "x-hermes", "x-matador-", "x-first-failure", "x-death", "x-delivery-count")
_COPIES_TO = frozenset({"CC", "BCC"})  # RabbitMQ would send copies to other queues
_NO_HEADERS: Headers = {}


def metadata_headers(metadata: Mapping[str, object] | None, where: str) -> Headers:
    """The headers for a sender's metadata, without headers that brokers and Matador write.

    Raises:
        InvalidMessageError: a value is neither text nor a number.
    """
    if not metadata:
        return _NO_HEADERS
    if not isinstance(metadata, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise InvalidMessageError(f"{where}: metadata must be a mapping, got {metadata!r}")
    headers: dict[str, str | int] = {}
    for name, value in metadata.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise InvalidMessageError(f"{where}: names of metadata must be text, got {name!r}")
        if name.lower().startswith(_RESERVED) or name in _COPIES_TO or value is None:
            continue
        if not isinstance(value, str | int | float):
            raise InvalidMessageError(
                f"{where}: metadata {name!r} must be text or a number, got {value!r}"
            )
        headers[name] = repr(value) if isinstance(value, float) else value
    return headers


def check_ids(where: str, message_id: object, correlation_id: object) -> None:
    """Check the ids given by a sender.

    Raises:
        InvalidMessageError: one of them is not text.
    """
    if message_id is None and correlation_id is None:
        return  # as for most messages
    for name, value in (("message_id", message_id), ("correlation_id", correlation_id)):
        if value is not None and not isinstance(value, str):
            raise InvalidMessageError(f"{where}: {name} must be text, got {value!r}")


class MessageService(Service):
    """A service that sends or receives messages without an envelope."""

    _way: ClassVar[Way] = "message"

    def __init__(
        self,
        where: str,
        given: str | Transport,
        *,
        recovery: Recovery | None = None,
        **options: Unpack[ServiceOptions],
    ) -> None:
        check_options(options, ServiceOptions, where)
        check_arguments(where, recovery=recovery)
        self._recovery = recovery
        self._broker = Connection(given, where, recovery=recovery)
        super().__init__(where, self._broker, **options)

    def another(self) -> Self:
        other = super().another()
        assert other._connection is not None
        other._broker = other._connection
        return other

    def _rehost(self, transport: Transport, clock: Clock, checkpoints: CheckpointStore) -> None:
        super()._rehost(transport, clock, checkpoints)
        self._connection = self._broker = Connection(transport, self._where)

    def _sending(
        self,
        operation: str,
        name: str | tuple[str, ...],
        receiver: str,
        metadata: Mapping[str, Any] | None,
        send: Callable[[Mapping[str, Any] | None], Awaitable[T]],
        count: int = 1,
    ) -> Awaitable[T]:
        """Send with the metadata of hooks, between the ``on_send_enter`` and ``on_send_exit``
        hooks.

        The sender's own metadata override those of hooks.
        """
        hooks = self._hooks
        if hooks.send_around is None and hooks.load_universal_metadata is None:
            return send(metadata)
        names = (name,) if isinstance(name, str) else name
        transport = self._broker.transport.name
        event = Sending(self._way, operation, names, receiver, count, transport, {})

        async def sent(universal: Mapping[str, Any]) -> T:
            more = _as_headers({**universal, **event.metadata})
            return await send({**more, **(metadata or {})})

        async def surrounded() -> T:
            universal = await hooks.universal_metadata() or {}
            around = hooks.send_around
            sending = sent(universal)
            return await (sending if around is None else around.between(event, sending))

        return surrounded()

    async def _send(self, parcel: Parcel) -> int:
        """Send a message; returns in how many queues it was stored. A shutdown waits for it."""
        outbox, activity = self._may_send(), self._activity
        activity.enqueuing += 1
        try:
            outcome = await outbox.post(parcel)
        finally:
            activity.finished_enqueuing()
        if isinstance(outcome, int):
            return outcome
        raise outcome

    async def _send_many(self, parcels: Sequence[Parcel]) -> list[int | MatadorError]:
        """Send messages in order; return the outcome of each. A shutdown waits for them."""
        outbox, activity = self._may_send(), self._activity
        activity.enqueuing += len(parcels)
        try:
            if len(parcels) == 1:  # batched with those of other callers
                return [await outbox.post(parcels[0])]
            return await outbox.send_many(parcels)
        finally:
            activity.finished_enqueuing(len(parcels))

    def _parcel(
        self, message: Message, name: str, exchange: str | None = None, body: bytes | None = None
    ) -> Parcel:
        """A message to send, with its fact if hooks need it. ``body``: before compression."""
        if self._hooks.sent is None:
            return Parcel(message, exchange, None)
        now, properties = self._clock.time(), message.properties
        receiver = message.queue if exchange is None else exchange
        transport = self._broker.transport.name
        fact = Sent(
            Kind(self._way, name, receiver, receiver, transport),
            message.id,
            now,
            message.body if body is None else body,
            due_at=now + message.delay if message.delay else None,
            correlation_id=None if properties is None else properties.correlation_id,
            metadata=message.headers or None,
        )
        return Parcel(message, exchange, fact)


def _as_headers(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of hooks as headers: values other than text and numbers are encoded as JSON."""
    return {
        name: value
        if value is None or isinstance(value, str | int | float)
        else msgspec.json.encode(value, enc_hook=str).decode()
        for name, value in metadata.items()
    }


# -- receiving ------------------------------------------------------------------------------------


class ReceiverOptions(ServiceOptions, total=False):
    """Options of services that receive messages without an envelope. See also ``ServiceOptions``.

    Attributes:
        timeout: the time limit of a handler in seconds; None: no limit. A handler in a thread
            cannot be stopped: the worker waits for it and logs a warning.
        ack: the retry policy, and whether handlers acknowledge messages themselves.
        retry: the retry policy, instead of that of ``ack``.
        delivery: ``at-most-once``: messages are acknowledged before their handlers run.
        validation: the requirements for messages.
        deduplication: how duplicates are detected. None: not at all.
        checkpoints: the store for the steps of resumable handlers.
        recovery: the buffer for sends without a connection, and how the connection is restored.
    """

    timeout: Seconds | None
    ack: AckStrategy | None
    retry: RetryPolicy | None
    delivery: DeliveryMode
    validation: Validation | None
    deduplication: Deduplication | None
    checkpoints: CheckpointStore | None
    recovery: Recovery | None


def work_queue(
    given: str | WorkQueue, where: str, *, create: bool = True, concurrency: int | None = None
) -> WorkQueue:
    """The queue, given by name or with options, under its name on the broker.

    Raises:
        ConfigurationError: it is neither, or another argument contradicts it.
    """
    if isinstance(given, str) and given.strip():
        given = WorkQueue(given)
    if not isinstance(given, WorkQueue):
        raise ConfigurationError(
            f"{where}: queue must be a non-empty text or a WorkQueue, got {given!r}"
        )
    if given.dead_letters is not None:
        raise ConfigurationError(f"{where}: give dead_letters= beside the queue, not in it")
    if concurrency is not None and given.concurrency not in (None, concurrency):
        raise ConfigurationError(
            f"{where}: concurrency is {concurrency}, but that of the queue is {given.concurrency}; "
            f"give one of them"
        )
    return given.named(create=create, concurrency=concurrency or given.concurrency)


class HandlerOptions(TypedDict, total=False):
    """Options of one handler.

    Attributes:
        idempotent: whether it may run again for the same message, after a failure or a crash.
        timeout: the time limit in seconds; by default, that of the receiver.
        retry: its retry policy; by default, that of the receiver.
    """

    idempotent: Idempotency
    timeout: Seconds | None
    retry: RetryPolicy | None


def _checked_retry(retry: RetryPolicy | None, where: str) -> RetryPolicy | None:
    check_arguments(where, retry=retry)
    return retry


class MessageReceiver(MessageService):
    """A service that receives messages without an envelope."""

    def __init__(
        self,
        where: str,
        given: str | Transport,
        *,
        letters: DeadLetterOptions,
        context: type[DeliveryContext],
        **options: Unpack[ReceiverOptions],
    ) -> None:
        check_options(options, ReceiverOptions, where)
        timeout, ack = options.pop("timeout", None), options.pop("ack", None)
        retry, delivery = options.pop("retry", None), options.pop("delivery", "at-least-once")
        check_arguments(where, ack=ack, retry=retry)
        for name in ("validation", "deduplication", "checkpoints"):
            check_arguments(where, **{name: options.get(name)})
        self._validation = options.pop("validation", None) or Validation()
        self._deduplication = options.pop("deduplication", None)
        self._checkpoints = options.pop("checkpoints", None)
        super().__init__(where, given, **options)
        one_of(delivery, f"{where}: delivery", get_args(DeliveryMode))
        self._policy: RetryPolicy = retry or (ack or AckStrategy()).policy
        self._manual = ack is not None and ack.mode == "manual"
        self._at_most_once = delivery == "at-most-once"
        if self._manual and self._at_most_once:
            raise ConfigurationError(
                f"{where}: delivery='at-most-once' acknowledges before the handler runs, so it "
                f"cannot be used with AckStrategy(mode='manual')"
            )
        self._timeout = optional_seconds(timeout, f"{where}: timeout", minimum=0.001)
        self._letters = letters
        self._context = context
        self._processor = self._read_processor(letters)

    def _rehost(self, transport: Transport, clock: Clock, checkpoints: CheckpointStore) -> None:
        super()._rehost(transport, clock, checkpoints)
        self._checkpoints = checkpoints
        self._deduplication = in_memory(self._deduplication, clock)

    @property
    def _consumes(self) -> bool:
        return True

    def _routes_of(self, delivery: Delivery, queue: str) -> Sequence[MessageRoute]:
        """The handlers of a message that was sent to a queue; empty if there are none."""
        raise NotImplementedError

    @property
    def reader(self) -> MessageReader:
        """The reader of the messages stored in its queues."""
        return MessageReader(self._validation, name_of=routing_key_of, routes_of=self._routes_of)

    @property
    def checkpoints(self) -> CheckpointStore | None:
        """The store for the steps of resumable handlers."""
        return self._checkpoints

    @property
    def dead_letters(self) -> DeadLetterOffice:
        """The dead letters: browse, redrive or purge them.

        Example:
            >>> async for letter in server.dead_letters.browse():
            ...     print(letter.id, letter.name, letter.reason)

        Raises:
            ConfigurationError: it consumes no queue.
            NotStartedError: it uses an in-memory transport and has not been started.
        """
        topology = self.topology
        if topology is None:
            raise ConfigurationError(f"{self._where} has no queues, so there are no dead letters")
        return self._office(topology, self.reader, self._checkpoints)

    def _letter_arguments(self, work: MessageWork) -> Any:
        """The arguments of the dead-letter handler besides the data."""
        raise NotImplementedError

    def _route(self, function: MessageFunction, options: HandlerOptions) -> MessageRoute:
        """The route to a handler.

        Raises:
            ConfigurationError: an option is not valid.
        """
        name = function.name
        check_options(options, HandlerOptions, name)
        idempotent = options.get("idempotent", "yes")
        one_of(idempotent, f"{name}: idempotent", get_args(Idempotency))
        timeout = optional_seconds(options.get("timeout"), f"{name}: timeout", minimum=0.001)
        return MessageRoute(
            handler=function.name,
            idempotent=idempotent,
            timeout=timeout or self._timeout,
            at_most_once=self._at_most_once,
            is_async=function.is_async,
            takes_context=function.takes_context,
            function=function,
            retry=_checked_retry(options.get("retry"), name),
        )

    def _read_processor(self, letters: DeadLetterOptions) -> MessageFunction | None:
        """The function that processes dead letters, if there is one."""
        if not letters.enabled or letters.handler is None:
            return None
        where = f"{self._where}: dead letters"
        return _letter_function(read_function(letters.handler, where, context=self._context))

    def _letters_of(self, queue: str) -> DeadLetterOptions:
        """The options for the dead letters of a queue."""
        return self._letters

    def _processor_of(self, queue: str) -> MessageFunction | None:
        """The function that processes the dead letters of a queue."""
        return self._processor

    def _kept(self, letters: DeadLetterOptions | None = None) -> DeadLetters:
        """The dead-letter queues of its queues, or of one with other options."""
        letters = letters or self._letters
        kept = DeadLetterQueue(
            enabled=letters.enabled,
            max_length=letters.max_length,
            ttl=letters.ttl,
            exchange=letters.exchange,
            routing_key=letters.routing_key,
        )
        return DeadLetters(unhandled=False, undeliverable=False, dlq=kept)

    async def _receive(
        self,
        transport: Transport,
        way: Callable[[MessageOptions, DeliveryWorker], WayIn],
        queues: Mapping[str, int],
        *,
        read_ahead: Callable[[str], bool],
    ) -> None:
        """Handle the messages of queues, given by their names with their concurrency."""
        can_keep = transport.capabilities.dead_letters != "none"
        options = MessageOptions(
            way=self._way,
            policy=self._policy,
            validation=self._validation,
            clock=self._clock,
            keeps=lambda queue: can_keep and self._letters_of(queue).enabled,
            transport=transport.name,
        )
        dedup = await self._open_dedup(self._deduplication)
        if self._checkpoints is not None:
            self._at_end("close the checkpoint store", self._checkpoints.close)
            await self._checkpoints.open()
        await self._consume(
            transport,
            lambda worker: way(options, worker),
            queues,
            max_deliveries=self._policy.max_deliveries,
            checkpoints=self._checkpoints,
            dedup=dedup,
            manual=self._manual,
            read_ahead=lambda queue: not self._at_most_once and read_ahead(queue),
        )
        for queue, most in queues.items():
            function = self._processor_of(queue)
            if function is not None:
                await self._consume(
                    transport,
                    lambda worker, function=function: _DeadLetterWay(
                        options, function, self._letter_arguments, worker.calls
                    ),
                    {dead_letter_name(queue, DEAD_LETTER): most},
                    minds_deadlines=False,
                    hooks=HookSet(),
                    counters=Counters(),
                )


# -- dead letters that a function processes -------------------------------------------------------

_LETTER_ATTEMPTS = 3
_LETTER_PAUSE = 0.5  # seconds after the first failure; twice as long after the second


class _DeadLetterWay(MessageWay):
    """Gives each dead letter to a function, malformed ones included, and deletes it.

    If the function fails, the dead letter is tried up to three times in total, and then deleted
    with an error in the log. It stays in the queue meanwhile, so a crash loses nothing.
    """

    def __init__(
        self,
        options: MessageOptions,
        function: MessageFunction,
        arguments: Callable[[MessageWork], Any],
        calls: Calls,
    ) -> None:
        once = CustomRetryPolicy(1)
        super().__init__(msgspec.structs.replace(options, policy=once, keeps=_nothing_kept))
        self._function = function
        self._arguments = arguments
        self._calls = calls
        self._route = Route(handler=function.name)
        self.open = None

    def read(self, delivery: Delivery) -> Work | Refusal:
        work = self._work(delivery, delivery.body)
        work.route = self._route
        return work

    async def call(self, work: MessageWork, scope: Scope | None) -> None:
        function, attempt = self._function, 1
        while True:
            # Decode it for each attempt, because the function may change the data.
            data = decoded(function, work.body)
            arguments = self._arguments(msgspec.structs.replace(work, attempt=attempt))
            bound = function.bind(arguments, data)
            try:
                if function.is_async:
                    await bound()
                else:
                    await self._calls.in_thread(bound, limit=None, who=function.name)
                return
            except Exception as error:
                if attempt >= _LETTER_ATTEMPTS or isinstance(error, DontRetry):
                    raise
                queue = work.delivery.receipt.queue
                log.warning("processing a dead letter of %s failed; trying again: %s", queue, error)
            await asyncio.sleep(_LETTER_PAUSE * attempt)
            attempt += 1


def _nothing_kept(queue: str) -> bool:
    return False


def _letter_function(read: MessageFunction) -> MessageFunction:
    """A function for dead letters, which may be of any kind.

    Without a type, its data is the decoded JSON of the body, or the raw bytes if the body is not
    JSON.
    """
    if read.takes is bytes:
        return replace(read, decode=bytes)
    return replace(read, decode=_json_or_bytes) if read.takes is Any else read


def _json_or_bytes(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return body
