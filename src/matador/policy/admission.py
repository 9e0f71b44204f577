"""May a delivered message run at all? Asked before its callback starts, not after."""

from __future__ import annotations

from typing import Any

from matador.errors import MatadorError, MaybePoisonedError, NonIdempotentCannotRetryError
from matador.model.message import Receipt
from matador.model.subscriber import Subscriber
from matador.policy.retry import (
    is_poisoned,
    may_run_again,
    not_idempotent_reason,
    poison_reason,
)


def refuse(
    receipt: Receipt, subscriber: Subscriber[Any], max_deliveries: int
) -> MatadorError | None:
    """Why a message must not run: an error whose message is the reason, or None to run it.

    Checked afterwards, a poisoned message would have killed one more worker, and a callback that
    must not run twice would have.
    """
    if receipt.delivery_count <= 1 and not receipt.redelivered:
        return None
    if is_poisoned(receipt, max_deliveries):
        return MaybePoisonedError(poison_reason(receipt))
    if receipt.redelivered and not may_run_again(subscriber):
        return NonIdempotentCannotRetryError(not_idempotent_reason(subscriber))
    return None
