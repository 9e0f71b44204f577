"""The facts of a failure, for tests of policies."""

from __future__ import annotations

from typing import Any

from tests.support.envelopes import make_docket

from matador.model.envelope import Envelope
from matador.model.message import Receipt
from matador.model.subscriber import Idempotency, Subscriber, subscriber
from matador.policy.retry import RetryContext


def make_subscriber(idempotent: Idempotency = "unknown") -> Subscriber[Any]:
    def charge(envelope: object) -> None: ...

    return subscriber(description="Charge the card.", idempotent=idempotent)(charge)


def make_context(
    *,
    error: BaseException | None = None,
    attempts: int = 1,
    deliveries: int = 1,
    redelivered: bool = False,
    idempotent: Idempotency = "unknown",
    random: float = 0.0,
    **decided: Any,
) -> RetryContext:
    return RetryContext(
        envelope=Envelope("1", None, make_docket(attempts=attempts)),
        error=ValueError("broken") if error is None else error,
        subscriber=make_subscriber(idempotent),
        receipt=Receipt("shop.events", 1, deliveries, redelivered),
        random=random,
        **decided,
    )
