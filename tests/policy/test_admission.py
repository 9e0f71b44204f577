"""Which deliveries may run at all."""

from __future__ import annotations

import pytest

from matador.errors import MaybePoisonedError, NonIdempotentCannotRetryError
from matador.model.message import Receipt
from matador.model.subscriber import Idempotency
from matador.policy.admission import refuse

each_idempotency = pytest.mark.parametrize("idempotent", ["yes", "no", "unknown", "resumable"])


def receipt(deliveries: int, *, redelivered: bool) -> Receipt:
    return Receipt("shop.events", 1, deliveries, redelivered)


@each_idempotency
def test_a_first_delivery_runs_whatever_the_limit(idempotent: Idempotency) -> None:
    first = receipt(1, redelivered=False)
    assert refuse(first, idempotent, 5) is None
    assert refuse(first, idempotent, 1) is None


@each_idempotency
@pytest.mark.parametrize("deliveries", [5, 6, 100])
def test_a_message_delivered_too_often_does_not_run(
    idempotent: Idempotency, deliveries: int
) -> None:
    refused = refuse(receipt(deliveries, redelivered=True), idempotent, 5)
    assert isinstance(refused, MaybePoisonedError)
    assert str(deliveries) in str(refused)


@pytest.mark.parametrize("idempotent", ["no", "unknown"])
def test_a_redelivered_message_does_not_run_again_if_it_must_not(idempotent: Idempotency) -> None:
    refused = refuse(receipt(2, redelivered=True), idempotent, 5)
    assert isinstance(refused, NonIdempotentCannotRetryError)
    assert repr(idempotent) in str(refused)


@pytest.mark.parametrize("idempotent", ["yes", "resumable"])
@pytest.mark.parametrize("deliveries", [2, 3, 4])
def test_a_redelivered_message_runs_again_if_it_may(
    idempotent: Idempotency, deliveries: int
) -> None:
    assert refuse(receipt(deliveries, redelivered=True), idempotent, 5) is None


@each_idempotency
def test_a_later_delivery_that_was_given_back_runs(idempotent: Idempotency) -> None:
    assert refuse(receipt(2, redelivered=False), idempotent, 5) is None


@each_idempotency
def test_a_second_delivery_is_one_too_many_at_a_limit_of_two(idempotent: Idempotency) -> None:
    for redelivered in (True, False):
        refused = refuse(receipt(2, redelivered=redelivered), idempotent, 2)
        assert isinstance(refused, MaybePoisonedError)
