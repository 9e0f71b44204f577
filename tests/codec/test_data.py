"""Plain data of jobs and messages as JSON, and payloads as JSON for records."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest

from matador.codec.as_json import as_json
from matador.codec.data import data_decoder, encode_data
from matador.errors import InvalidJobError


class Order(pydantic.BaseModel):
    order_id: str = pydantic.Field(alias="orderId")


def test_a_pydantic_model_is_written_and_read() -> None:
    written = encode_data([{"orderId": "a"}], "data", InvalidJobError)
    assert data_decoder(list[Order], "data", InvalidJobError)(written) == [Order(orderId="a")]


@pytest.mark.parametrize("kind", [Any, object])
def test_any_type_reads_data_as_it_comes(kind: Any) -> None:
    assert data_decoder(kind, "data", InvalidJobError)(b'{"a":[1,null]}') == {"a": [1, None]}


def test_a_type_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InvalidJobError, match=r"data: .*cannot be read from JSON"):
        data_decoder(dict[Order, int] | list[int] | set[int], "data", InvalidJobError)


def test_what_is_not_finite_is_refused_and_null_is_not() -> None:
    assert encode_data({"a": None}, "data", InvalidJobError) == b'{"a":null}'
    with pytest.raises(InvalidJobError, match="data cannot be written as JSON"):
        encode_data({"a": float("nan")}, "data", InvalidJobError)


def test_records_have_the_aliases_of_a_pydantic_model() -> None:
    assert json.loads(as_json(Order(orderId="a"))) == {"orderId": "a"}
