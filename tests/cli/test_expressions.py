"""Conditions on payloads: what they mean, what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from matador.cli.expressions import Where
from matador.cli.output import UsageError

ORDER: dict[str, Any] = {
    "amount": 150,
    "country": "NL",
    "paid": True,
    "note": None,
    "customer": {"name": "Ada", "tags": ["vip", "new"]},
    "items": [{"sku": "a"}, {"sku": "b"}],
}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("amount > 100", True),
        ("amount > 150", False),
        ("amount >= 150 and amount <= 150", True),
        ("100 < amount < 200", True),
        ("amount == 150.0", True),
        ("amount == -150", False),
        ("amount != 150", False),
        ("country == 'NL'", True),
        ("country in ['NL', 'BE']", True),
        ("country not in ('NL', 'BE')", False),
        ("'da' in customer.name", True),
        ("'vip' in customer.tags", True),
        ("'sku' in items[0]", True),
        ("customer.name == 'Ada' or amount < 0", True),
        ("not (country == 'NL')", False),
        ("paid", True),
        ("paid == true", True),
        ("paid == 1", False),
        ("note == null", True),
        ("note is null", True),
        ("missing == null", True),
        ("missing.deeper == null", True),
        ("missing > 1", False),
        ("not missing > 1", True),
        ("country > 5", False),
        ("paid > 0", False),
        ("items[1].sku == 'b'", True),
        ("items[9].sku == null", True),
        ("customer['name'] == 'Ada'", True),
        ("data.amount > 100", True),
        ("data.customer.name == 'Ada'", True),
    ],
)
def test_a_condition_holds_or_not(condition: str, holds: bool) -> None:
    assert Where(condition)(ORDER) is holds


def test_a_payload_with_a_field_data_keeps_it() -> None:
    assert Where("data.amount == 1")({"data": {"amount": 1}, "amount": 2})


def test_a_payload_that_is_no_object_has_no_fields() -> None:
    assert Where("amount == null")(None)
    assert not Where("amount > 1")(["amount"])


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("", "invalid syntax"),
        ("amount >", "invalid syntax"),
        ("amount = 100", "compare with =="),
        ("__import__('os').system('true')", "is not allowed"),
        ("amount.__class__()", "is not allowed"),
        ("[x for x in items]", "is not allowed"),
        ("lambda: 1", "is not allowed"),
        ("amount + 1 > 2", "is not allowed"),
        ("f'{amount}' == '1'", "is not allowed"),
        ("items[amount]", "is not allowed"),
        ("amount == b'x'", "is not allowed"),
        ("(" * 5000 + "1" + ")" * 5000, "--where"),
        ("not " * 5000 + "paid", "--where"),
        ("amount > 1\x00", "--where"),
    ],
)
def test_anything_else_is_refused(condition: str, says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Where(condition)
    assert says in str(refusal.value)
    assert "write for example" in str(refusal.value)


def test_a_private_name_is_a_field_like_any_other() -> None:
    assert Where("amount.__class__ == null")(ORDER)


def test_fields_that_nothing_has_are_doubted() -> None:
    where = Where("amout > 100 and country == 'NL'")
    assert where.doubts() == [], "nothing was looked at yet"
    where(ORDER)
    where({"amount": 1, "country": "BE"})
    assert "no payload has a field 'amout'; did you mean 'amount'?" in where.doubts()
    assert not any("country" in doubt for doubt in Where("country == 'x'").doubts())
