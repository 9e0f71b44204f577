"""The shop all chapters are about: two events, and how they are declared."""

from __future__ import annotations

from dataclasses import dataclass

from matador import event


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@event("payment.taken", description="A card was charged.")
@dataclass(frozen=True)
class PaymentTaken:
    order_id: str
