"""The facts of a failure, for tests of policies."""

from __future__ import annotations

from typing import Any

from matador.model.message import Receipt
from matador.model.subscriber import Idempotency
from matador.policy.retry import RetryContext


def make_context(
    *,
    error: BaseException | None = None,
    attempts: int = 1,
    deliveries: int = 1,
    redelivered: bool = False,
    idempotent: Idempotency = "unknown",
    **others: Any,
) -> RetryContext:
    return RetryContext(
        error=ValueError("broken") if error is None else error,
        attempts=attempts,
        receipt=Receipt("shop.events", 1, deliveries, redelivered),
        idempotent=idempotent,
        **others,
    )
