"""What queues and groups are called on SQS."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matador.errors import ConfigurationError
from matador.model.message import Message
from matador.transports.sqs.names import group_of, sqs_name


def full_name(name: str) -> str:
    """The way back, for names that were changed."""
    return re.sub("__|((?:_[0-9A-F]{2})+)", _unescaped, name)


def _unescaped(found: re.Match[str]) -> str:
    if found[0] == "__":
        return "."
    return bytes.fromhex(found[0].replace("_", "")).decode()


@pytest.mark.parametrize(
    ("queue", "fifo", "name"),
    [
        ("shop.events", False, "shop__events"),
        ("shop.events", True, "shop__events.fifo"),
        ("shop.my_queue", False, "shop__my_queue"),
        ("shop.a_.b", False, "shop__a_5F__b"),
        ("orders", False, "orders"),
        ("orders", True, "orders.fifo"),
        ("orders.fifo", False, "orders.fifo"),
        ("orders.fifo.unhandled", False, "orders__fifo__unhandled.fifo"),
        ("Owner:a", False, "Owner_3Aa"),
    ],
)
def test_names_that_sqs_allows_are_kept_and_others_changed(
    queue: str, fifo: bool, name: str
) -> None:
    assert sqs_name(queue, fifo=fifo) == name


@given(st.from_regex(r"[a-zA-Z][A-Za-z0-9_:/.-]{0,20}[.:/][A-Za-z0-9_:/.-]{0,5}", fullmatch=True))
def test_changed_names_can_be_told_apart(queue: str) -> None:
    if not queue.endswith(".fifo"):
        name = sqs_name(queue)
        assert re.fullmatch("[A-Za-z0-9_-]{1,80}", name)
        assert full_name(name) == queue


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="SQS allows 80"):
        sqs_name("shop." + "x" * 80)


def test_an_ordering_key_that_cannot_be_a_group_is_hashed() -> None:
    def group(key: str | None) -> str | None:
        return group_of(Message("m", "q", b"", ordering_key=key))

    assert group("user-1") == "user-1"
    assert group(None) is None
    odd = {group("ü"), group("x" * 129), group("")}
    assert len(odd) == 3
    assert all(one is not None and re.fullmatch("[0-9a-f]{64}", one) for one in odd)
