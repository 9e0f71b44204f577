"""A field that a payload lacks has the default of its class, in tables as for subscribers."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType
from tests.spark.frames import frame
from tests.spark.journal_files import segment, sent

from matador import JsonCodec
from matador.model.event import EventType
from matador.spark import Lake
from matador.spark.runtime.arrow import arrow_schema
from matador.spark.runtime.payload_columns import TypedColumn, with_payload
from matador.spark.runtime.payload_types import struct_of


class Tier(Enum):
    BASIC = "basic"
    GOLD = "gold"


SINCE = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class Address:
    city: str
    country: str = "NO"


@dataclass
class DataclassOrder:
    id: str
    currency: str = "EUR"
    price: Decimal = Decimal("1.50")
    tier: Tier = Tier.GOLD
    since: datetime = SINCE
    note: str | None = "none given"
    tags: list[str] = field(default_factory=lambda: ["new"])
    address: Address = field(default_factory=lambda: Address("Oslo"))
    stops: list[Address] = field(default_factory=list[Address])
    nonce: str = field(default_factory=lambda: str(uuid.uuid4()))


class StructOrder(msgspec.Struct, omit_defaults=True):
    id: str
    currency: str = "EUR"
    price: Decimal = Decimal("1.50")
    tier: Tier = Tier.GOLD
    since: datetime = SINCE
    note: str | None = "none given"
    tags: list[str] = msgspec.field(default_factory=lambda: ["new"])
    address: Address = msgspec.field(default_factory=lambda: Address("Oslo"))
    stops: list[Address] = []
    nonce: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))


@attrs.define
class AttrsOrder:
    id: str
    currency: str = "EUR"
    price: Decimal = Decimal("1.50")
    tier: Tier = Tier.GOLD
    since: datetime = SINCE
    note: str | None = "none given"
    tags: list[str] = attrs.field(factory=lambda: ["new"])
    address: Address = attrs.field(factory=lambda: Address("Oslo"))
    stops: list[Address] = attrs.field(factory=list[Address])
    nonce: str = attrs.field(factory=lambda: str(uuid.uuid4()))


class AddressModel(pydantic.BaseModel):
    city: str
    country: str = "NO"


class PydanticOrder(pydantic.BaseModel):
    id: str
    currency: str = "EUR"
    price: Decimal = Decimal("1.50")
    tier: Tier = Tier.GOLD
    since: datetime = SINCE
    note: str | None = "none given"
    tags: list[str] = pydantic.Field(default_factory=lambda: ["new"])
    address: AddressModel = pydantic.Field(default_factory=lambda: AddressModel(city="Oslo"))
    stops: list[AddressModel] = []
    nonce: str = pydantic.Field(default_factory=lambda: str(uuid.uuid4()))


KINDS = [DataclassOrder, StructOrder, AttrsOrder, PydanticOrder]
PAYLOADS: list[dict[str, Any]] = [
    {"id": "bare"},
    {"id": "nulls", "note": None, "stops": [{"city": "Bergen"}]},
    {"id": "given", "currency": "USD", "address": {"city": "Rome", "country": "IT"}, "tags": []},
]


@pytest.mark.parametrize("kind", KINDS)
def test_tables_show_the_defaults_that_subscribers_see(
    kind: type[Any], spark: SparkSession
) -> None:
    event = EventType("order", "An order.", kind)
    rows = [(json.dumps(one), None) for one in PAYLOADS]
    table = with_payload(frame(spark, rows, "data_json string, before_json string"), event)
    bare, nulls, given = [row.data for row in table.collect()]
    seen = JsonCodec().decode_payload(event, msgspec.Raw(json.dumps(PAYLOADS[0]).encode()))
    assert (bare.currency, bare.price, bare.note) == (seen.currency, seen.price, seen.note)
    assert (bare.tier, bare.tags, bare.stops) == (seen.tier.value, seen.tags, seen.stops)
    assert bare.since.astimezone(UTC) == seen.since
    assert bare.address == Row(city=seen.address.city, country=seen.address.country)
    assert (nulls.note, nulls.stops) == (None, [Row(city="Bergen", country="NO")])
    assert (given.currency, given.tags) == ("USD", [])
    assert given.address == Row(city="Rome", country="IT")
    # A default that differs from call to call is left out: each subscriber sees its own.
    assert bare.nonce is None


def typed(kind: type[Any], *texts: bytes) -> list[dict[str, Any]]:
    """Payloads as the data source shows them."""
    arrow = arrow_schema(StructType().add("data", struct_of(kind))).field(0).type
    return TypedColumn(struct_of(kind, defaults=True)).make(texts, arrow).to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_data_source_shows_them_too(kind: type[Any]) -> None:
    bare, nulls, _ = typed(kind, *[json.dumps(one).encode() for one in PAYLOADS])
    assert (bare["currency"], bare["price"], bare["tier"]) == ("EUR", Decimal("1.50"), "gold")
    assert bare["address"] == {"city": "Oslo", "country": "NO"}
    assert (nulls["note"], nulls["stops"]) == (None, [{"city": "Bergen", "country": "NO"}])


class Loose(TypedDict):
    id: str
    note: NotRequired[str]


class Renamed(pydantic.BaseModel):
    total: int = pydantic.Field(default=7, validation_alias="t", serialization_alias="cents")
    rest: int = pydantic.Field(default=3, alias="remainder")


def test_a_field_without_a_default_is_null() -> None:
    assert typed(Loose, b'{"id":"a"}') == [{"id": "a", "note": None}]


def test_a_field_that_is_read_under_another_name_is_not_taken_for_missing() -> None:
    assert typed(Renamed, b'{"t":1}') == [{"cents": None, "remainder": 3}]


def test_defaults_reach_the_typed_table_of_a_lake(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path / "journal", "a", [sent(1, '{"id":"bare"}', event="order")])
    lake = Lake(tmp_path / "lake", spark=spark)
    lake.ingest(tmp_path / "journal")
    orders = lake.events(EventType("order", "An order.", DataclassOrder))
    assert orders.where("data.currency = 'EUR' and data.address.country = 'NO'").count() == 1
    assert orders.select("data.tags").collect() == [Row(tags=["new"])]
