"""The retry policy: decides what happens to a message whose handler failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from matador.errors import ConfigurationError, DontRetry, DoRetry, EventAssertionError
from matador.model.envelope import Envelope
from matador.model.message import Receipt
from matador.model.options import Seconds, seconds, set_fields, whole_number
from matador.model.subscriber import Idempotency, Subscriber
from matador.model.text import error_text
from matador.model.topology import DeadLetterKind
from matador.policy.backoff import growing_delay, share

# -- decisions ------------------------------------------------------------------------------------


Outcome: TypeAlias = Literal["success", "retry", "dead-letter", "discard"]
"""The outcome of an attempt, as named in logs, the journal, tables, counters and metrics."""


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
    """Do not retry; delete the message.

    ``answered``: the sender received the reason in a reply, so nothing is lost.
    """

    outcome: ClassVar[Outcome] = "discard"
    reason: str
    answered: bool = False


Decision: TypeAlias = RetryLater | SendToDeadLetters | Discard

# -- policies -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryContext:
    """The input of a retry policy.

    Attributes:
        error: the exception of the handler.
        attempts: the number of attempts, including this one.
        receipt: the receipt of the delivery.
        idempotent: whether the handler may run again for the same message.
        interrupted: its timeout canceled the handler, so it may have done half of its work.
        random: a random number from 0 to 1, for jitter.
        max_attempts, max_deliveries, delay: set if a hook decided them for this message.
        envelope: the message, if it is an event.
        subscriber: the subscriber that failed, if the message is an event.
    """

    error: BaseException
    attempts: int
    receipt: Receipt
    idempotent: Idempotency = "unknown"
    interrupted: bool = False
    random: float = 0.0
    max_attempts: int | None = None
    max_deliveries: int | None = None
    delay: float | None = None
    envelope: Envelope[Any] | None = None
    subscriber: Subscriber[Any] | None = None


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
    4. ``DoRetry`` → retried, up to ``max_attempts``, after its own delay if it has one
    5. ``max_attempts`` reached → undeliverable
    6. redelivered after a crash or a lost lease, or interrupted by its timeout, and the handler is
       not declared idempotent (``no``, ``unknown``) → undeliverable
    7. failed, and the handler is declared ``idempotent="no"`` → undeliverable
    8. otherwise retried after ``base_delay`` × ``multiplier`` ^ (attempt - 1), at most
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
        if not _is_number(multiplier) or not 1 <= multiplier < float("inf"):
            raise ConfigurationError(f"{where}: multiplier must be at least 1, got {multiplier!r}")
        set_fields(
            self,
            max_attempts=whole_number(max_attempts, f"{where}: max_attempts", minimum=1),
            base_delay=seconds(base_delay, f"{where}: base_delay"),
            max_delay=seconds(max_delay, f"{where}: max_delay"),
            multiplier=float(multiplier),
            jitter=share(jitter, where),
            max_deliveries=whole_number(max_deliveries, f"{where}: max_deliveries", minimum=1),
        )

    def delay(self, attempt: int, random: float = 0.0) -> float:
        """Seconds to wait after the attempt with that number."""
        grown = growing_delay(attempt, self.base_delay, self.multiplier, self.max_delay)
        return grown * (1.0 - self.jitter * random)

    def wants_retry(self, error: BaseException, attempt: int) -> bool:
        """Whether to retry after an ordinary error; subclasses may override it."""
        return True

    def decide(self, context: RetryContext) -> Decision:
        """See the class."""
        error, attempts = context.error, context.attempts
        most = self.max_attempts if context.max_attempts is None else context.max_attempts
        deliveries = (
            self.max_deliveries if context.max_deliveries is None else context.max_deliveries
        )
        if is_poisoned(context.receipt, deliveries):
            return SendToDeadLetters("undeliverable", poison_reason(context.receipt))
        if isinstance(error, EventAssertionError):
            return SendToDeadLetters("undeliverable", f"assertion error: {error}")
        if isinstance(error, DontRetry):
            return SendToDeadLetters("undeliverable", error_text(error))
        if isinstance(error, DoRetry):
            if attempts >= most:
                return SendToDeadLetters(
                    "undeliverable", f"max attempts exceeded ({most}) with forced retry"
                )
            return self._later(context, "retry requested", error.delay)
        if attempts >= most:
            return SendToDeadLetters("undeliverable", f"max attempts exceeded ({most})")
        idempotent = context.idempotent
        if not may_run_again(idempotent):
            if context.receipt.redelivered:
                return SendToDeadLetters("undeliverable", not_idempotent_reason(idempotent))
            if context.interrupted:
                return SendToDeadLetters(
                    "undeliverable",
                    f"interrupted by its timeout, and not idempotent (idempotent={idempotent!r})",
                )
        if idempotent == "no":
            return SendToDeadLetters(
                "undeliverable", "failed, and must not run again (idempotent='no')"
            )
        if not self.wants_retry(error, attempts):
            return SendToDeadLetters("undeliverable", f"not to be retried: {error_text(error)}")
        return self._later(context, "failed")

    def _later(
        self, context: RetryContext, reason: str, asked: Seconds | None = None
    ) -> RetryLater:
        for given, where in ((asked, "DoRetry: delay"), (context.delay, "get_retry_delay")):
            if given is not None:
                try:
                    return RetryLater(seconds(given, where), reason)
                except ConfigurationError:  # unusable: the policy's own delay applies
                    continue
        return RetryLater(self.delay(context.attempts, context.random), reason)


@dataclass(frozen=True, slots=True, init=False)
class CustomRetryPolicy(StandardRetryPolicy):
    """The standard policy with custom delays and a custom choice of errors.

    Jobs (``attempts=``, ``backoff=``) and ``AckStrategy`` use it.

    Args:
        max_attempts: as in ``StandardRetryPolicy``.
        delays: seconds to wait after the attempt with a number. None: the standard delays.
        when: whether to retry, as a function of the error and the number of the attempt. If the
            function raises, its result is ignored. None: always.
        jitter, max_deliveries: as in ``StandardRetryPolicy``.
    """

    delays: Callable[[int], Any] | None
    when: Callable[[Any, int], bool] | None

    def __init__(
        self,
        max_attempts: int = 3,
        *,
        delays: Callable[[int], Any] | None = None,
        when: Callable[[Any, int], bool] | None = None,
        jitter: float = 0.0,
        max_deliveries: int = 5,
    ) -> None:
        StandardRetryPolicy.__init__(
            self, max_attempts, jitter=jitter, max_deliveries=max_deliveries
        )
        set_fields(self, delays=delays, when=when)

    def delay(self, attempt: int, random: float = 0.0) -> float:
        """Seconds to wait after the attempt with that number."""
        if self.delays is not None:
            try:
                found = seconds(self.delays(attempt), "delay")
            except Exception:  # noqa: BLE001 - a user's function may raise, or return, anything
                found = StandardRetryPolicy.delay(self, attempt)
            return found * (1.0 - self.jitter * random)
        return StandardRetryPolicy.delay(self, attempt, random)

    def wants_retry(self, error: BaseException, attempt: int) -> bool:
        """Whether to retry after an ordinary error."""
        if self.when is None:
            return True
        try:
            return bool(self.when(error, attempt))
        except Exception:  # noqa: BLE001 - a user's function may raise anything
            return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- shared with admission ------------------------------------------------------------------------


def is_poisoned(receipt: Receipt, max_deliveries: int) -> bool:
    """Whether it was delivered so often without being settled that it may crash its workers.

    A first delivery is never poisoned, whatever the limit.
    """
    return receipt.delivery_count > 1 and receipt.delivery_count >= max_deliveries


def may_run_again(idempotent: Idempotency) -> bool:
    """Whether the handler is declared safe to run again."""
    return idempotent in ("yes", "resumable")


def poison_reason(receipt: Receipt) -> str:
    """The reason of a dead letter that may be poisoned."""
    return f"possibly poisoned: delivered {receipt.delivery_count} times without an outcome"


def not_idempotent_reason(idempotent: Idempotency) -> str:
    """The reason of a dead letter that was redelivered."""
    return f"redelivered, and the handler is not idempotent (idempotent={idempotent!r})"
