"""Admission: decides whether a delivered message may run, before its handler starts."""

from __future__ import annotations

from matador.errors import MatadorError, MaybePoisonedError, NonIdempotentCannotRetryError
from matador.model.message import Receipt
from matador.model.subscriber import Idempotency
from matador.policy.retry import (
    is_poisoned,
    may_run_again,
    not_idempotent_reason,
    poison_reason,
)


def refuse(receipt: Receipt, idempotent: Idempotency, max_deliveries: int) -> MatadorError | None:
    """An error with the reason why a message must not run, or None if it may run.

    Called before the handler, because a poisoned message may crash the worker.
    """
    if receipt.delivery_count <= 1 and not receipt.redelivered:
        return None
    if is_poisoned(receipt, max_deliveries):
        return MaybePoisonedError(poison_reason(receipt))
    if receipt.redelivered and not may_run_again(idempotent):
        return NonIdempotentCannotRetryError(not_idempotent_reason(idempotent))
    return None
