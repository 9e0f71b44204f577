"""The retry policy: decides what happens to a message whose callback failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from matador.errors import ConfigurationError, DontRetry, DoRetry, EventAssertionError
from matador.model.envelope import Envelope
from matador.model.message import Receipt
from matador.model.options import Seconds, seconds, set_fields, whole_number
from matador.model.subscriber import Subscriber
from matador.model.topology import DeadLetterKind

# -- decisions ------------------------------------------------------------------------------------


Outcome: TypeAlias = Literal["success", "retry", "dead-letter", "discard"]
"""How an attempt ended: the names used in logs, the journal, tables, counts and metrics."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Retry after ``delay`` seconds."""

    outcome: ClassVar[Outcome] = "retry"
    delay: float
    reason: str = "failed"


@dataclass(frozen=True, slots=True)
class SendToDeadLetters:
    """Do not retry; keep the message as a dead letter."""

    outcome: ClassVar[Outcome] = "dead-letter"
    kind: DeadLetterKind
    reason: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Do not retry; delete the message."""

    outcome: ClassVar[Outcome] = "discard"
    reason: str


Decision: TypeAlias = RetryLater | SendToDeadLetters | Discard

# -- policies -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryContext:
    """The input of a retry policy.

    Attributes:
        envelope: the message; ``envelope.docket.attempts`` includes this attempt.
        error: the exception of the callback.
        subscriber: the subscriber that failed.
        receipt: the receipt of the delivery.
        random: a random number from 0 to 1, for jitter.
        max_attempts, max_deliveries, delay: set if a hook decided them for this message.
    """

    envelope: Envelope[Any]
    error: BaseException
    subscriber: Subscriber[Any]
    receipt: Receipt
    random: float = 0.0
    max_attempts: int | None = None
    max_deliveries: int | None = None
    delay: float | None = None


class RetryPolicy(Protocol):
    """Decides what happens to a failed message. Must be pure: same input, same decision."""

    def decide(self, context: RetryContext) -> Decision:
        """The decision for one failure."""
        ...

    @property
    def max_deliveries(self) -> int:
        """How often a message may be delivered before it counts as poisoned."""
        ...


@dataclass(frozen=True, slots=True, init=False)
class StandardRetryPolicy:
    """Retries with exponential backoff, unless a retry cannot help. The first match applies:

    1. delivered ``max_deliveries`` times → undeliverable, possibly poisoned
    2. an assertion about the event failed → undeliverable
    3. ``DontRetry`` → undeliverable
    4. ``DoRetry`` → retried, up to ``max_attempts``
    5. ``max_attempts`` reached → undeliverable
    6. redelivered, but not declared idempotent → undeliverable
    7. otherwise retried after ``base_delay`` × ``multiplier`` ^ (attempt - 1), at most
       ``max_delay``; ``jitter`` (0 to 1) shortens the delay by a random share of up to that size

    Example:
        >>> from matador import StandardRetryPolicy
        >>> policy = StandardRetryPolicy(max_attempts=5, base_delay=0.5, jitter=0.2)
        >>> policy.delay(attempt=3)
        2.0
    """

    max_attempts: int
    base_delay: float
    max_delay: float
    multiplier: float
    jitter: float
    max_deliveries: int

    def __init__(
        self,
        max_attempts: int = 3,
        base_delay: Seconds = 1.0,
        max_delay: Seconds = 300.0,
        multiplier: float = 2.0,
        jitter: float = 0.0,
        max_deliveries: int = 5,
    ) -> None:
        where = "StandardRetryPolicy"
        if not _is_number(jitter) or not 0 <= jitter <= 1:
            raise ConfigurationError(f"{where}: jitter must be from 0 to 1, got {jitter!r}")
        if not _is_number(multiplier) or not 1 <= multiplier < float("inf"):
            raise ConfigurationError(f"{where}: multiplier must be at least 1, got {multiplier!r}")
        set_fields(
            self,
            max_attempts=whole_number(max_attempts, f"{where}: max_attempts", minimum=1),
            base_delay=seconds(base_delay, f"{where}: base_delay"),
            max_delay=seconds(max_delay, f"{where}: max_delay"),
            multiplier=float(multiplier),
            jitter=float(jitter),
            max_deliveries=whole_number(max_deliveries, f"{where}: max_deliveries", minimum=1),
        )

    def delay(self, attempt: int, random: float = 0.0) -> float:
        """Seconds to wait after the attempt with that number."""
        try:
            grown = self.base_delay * self.multiplier ** (attempt - 1)
        except OverflowError:
            grown = self.max_delay if self.base_delay else 0.0
        return min(grown, self.max_delay) * (1.0 - self.jitter * random)

    def decide(self, context: RetryContext) -> Decision:
        """See the class."""
        error = context.error
        attempts = context.envelope.docket.attempts
        most = self.max_attempts if context.max_attempts is None else context.max_attempts
        deliveries = (
            self.max_deliveries if context.max_deliveries is None else context.max_deliveries
        )
        if is_poisoned(context.receipt, deliveries):
            return SendToDeadLetters("undeliverable", poison_reason(context.receipt))
        if isinstance(error, EventAssertionError):
            return SendToDeadLetters("undeliverable", f"assertion error: {error}")
        if isinstance(error, DontRetry):
            return SendToDeadLetters("undeliverable", str(error))
        if isinstance(error, DoRetry):
            if attempts >= most:
                return SendToDeadLetters(
                    "undeliverable", f"max attempts exceeded ({most}) with forced retry"
                )
            return self._later(context, attempts, "retry requested")
        if attempts >= most:
            return SendToDeadLetters("undeliverable", f"max attempts exceeded ({most})")
        if context.receipt.redelivered and not may_run_again(context.subscriber):
            return SendToDeadLetters("undeliverable", not_idempotent_reason(context.subscriber))
        return self._later(context, attempts, "failed")

    def _later(self, context: RetryContext, attempts: int, reason: str) -> RetryLater:
        if context.delay is not None:
            return RetryLater(context.delay, reason)
        return RetryLater(self.delay(attempts, context.random), reason)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- shared with admission ------------------------------------------------------------------------


def is_poisoned(receipt: Receipt, max_deliveries: int) -> bool:
    """Was it delivered so often without being settled that it may crash its workers?

    A first delivery is never poisoned, whatever the limit.
    """
    return receipt.delivery_count > 1 and receipt.delivery_count >= max_deliveries


def may_run_again(subscriber: Subscriber[Any]) -> bool:
    """Is the subscriber declared safe to run again?"""
    return subscriber.idempotent in ("yes", "resumable")


def poison_reason(receipt: Receipt) -> str:
    """The reason of a dead letter that may be poisoned."""
    return f"possibly poisoned: delivered {receipt.delivery_count} times without an outcome"


def not_idempotent_reason(subscriber: Subscriber[Any]) -> str:
    """The reason of a dead letter that was redelivered."""
    declared = subscriber.idempotent
    return f"redelivered, and the subscriber is not idempotent (idempotent={declared!r})"
