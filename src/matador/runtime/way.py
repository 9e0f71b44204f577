"""Defines a way in: a wire format and a few functions. The pipeline does everything else.

Events, jobs, RPC, pub/sub and channels are each a ``WayIn``. All of its functions are called by
many slots at once, and none of them may keep state between messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeAlias, final

import msgspec

from matador.errors import TimeoutError
from matador.model.message import DeadLetter, Delivery, Message, Settlement
from matador.model.subscriber import Idempotency
from matador.model.text import SHORT_TEXT, error_text
from matador.model.topology import DeadLetterKind
from matador.policy.dedup import KeyedMessage
from matador.policy.retry import (
    Decision,
    Discard,
    RetryContext,
    RetryPolicy,
    SendToDeadLetters,
)
from matador.policy.validation import Malformed
from matador.runtime.acknowledgement import Acknowledgement
from matador.runtime.dedup import Deduplicator
from matador.runtime.facts import Received
from matador.runtime.steps import Steps

Call: TypeAlias = Coroutine[Any, Any, Any] | Callable[[], Any]
"""The user's function with its arguments bound: a coroutine, or a function to call in a thread."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the pipeline about a handler. Ways in add their own fields.

    Attributes:
        handler: its name, for logs and errors.
        idempotent: whether it may run again for the same message.
        timeout: the time limit of an attempt in seconds; None: no limit.
        at_most_once: the message is acknowledged before the handler runs.
        is_async: it runs on the event loop. A handler in a thread cannot be stopped: after its
            timeout, the worker logs a warning and waits for it.
        takes_context: it takes a context, or needs one to acknowledge.
        is_bare: computed: the handler only has to be called, without any layers.
    """

    handler: str
    idempotent: Idempotency = "yes"
    timeout: float | None = None
    at_most_once: bool = False
    is_async: bool = True
    takes_context: bool = False
    is_bare: bool = False

    def __post_init__(self) -> None:
        bare = (
            self.is_async
            and self.timeout is None
            and not self.at_most_once
            and not self.takes_context
            and self.idempotent != "resumable"
        )
        msgspec.structs.force_setattr(self, "is_bare", bare)


class Work(msgspec.Struct, gc=False):
    """A decoded message and its handler. Only ``WayIn.open`` modifies it.

    Attributes:
        delivery: the message as it arrived.
        route: its handler.
        id: its id, the same in every attempt.
        attempt: the number of this attempt, from 1.
        deadline: seconds since the epoch after which its sender no longer waits; None: no deadline.
    """

    delivery: Delivery
    route: Route
    id: str
    attempt: int
    deadline: float | None = None


RefusalKind: TypeAlias = Literal["malformed", "unhandled", "undeliverable"]
"""``malformed``: it cannot be read. ``unhandled``: there is no handler for it. ``undeliverable``:
its handler must not, or cannot, run."""


@final
class Refusal(msgspec.Struct, frozen=True):
    """The reason why a message is not run. ``work`` has the parts that could be decoded, if any."""

    delivery: Delivery
    error: Exception
    kind: RefusalKind
    work: Any = None


class Scope(msgspec.Struct, frozen=True):
    """The data of one run of a handler, for its context.

    Attributes:
        steps: the stored steps of a resumable handler; None: nothing is stored.
        acknowledgement: the handler's decision in manual mode; None: auto mode.
        when_lost: calls a function if the lease of the message is lost.
    """

    steps: Steps | None
    acknowledgement: Acknowledgement | None
    when_lost: Callable[[Callable[[], None]], None]


class Asked(msgspec.Struct, frozen=True):
    """The decisions of hooks about one message; None leaves it to the retry policy."""

    max_attempts: int | None = None
    max_deliveries: int | None = None
    delay: float | None = None


NOTHING_ASKED = Asked()


class HandlersFailed(Exception):
    """Some of several handlers of one message failed.

    Attributes:
        failures: their errors in this attempt, by their names.
        given_up: the names of those that failed permanently, in this attempt or in earlier ones.
        again: the names of those that are retried.
    """

    def __init__(self, failures: Mapping[str, Exception], given_up: Sequence[str]) -> None:
        parts = [f"{name}: {error_text(one, SHORT_TEXT)}" for name, one in failures.items()]
        super().__init__("; ".join(parts) or "failed in an earlier attempt")
        self.failures = failures
        self.given_up = given_up
        self.again: Sequence[str] = ()


class Failure(msgspec.Struct, frozen=True):
    """An attempt that failed, or a message that was refused.

    Attributes:
        error: the error.
        decision: the decision about the message.
        ran: False if the handler did not run.
        longest_text: the maximum length of a stored error text; smaller after the broker has
            refused a longer one.
        bare: leave out parts that the broker may have refused: properties and tracebacks.
    """

    error: Exception
    decision: Decision
    ran: bool
    longest_text: int
    bare: bool = False

    @property
    def shown(self) -> Exception:
        """The error to report: that of the only handler that failed, or all of them."""
        error = self.error
        if isinstance(error, HandlersFailed) and len(error.failures) == 1:
            return next(iter(error.failures.values()))
        return error


Finished: TypeAlias = Awaitable[bytes | None] | bytes | None


class WayIn(ABC):
    """The functions of a way in."""

    malformed: Malformed = "dead-letter"

    @abstractmethod
    def read(self, delivery: Delivery) -> Work | Refusal:
        """Decode a message and find its handler. Must not raise, even for foreign data.

        ``open`` decodes the payload: user validators run only for admitted messages. Otherwise a
        message whose validation kills the process would never be refused.
        """

    @abstractmethod
    def call(self, work: Any, scope: Scope | None) -> Call:
        """The user's function with its arguments bound.

        ``scope`` is given if the route is resumable, takes a context, or acknowledges manually.
        """

    @abstractmethod
    def policy(self, work: Any) -> RetryPolicy:
        """The retry policy for a message."""

    @abstractmethod
    def successor(self, work: Any, failure: Failure) -> Message:
        """The message to store for a retry or a dead letter, as ``failure.decision`` says.

        Passes the payload on unchanged, byte for byte.
        """

    @abstractmethod
    def fact(self, work: Any) -> Received:
        """The name, receiver, id and times of a message, for hooks and logs."""

    @abstractmethod
    def unread(self, delivery: Delivery) -> Received:
        """``fact`` for a message that cannot be read. Must not raise, even for foreign data."""

    @abstractmethod
    def label(self, work: Any) -> str:
        """A message and its handler in a few words, for the log."""

    @abstractmethod
    def dead_letters(self, queue: str, kind: RefusalKind) -> DeadLetterKind | None:
        """The kind of dead letters to keep for a queue; None: they are not kept."""

    # -- what most ways in have in common ---------------------------------------------------------

    def decide(self, work: Any, error: Exception, asked: Asked, random: float) -> Decision:
        """Decide about a message whose handler failed."""
        return self.policy(work).decide(self.retry_context(work, error, asked, random))

    def retry_context(
        self, work: Any, error: Exception, asked: Asked, random: float
    ) -> RetryContext:
        """The input of the retry policy."""
        return RetryContext(
            error=error,
            attempts=work.attempt,
            receipt=work.delivery.receipt,
            idempotent=work.route.idempotent,
            interrupted=getattr(error, "interrupted", False) is True,
            random=random,
            max_attempts=asked.max_attempts,
            max_deliveries=asked.max_deliveries,
            delay=asked.delay,
        )

    def refuse(self, refusal: Refusal) -> Decision | None:
        """Decide about a message that is not run; None: it is deleted without a log line."""
        if refusal.kind == "malformed" and self.malformed == "ignore":
            return None
        return SendToDeadLetters("undeliverable", str(refusal.error))

    def kept(self, queue: str, kind: RefusalKind, reason: str) -> SendToDeadLetters | Discard:
        """The decision to keep a dead letter, or to discard it if they are disabled."""
        found = self.dead_letters(queue, kind)
        if found is None:
            return Discard(f"{reason} (dead letters are disabled)")
        return SendToDeadLetters(found, reason)

    def letter(self, letter: DeadLetter, delivery: Delivery) -> Settlement | None:
        """The settlement that keeps a dead letter; None: it is already stored."""
        return letter

    def checkpoint_id(self, work: Any) -> str:
        """The id under which the steps of a resumable handler are stored."""
        return work.id

    open: Callable[[Any], Refusal | None] | None = None
    """Decodes the payload of an admitted message into its work; returns a refusal if the payload is
    invalid."""

    encode: Callable[[Any, Any], bytes | None] | None = None
    """Encodes the result of a handler for storage. An exception is a failure of the handler. None:
    results are not stored."""

    finished: Callable[[Any, bytes | None, Failure | None], Finished] | None = None
    """Called before a message is settled, with its encoded result or its failure: RPC sends the
    reply here. The return value is stored with the completed message."""

    def duplicate_key(self, work: Any, dedup: Deduplicator) -> str:
        """The key that identifies duplicates of a message within its queue.

        A published message has the same id in every queue, and each queue must handle it.
        """
        delivery = work.delivery
        key = dedup.key_of(delivery.id or None, delivery.body, lambda: self.keyed(work))
        return f"{delivery.receipt.queue}:{key}"

    def keyed(self, work: Any) -> KeyedMessage:
        """The message as passed to a key function for duplicates."""
        message = self.fact(work)
        return KeyedMessage(
            message.id,
            message.name,
            message.queue,
            message.envelope.data,
            {**message.delivery.headers, **(message.metadata or {})},
            message.correlation_id,
        )

    def late(self, work: Any, limit: float) -> TimeoutError | None:
        """The error of a handler that took longer than its timeout; None: the usual one."""
        return None
