"""Payload types as Spark types: every kind of payload, every kind of field, and the round trip."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from tests.spark.frames import frame
from tests.support.payloads import KINDS, Kind

from matador import JsonCodec
from matador.errors import InvalidEventError
from matador.model.event import EventType
from matador.spark.runtime.payload_types import JSON_OPTIONS, struct_of


def simple(payload: type[Any]) -> str:
    return struct_of(payload).simpleString()


def read_back(spark: SparkSession, payload_type: type[Any], *payloads: Any) -> list[Row]:
    """Payloads written by the codec and read by Spark."""
    event = EventType("any", "Any.", payload_type)
    rows = [(bytes(JsonCodec().encode_payload(event, payload)).decode(),) for payload in payloads]
    table = frame(spark, rows, "data_json string")
    data = F.from_json("data_json", struct_of(event), JSON_OPTIONS)
    return [row.data for row in table.select(data.alias("data")).collect()]


# -- the five kinds ----------------------------------------------------------------------------

ORDER = (
    "struct<order_id:string,price:decimal(38,18),placed_at:timestamp,status:string,"
    "reference:string,lines:array<struct<sku:string,count:bigint>>,labels:map<string,string>,"
    "note:string>"
)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_payload_has_the_same_columns(kind: Kind) -> None:
    assert struct_of(kind.event).simpleString() == ORDER
    assert simple(kind.order) == ORDER
    assert all(field.nullable for field in struct_of(kind.event))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_the_codec_writes_spark_reads(kind: Kind, spark: SparkSession) -> None:
    other = kind.make(reference=7, lines=[], note="n")
    row, second = read_back(spark, kind.order, kind.make(), other)
    assert row.order_id == "o-1 é漢😀"
    assert row.price == Decimal("12.50")
    assert row.placed_at.astimezone(UTC) == datetime(2026, 11, 15, 19, 2, 37, 435123, tzinfo=UTC)
    assert row.status == "paid"
    assert row.lines == [Row(sku="a", count=1), Row(sku="b", count=2)]
    assert row.labels == {"tenant": "acme"}
    assert (row.reference, second.reference) == ("r-1", "7")
    assert (row.note, second.note, second.lines) == (None, "n", [])


# -- every kind of field -----------------------------------------------------------------------


class Size(enum.IntEnum):
    S = 1
    L = 2


class Mixed(enum.Enum):
    A = 1
    B = "b"


class Point(NamedTuple):
    x: float
    y: float


class Named(NamedTuple):
    name: str
    age: int


class Paid(msgspec.Struct, tag="paid"):
    amount: int
    by: str


class Refunded(msgspec.Struct, tag="refunded"):
    amount: float
    why: str | None = None


class Packed(msgspec.Struct, array_like=True):
    a: int
    b: int


class Empty(msgspec.Struct):
    pass


@dataclass
class Everything:
    yes: bool
    whole: int
    number: float
    text: str
    raw: bytes
    at: datetime
    local: datetime
    day: date
    clock: time
    length: timedelta
    price: Decimal
    uid: UUID
    size: Size
    choice: Literal["a", "b"]
    digit: Literal[1, 2, None]
    maybe: int | None
    numeric: int | float
    either: int | str
    unlike: list[int] | int
    anything: Any
    raw_json: msgspec.Raw
    ints: list[int]
    unique: set[str]
    frozen: frozenset[int]
    many: tuple[int, ...]
    pair: tuple[int, float]
    uneven: tuple[int, str]
    point: Point
    named: Named
    packed: Packed
    sequence: Sequence[int]
    counts: dict[str, int]
    by_day: dict[date, list[float]]
    mapping: Mapping[str, Any]
    change: Paid | Refunded
    small: Annotated[int, msgspec.Meta(ge=0)]
    empty: Empty
    late: int | msgspec.UnsetType = msgspec.UNSET


EVERYTHING = {
    "yes": "boolean",
    "whole": "bigint",
    "number": "double",
    "text": "string",
    "raw": "binary",
    "at": "timestamp",
    "local": "timestamp",
    "day": "date",
    "clock": "string",
    "length": "string",
    "price": "decimal(38,18)",
    "uid": "string",
    "size": "bigint",
    "choice": "string",
    "digit": "bigint",
    "maybe": "bigint",
    "numeric": "double",
    "either": "string",
    "unlike": "string",
    "anything": "string",
    "raw_json": "string",
    "ints": "array<bigint>",
    "unique": "array<string>",
    "frozen": "array<bigint>",
    "many": "array<bigint>",
    "pair": "array<double>",
    "uneven": "array<string>",
    "point": "array<double>",
    "named": "array<string>",
    "packed": "array<bigint>",
    "sequence": "array<bigint>",
    "counts": "map<string,bigint>",
    "by_day": "map<string,array<double>>",
    "mapping": "map<string,string>",
    "change": "struct<type:string,amount:double,by:string,why:string>",
    "small": "bigint",
    "empty": "string",
    "late": "bigint",
}


def test_every_kind_of_field_has_its_type() -> None:
    found = {field.name: field.dataType.simpleString() for field in struct_of(Everything)}
    assert found == EVERYTHING


def test_every_kind_of_field_comes_back(spark: SparkSession) -> None:
    day = date(2026, 11, 15)
    uid = UUID("3f2504e0-4f89-11d3-9a0c-0305e82c3301")
    moment = datetime(2026, 11, 15, 1, 2, 3, 4, tzinfo=UTC)
    payload = Everything(
        yes=True,
        whole=2**63 - 1,
        number=0.1,
        text='a "quoted" \u2028 text',
        raw=b"\x00\xff",
        at=moment,
        local=moment.replace(tzinfo=None),
        day=day,
        clock=time(1, 2, 3),
        length=timedelta(days=1, seconds=2),
        price=Decimal("-0.000000000000000001"),
        uid=uid,
        size=Size.L,
        choice="b",
        digit=2,
        maybe=None,
        numeric=3,
        either="x",
        unlike=[1, 2],
        anything={"a": [1, None]},
        raw_json=msgspec.Raw(b'{"b":2}'),
        ints=[1, 2],
        unique={"a"},
        frozen=frozenset({3}),
        many=(1, 2, 3),
        pair=(1, 0.5),
        uneven=(1, "a"),
        point=Point(1.5, 2.5),
        named=Named("ann", 7),
        packed=Packed(1, 2),
        sequence=[4],
        counts={"a": 1},
        by_day={day: [0.5]},
        mapping={"a": 1, "b": "x", "c": [1]},
        change=Refunded(0.5, "late"),
        small=1,
        empty=Empty(),
    )
    (row,) = read_back(spark, Everything, payload)
    at = {name: row[name].astimezone(UTC) for name in ("at", "local")}
    assert at == {"at": moment, "local": moment}
    assert row.change == Row(type="refunded", amount=0.5, by=None, why="late")
    expected = {
        "yes": True,
        "whole": 2**63 - 1,
        "number": 0.1,
        "text": 'a "quoted" \u2028 text',
        "raw": bytearray(b"\x00\xff"),
        "day": day,
        "clock": "01:02:03",
        "length": "P1DT2S",
        "price": Decimal("-0.000000000000000001"),
        "uid": str(uid),
        "size": 2,
        "choice": "b",
        "digit": 2,
        "maybe": None,
        "numeric": 3.0,
        "either": "x",
        "unlike": "[1,2]",
        "anything": '{"a":[1,null]}',
        "raw_json": '{"b":2}',
        "ints": [1, 2],
        "unique": ["a"],
        "frozen": [3],
        "many": [1, 2, 3],
        "pair": [1.0, 0.5],
        "uneven": ["1", "a"],
        "point": [1.5, 2.5],
        "named": ["ann", "7"],
        "packed": [1, 2],
        "sequence": [4],
        "counts": {"a": 1},
        "by_day": {"2026-11-15": [0.5]},
        "mapping": {"a": "1", "b": "x", "c": "[1]"},
        "small": 1,
        "empty": "{}",
        "late": None,
    }
    assert {name: row[name] for name in expected} == expected


def test_one_wrong_field_does_not_take_the_others_with_it(spark: SparkSession) -> None:
    rows = [('{"sku":"a","count":"many"}',), ('{"sku":"b","count":1e30}',)]
    struct = struct_of(KINDS["struct"].line)
    data = F.from_json("j", struct, JSON_OPTIONS)
    found = frame(spark, rows, "j string").select(data.alias("data")).collect()
    assert [row.data for row in found] == [Row(sku="a", count=None), Row(sku="b", count=None)]


# -- names -------------------------------------------------------------------------------------


class Camel(msgspec.Struct, rename="camel"):
    order_id: str
    unit_price: Annotated[float, msgspec.Meta(gt=0)] = msgspec.field(name="price", default=1.0)


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(validate_by_name=True, validate_by_alias=True)
    order_id: str = pydantic.Field(alias="orderId")
    total: int = pydantic.Field(validation_alias="t", serialization_alias="totalCents")
    secret: str = pydantic.Field(default="", exclude=True)


def test_names_are_those_on_the_wire(spark: SparkSession) -> None:
    assert simple(Camel) == "struct<orderId:string,price:double>"
    assert simple(Aliased) == "struct<orderId:string,totalCents:bigint>"
    (row,) = read_back(spark, Camel, Camel(order_id="1", unit_price=2.5))
    assert row == Row(orderId="1", price=2.5)


# -- pydantic ----------------------------------------------------------------------------------


class Tags(pydantic.RootModel[list[str]]):
    pass


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: str


@pydantic.dataclasses.dataclass
class Address:
    city: str


class Modelled(pydantic.BaseModel):
    raw: bytes
    at: pydantic.AwareDatetime
    born: pydantic.PastDate
    pet: Cat | Dog = pydantic.Field(discriminator="kind")
    pets: dict[str, Cat | None]
    count: pydantic.PositiveInt
    price: Annotated[Decimal, pydantic.Field(max_digits=10, decimal_places=2)]
    site: pydantic.AnyUrl
    tags: Tags
    address: Address
    mixed: Mixed
    odd: complex | None = None
    anything: Any = None

    @pydantic.computed_field
    @property
    def twice(self) -> int:
        return self.count * 2


def test_pydantic_models_are_read_by_their_fields(spark: SparkSession) -> None:
    assert simple(Modelled) == (
        "struct<raw:string,at:timestamp,born:date,pet:struct<kind:string,lives:bigint,name:string>,"
        "pets:map<string,struct<kind:string,lives:bigint>>,count:bigint,price:decimal(38,18),"
        "site:string,tags:array<string>,address:struct<city:string>,mixed:string,odd:string,anything:string>"
    )
    model = Modelled(
        raw=b"abc",
        at=datetime(2026, 11, 15, 1, 2, 3, 4, tzinfo=UTC),
        born=date(2000, 2, 29),
        pet=Dog(kind="dog", name="Rex"),
        pets={"tom": Cat(kind="cat", lives=9), "none": None},
        count=3,
        price=Decimal("9.99"),
        site=pydantic.AnyUrl("https://example.org/"),
        tags=Tags(["a"]),
        address=Address(city="Oslo"),
        mixed=Mixed.A,
        anything=[1],
    )
    (row,) = read_back(spark, Modelled, model)
    assert row.raw == "abc"
    assert row.at.astimezone(UTC) == model.at
    assert row.born == model.born
    assert row.pet == Row(kind="dog", lives=None, name="Rex")
    assert row.pets == {"tom": Row(kind="cat", lives=9), "none": None}
    assert (row["count"], row.price, row.site) == (3, Decimal("9.99"), "https://example.org/")
    assert (row.tags, row.address, row.anything) == (["a"], Row(city="Oslo"), "[1]")
    assert (row.mixed, row.odd) == ("1", None)


# -- types inside themselves -------------------------------------------------------------------


@dataclass
class Node:
    name: str
    children: list[Node]


class ModelNode(pydantic.BaseModel):
    name: str
    parent: ModelNode | None = None


class DictNode(TypedDict):
    name: str
    next: DictNode | None


@attrs.define
class Left:
    right: Right | None


@attrs.define
class Right:
    left: Left | None


def test_a_type_inside_itself_is_json(spark: SparkSession) -> None:
    assert simple(Node) == "struct<name:string,children:array<string>>"
    assert simple(ModelNode) == "struct<name:string,parent:string>"
    assert simple(DictNode) == "struct<name:string,next:string>"
    assert simple(Left) == "struct<right:struct<left:string>>"
    (row,) = read_back(spark, Node, Node("a", [Node("b", [Node("c", [])])]))
    assert row.children == ['{"name":"b","children":[{"name":"c","children":[]}]}']


@dataclass
class Twice:
    first: Left
    second: Left


def test_a_type_used_twice_is_not_inside_itself() -> None:
    assert simple(Twice).count("struct<right:struct<left:string>>") == 2


# -- what has no columns -----------------------------------------------------------------------


def test_an_event_without_fields_is_an_empty_struct() -> None:
    assert simple(Empty) == "struct<>"


def test_what_is_not_a_json_object_says_so() -> None:
    for payload in (Packed, Tags):
        with pytest.raises(InvalidEventError, match="data_json"):
            struct_of(payload)


@dataclass
class Unresolved:
    field: NoSuchClass  # pyright: ignore[reportUndefinedVariable]  # noqa: F821


def test_a_type_that_cannot_be_read_says_so() -> None:
    with pytest.raises(InvalidEventError, match="Unresolved has no columns"):
        struct_of(Unresolved)
