"""Filters on payload fields: what they mean, what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from matador.errors import ConfigurationError
from matador.events.field_filters import FieldFilters

ORDER: dict[str, Any] = {
    "amount": 150,
    "country": "NL",
    "paid": True,
    "note": None,
    "empty": "",
    "number": "7",
    "customer": {"name": "Ada", "tags": ["vip", "new", 3]},
    "items": [{"sku": "a"}, {"sku": "b"}],
}


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ("amount>100", True),
        ("amount > 150", False),
        ("amount>=150", True),
        ("amount<=150", True),
        ("amount<150", False),
        ("amount=150", True),
        ("amount=150.0", True),
        ("amount=-150", False),
        ("amount!=150", False),
        ("amount=NL", False),
        ("amount!=NL", True),
        ("country=NL", True),
        ('country="NL"', True),
        ("country = BE", False),
        ("country!=BE", True),
        ("country>MM", True),
        ("country>5", True),  # both are texts
        ("number=7", True),
        ("number=7.0", False),
        ("paid=true", True),
        ("paid=false", False),
        ("paid=1", False),
        ("amount=true", False),
        ("paid>0", False),
        ("note=null", True),
        ("note!=null", False),
        ("amount=null", False),
        ("amount!=null", True),
        ("empty=", True),
        ("empty=null", False),
        ("missing=null", True),
        ("missing.deeper=null", True),
        ("missing>1", False),
        ("missing<1", False),
        ("missing=NL", False),
        ("missing!=NL", True),
        ("customer.name~da", True),
        ("customer.name~DA", False),
        ("customer.tags~vip", True),
        ("customer.tags~vi", False),
        ("customer.tags~3", True),
        ("amount~1", False),
        ("items[1].sku=b", True),
        ("items.1.sku=b", True),
        ("items[9].sku=null", True),
        ("customer=null", False),
        ("customer=Ada", False),
        ("country=a=b", False),
    ],
)
def test_a_filter_holds_or_not(given: str, holds: bool) -> None:
    assert FieldFilters([given])(ORDER) is holds


def test_all_filters_must_hold() -> None:
    assert FieldFilters(["amount>100", "amount<200"])(ORDER)
    assert not FieldFilters(["amount>100", "amount>200"])(ORDER)


@pytest.mark.parametrize("payload", [None, 5, ["amount"], "amount"])
def test_a_payload_that_is_no_object_has_no_fields(payload: Any) -> None:
    assert FieldFilters(["amount=null"])(payload)
    assert not FieldFilters(["amount>1"])(payload)


@pytest.mark.parametrize("given", ["", "amount", "=5", ">5", "amount 5", "amount IN (1)"])
def test_anything_else_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a field"):
        FieldFilters([given])


@pytest.mark.parametrize("given", ["amount==150", "amount>>3", "amount=>3", "amount< =3"])
def test_two_operators_are_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="follows the operator"):
        FieldFilters([given])


def test_a_value_may_begin_like_an_operator() -> None:
    assert FieldFilters(['note="=5"'])({"note": "=5"})
    assert FieldFilters(["note=<b>"])({"note": "<b>"})


def test_fields_that_nothing_has_are_doubted() -> None:
    filters = FieldFilters(["amout>100", "country=NL"])
    assert filters.doubts() == [], "nothing was looked at yet"
    filters(ORDER)
    assert filters.doubts() == ["no payload has a field 'amout'; did you mean 'amount'?"]
