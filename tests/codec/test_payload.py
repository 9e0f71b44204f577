"""Payloads of every kind, in both formats: read straight into the user's type, checked at send."""

from __future__ import annotations

import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any

import attrs
import msgspec
import pydantic
import pytest
from tests.support.payloads import KINDS, Kind, Status, field_of, plain_order

from matador.codec import Codec, HeaderCodec, JsonCodec, MessagePackCodec
from matador.errors import InvalidEventError
from matador.model.event import EventType, event, event_type_of

FORMATS: list[Codec] = [JsonCodec(), MessagePackCodec()]

each_format = pytest.mark.parametrize("codec", FORMATS, ids=repr)
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def type_of(payload: type[Any]) -> EventType:
    return event_type_of(event("some.event", description="For one test.")(payload))


def there_and_back(codec: Codec, kind: EventType, payload: Any) -> Any:
    return codec.decode_payload(kind, codec.encode_payload(kind, payload))


# -- every kind arrives as its own type -----------------------------------------------------------


@each_format
@each_kind
def test_a_payload_arrives_as_it_was_sent(codec: Codec, kind: Kind) -> None:
    order = kind.make()
    arrived = there_and_back(codec, kind.event, order)
    assert type(arrived) is (dict if kind is KINDS["typeddict"] else kind.order)
    assert arrived == order


@each_format
@each_kind
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("note", "something"),
        ("note", None),
        ("reference", 7),
        ("reference", "seven"),
        ("lines", []),
        ("labels", {}),
        ("labels", {"": "é漢😀", "\x00": "\x00"}),
        ("status", Status.OPEN),
        ("price", Decimal("0.10")),
        ("price", Decimal("123456789012345678901234567890.123456789")),
        ("placed_at", datetime(1, 1, 1, tzinfo=UTC)),
        ("placed_at", datetime(2026, 11, 15, 19, 2, tzinfo=timezone(timedelta(hours=-5)))),
    ],
)
def test_fields_of_every_sort_arrive(codec: Codec, kind: Kind, field: str, value: Any) -> None:
    order = kind.make(**{field: value})
    assert there_and_back(codec, kind.event, order) == order


@each_format
@each_kind
def test_plain_data_of_the_right_shape_can_be_sent(codec: Codec, kind: Kind) -> None:
    raw = codec.encode_payload(kind.event, plain_order())
    arrived = codec.decode_payload(kind.event, raw)
    assert field_of(arrived, "price") == Decimal("12.50")
    assert field_of(arrived, "status") is Status.OPEN
    assert field_of(arrived, "placed_at") == datetime(2026, 11, 15, 19, 2, 37, tzinfo=UTC)
    assert field_of(arrived, "reference") == 7


@each_kind
def test_json_and_header_codecs_write_the_same_payload(kind: Kind) -> None:
    order = kind.make()
    as_json = JsonCodec().encode_payload(kind.event, order)
    assert bytes(as_json) == bytes(HeaderCodec().encode_payload(kind.event, order))


# -- what does not fit is found, and the field is named -------------------------------------------


@each_format
@each_kind
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"price": []}, ["price"]),
        ({"placed_at": "yesterday"}, ["placed_at"]),
        ({"status": "lost"}, ["status"]),
        ({"reference": None}, ["reference"]),
        ({"lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": "two"}]}, ["lines", "count"]),
        ({"lines": [{"sku": "a"}]}, ["lines", "count"]),
        ({"labels": {"tenant": 5}}, ["labels"]),
        ({"note": 5}, ["note"]),
    ],
    ids=str,
)
def test_a_wrong_field_is_refused_at_send_and_named(
    codec: Codec, kind: Kind, change: dict[str, Any], path: list[str]
) -> None:
    with pytest.raises(InvalidEventError) as caught:
        codec.encode_payload(kind.event, plain_order(**change))
    assert kind.event.key in str(caught.value)
    for step in path:
        assert step in str(caught.value)


@each_format
@each_kind
def test_a_missing_field_is_refused_and_named(codec: Codec, kind: Kind) -> None:
    order = plain_order()
    del order["order_id"]
    with pytest.raises(InvalidEventError, match="order_id"):
        codec.encode_payload(kind.event, order)


@each_kind
def test_a_wrong_field_is_refused_on_arrival_and_named(kind: Kind) -> None:
    raw = msgspec.Raw(msgspec.json.encode(plain_order(status="lost")))
    with pytest.raises(InvalidEventError, match="status"):
        JsonCodec().decode_payload(kind.event, raw)


@each_format
@each_kind
@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"[]", b"nul", b"\x81", b"\x93\x01"])
def test_bytes_that_are_no_payload_are_refused(codec: Codec, kind: Kind, body: bytes) -> None:
    with pytest.raises(InvalidEventError, match=kind.event.key):
        codec.decode_payload(kind.event, msgspec.Raw(body))


def test_a_wrong_value_in_an_instance_is_found_though_python_let_it_in() -> None:
    wrong = KINDS["dataclass"].make(reference=1.5)
    with pytest.raises(InvalidEventError, match="reference"):
        JsonCodec().encode_payload(KINDS["dataclass"].event, wrong)


def test_a_pydantic_model_made_without_validation_is_found_and_no_warning_given() -> None:
    kind = KINDS["pydantic"]
    wrong = kind.order.model_construct(**plain_order(status="lost"))
    with pytest.raises(InvalidEventError, match="status"):
        JsonCodec().encode_payload(kind.event, wrong)


@each_format
def test_values_that_pydantic_would_repeat_appear_nowhere(codec: Codec) -> None:
    kind = KINDS["pydantic"]
    secret = "hunter" + str(2)  # the traceback shows this line too
    with pytest.raises(InvalidEventError) as caught:
        codec.encode_payload(kind.event, plain_order(placed_at=secret, lines=secret))
    assert secret not in "".join(traceback.format_exception(caught.value))


def test_every_wrong_field_of_a_pydantic_model_is_named_at_once() -> None:
    with pytest.raises(InvalidEventError, match=r"placed_at.*status"):
        JsonCodec().encode_payload(
            KINDS["pydantic"].event, plain_order(placed_at="x", status="lost")
        )


def test_constraints_of_the_type_hold() -> None:
    class Paid(msgspec.Struct):
        amount: Annotated[int, msgspec.Meta(gt=0)]

    with pytest.raises(InvalidEventError, match=r"> ?=? ?\d.*amount"):
        JsonCodec().encode_payload(type_of(Paid), Paid(0))


@each_format
def test_an_error_of_any_type_in_the_users_own_check_is_an_invalid_event(codec: Codec) -> None:
    @dataclass
    class Checked:
        name: str

        def __post_init__(self) -> None:
            if self.name == "":
                raise LookupError("no such name")

    kind = type_of(Checked)
    with pytest.raises(InvalidEventError, match="LookupError: no such name"):
        codec.encode_payload(kind, {"name": ""})


@each_format
def test_an_error_of_any_type_in_a_pydantic_validator_is_an_invalid_event(codec: Codec) -> None:
    class Checked(pydantic.BaseModel):
        name: str

        @pydantic.field_validator("name")
        @classmethod
        def known(cls, name: str) -> str:
            raise LookupError(f"no such name: {name}")

    with pytest.raises(InvalidEventError, match="LookupError"):
        codec.encode_payload(type_of(Checked), {"name": "x"})


@each_format
def test_an_attrs_validator_is_run(codec: Codec) -> None:
    @attrs.frozen
    class Checked:
        count: int = attrs.field(validator=attrs.validators.gt(0))

    with pytest.raises(InvalidEventError, match="count"):
        codec.encode_payload(type_of(Checked), {"count": 0})


@each_format
@pytest.mark.parametrize("content", [Ellipsis, 1 + 2j, object, len], ids=str)
def test_what_cannot_be_written_is_an_invalid_event(codec: Codec, content: object) -> None:
    with pytest.raises(InvalidEventError, match=r"some\.event"):
        codec.encode_payload(type_of(LooseStruct), LooseStruct(content=content))


@each_format
def test_an_error_of_any_type_in_a_pydantic_serializer_is_an_invalid_event(codec: Codec) -> None:
    class Stubborn(pydantic.BaseModel):
        name: str

        @pydantic.field_serializer("name")
        def write(self, name: str) -> str:
            raise LookupError(f"no such name: {name}")

    with pytest.raises(InvalidEventError, match="no such name"):
        codec.encode_payload(type_of(Stubborn), Stubborn(name="x"))


@each_format
def test_a_payload_that_contains_itself_is_an_invalid_event(codec: Codec) -> None:
    @dataclass
    class Nested:
        content: list[Any]

    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidEventError, match="recursion"):
        codec.encode_payload(type_of(Nested), Nested(endless))


@each_format
@each_kind
def test_a_lone_surrogate_is_an_invalid_event_and_its_place_is_named(
    codec: Codec, kind: Kind
) -> None:
    for field, value, place in [
        ("order_id", "ab\ud800", r"has a lone surrogate \(U\+D800\) at 2 - at `\$\.order_id`"),
        ("labels", {"x": "\udcff"}, r"lone surrogate \(U\+DCFF\) at 0 - at `\$\.labels\.x`"),
        ("labels", {"\udcff": "x"}, r"the key '\\udcff' has a lone surrogate .* at `\$\.labels`"),
    ]:
        for given in (kind.make(**{field: value}), {**plain_order(), field: value}):
            with pytest.raises(InvalidEventError, match=place) as caught:
                codec.encode_payload(kind.event, given)
            assert "utf-8" not in str(caught.value)


def test_a_lone_surrogate_is_named_on_arrival_too() -> None:
    kind = type_of(WithAnything)
    body = b"\x81\xa7content\xa4a\xed\xa0\x80"
    with pytest.raises(InvalidEventError, match=r"lone surrogate \(U\+D800, half"):
        MessagePackCodec().decode_payload(kind, msgspec.Raw(body))


def test_a_long_problem_is_cut() -> None:
    @dataclass
    class Doubtful:
        text: str

        def __post_init__(self) -> None:
            raise ValueError(self.text * 2)

    with pytest.raises(InvalidEventError) as caught:
        JsonCodec().decode_payload(
            type_of(Doubtful), msgspec.Raw(b'{"text":"' + b"x" * 9000 + b'"}')
        )
    assert 500 < len(str(caught.value)) < 1200


# -- keys ------------------------------------------------------------------------------------------


@dataclass
class Inner:
    a: int


@dataclass
class WithMapping:
    content: dict[str, int]


@dataclass
class WithAnything:
    content: Any


@dataclass
class WithInner:
    content: Inner


@dataclass
class WithInners:
    content: list[Inner] | None


class WithRaw(msgspec.Struct):
    content: msgspec.Raw


class WithPydantic(pydantic.BaseModel):
    content: dict[Any, int]


@dataclass
class Tree:
    content: list[Tree] | None = None


TWICE: list[Any] = [
    WithMapping({1: 1, "1": 2}),  # pyright: ignore[reportArgumentType] - as Python lets it in
    WithAnything([{"x": {1.5: 1, "1.5": 2}}]),
    WithInner({"a": 1, 1: 1, "1": 1}),  # pyright: ignore[reportArgumentType]
    WithInners([{"a": 1, 1: 1, "1": 1}]),  # pyright: ignore[reportArgumentType]
    WithRaw(msgspec.Raw(b'{"1":1,"1":2}')),
    WithPydantic(content={1: 1, "1": 2}),
    Tree([{"content": None, 1: 1, "1": 1}]),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize("codec", [JsonCodec(), HeaderCodec()], ids=repr)
@pytest.mark.parametrize("payload", TWICE, ids=lambda one: type(one).__name__)
def test_keys_that_are_one_in_json_are_refused(codec: Codec, payload: Any) -> None:
    kind = type_of(payload.__class__)
    with pytest.raises(
        InvalidEventError, match=r"two keys of one mapping are both '1(\.5)?' as text"
    ):
        codec.encode_payload(kind, payload)


def test_keys_of_plain_data_are_looked_at_whatever_the_type() -> None:
    with pytest.raises(InvalidEventError, match="two keys"):
        JsonCodec().encode_payload(type_of(Inner), {"a": 1, 1: 1, "1": 1})


@pytest.mark.parametrize(
    ("payload", "written"),
    [
        (WithAnything({1: "a", 2: "b"}), b'{"content":{"1":"a","2":"b"}}'),
        (WithMapping({"1": 1, "2": 2}), b'{"content":{"1":1,"2":2}}'),
        (WithInners([Inner(1), Inner(1)]), b'{"content":[{"a":1},{"a":1}]}'),
        (WithPydantic(content={1: 1}), b'{"content":{"1":1}}'),
        (Tree([Tree(), Tree([])]), b'{"content":[{"content":null},{"content":[]}]}'),
    ],
)
def test_other_keys_are_written_as_strings(payload: Any, written: bytes) -> None:
    assert bytes(JsonCodec().encode_payload(type_of(payload.__class__), payload)) == written


def test_keys_that_pydantic_makes_one_are_refused_in_messagepack_too() -> None:
    kind = type_of(WithPydantic)
    for codec in FORMATS:
        with pytest.raises(InvalidEventError, match=r"two keys .* '1' as text"):
            codec.encode_payload(kind, WithPydantic(content={1: 1, "1": 2}))
        for good in ({1: 1, "2": 2}, {"1": 1}):
            assert codec.encode_payload(kind, WithPydantic(content=dict(good)))


def test_messagepack_tells_a_number_from_its_text() -> None:
    payload = WithAnything({1: "a", "1": "b"})
    assert there_and_back(MessagePackCodec(), type_of(WithAnything), payload) == payload


@each_format
def test_a_class_that_cannot_be_a_payload_is_named(codec: Codec) -> None:
    class Impossible(msgspec.Struct):
        both: dict[str, int] | msgspec.Struct

    with pytest.raises(InvalidEventError, match="Impossible cannot be used as a payload type"):
        codec.decode_payload(type_of(Impossible), msgspec.Raw(b"{}"))


# -- numbers --------------------------------------------------------------------------------------

NAN, INFINITY = float("nan"), float("inf")


class LooseStruct(msgspec.Struct):
    price: float | None = None
    content: Any = None


@dataclass
class LooseDataclass:
    price: float | None = None
    content: Any = None


@attrs.define
class LooseAttrs:
    price: float | None = None
    content: Any = None


class LooseModel(pydantic.BaseModel):
    price: float | None = None
    content: Any = None


LOOSE = [LooseStruct, LooseDataclass, LooseAttrs, LooseModel]
each_loose = pytest.mark.parametrize("loose", LOOSE)


@each_loose
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"price": NAN}, r"\$\.price"),
        ({"price": -INFINITY}, r"\$\.price"),
        ({"content": INFINITY}, r"\$\.content"),
        ({"content": [1, {"deep": [NAN]}]}, r"\$\.content\[1\]\.deep\[0\]"),
        ({"content": [2**70, NAN]}, r"\$\.content\[1\]"),
    ],
    ids=str,
)
def test_json_refuses_what_is_not_finite_instead_of_writing_null(
    loose: type[Any], fields: dict[str, Any], path: str
) -> None:
    with pytest.raises(
        InvalidEventError, match=rf"(nan|inf) cannot be encoded as JSON - at `{path}"
    ):
        JsonCodec().encode_payload(type_of(loose), loose(**fields))


def test_json_names_nan_where_the_type_has_no_room_for_null_either() -> None:
    class Priced(msgspec.Struct):
        price: float

    with pytest.raises(InvalidEventError, match=r"nan cannot be encoded as JSON - at `\$\.price`"):
        JsonCodec().encode_payload(type_of(Priced), Priced(NAN))


@each_loose
def test_nulls_are_not_taken_for_lost_numbers(loose: type[Any]) -> None:
    payload = loose(price=None, content=[None, 1.5, "null", "\x7f\xf8"])
    assert there_and_back(JsonCodec(), type_of(loose), payload) == payload


@each_loose
def test_messagepack_carries_what_is_not_finite(loose: type[Any]) -> None:
    arrived = there_and_back(MessagePackCodec(), type_of(loose), loose(price=INFINITY))
    assert arrived.price == INFINITY


def test_pydantic_constants_that_are_not_json_are_refused() -> None:
    class Constants(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
        price: float

    with pytest.raises(InvalidEventError, match="nan cannot be encoded as JSON"):
        JsonCodec().encode_payload(type_of(Constants), Constants(price=NAN))


def test_pydantic_may_write_them_as_strings() -> None:
    class Strings(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(ser_json_inf_nan="strings")
        price: float
        note: str | None = None

    arrived = there_and_back(JsonCodec(), type_of(Strings), Strings(price=INFINITY))
    assert arrived.price == INFINITY


@pytest.mark.parametrize("number", [2**63, -(2**63), 2**64 - 1])
@each_format
def test_64_bit_numbers_arrive(codec: Codec, number: int) -> None:
    kind = type_of(LooseStruct)
    assert there_and_back(codec, kind, LooseStruct(content=number)).content == number


def test_larger_numbers_arrive_in_json_and_are_refused_in_messagepack() -> None:
    kind = type_of(LooseStruct)
    payload = LooseStruct(content=2**70)
    assert there_and_back(JsonCodec(), kind, payload) == payload
    with pytest.raises(InvalidEventError, match="serialize ints"):
        MessagePackCodec().encode_payload(kind, payload)


# -- bytes, and what pydantic adds ----------------------------------------------------------------


@each_format
def test_bytes_arrive(codec: Codec) -> None:
    class Picture(msgspec.Struct):
        content: bytes

    payload = Picture(bytes(range(256)))
    assert there_and_back(codec, type_of(Picture), payload) == payload


def test_messagepack_carries_types_of_the_users_own() -> None:
    payload = LooseStruct(content=msgspec.msgpack.Ext(5, b"abc"))
    assert there_and_back(MessagePackCodec(), type_of(LooseStruct), payload) == payload


@each_format
def test_pydantic_aliases_are_written_and_read(codec: Codec) -> None:
    class Aliased(pydantic.BaseModel):
        order_id: str = pydantic.Field(alias="orderId")

    kind = type_of(Aliased)
    raw = codec.encode_payload(kind, Aliased(orderId="o-1"))
    assert b"orderId" in bytes(raw)
    assert codec.decode_payload(kind, raw).order_id == "o-1"


@each_format
def test_pydantic_computed_fields_do_not_travel(codec: Codec) -> None:
    class Strict(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        count: int

        @pydantic.computed_field
        @property
        def double(self) -> int:
            return 2 * self.count

    arrived = there_and_back(codec, type_of(Strict), Strict(count=2))
    assert arrived.double == 4


# -- sharing --------------------------------------------------------------------------------------


@each_format
def test_a_codec_can_be_shared_between_threads(codec: Codec) -> None:
    def send_many(number: int) -> bool:
        kinds = list(KINDS.values())
        orders = [(kind, kind.make(order_id=f"{number}-{i}")) for i in range(50) for kind in kinds]
        return all(there_and_back(codec, kind.event, order) == order for kind, order in orders)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(send_many, range(16)))


def test_a_wrong_value_is_refused_where_nothing_else_needs_a_check() -> None:
    @event("switched", description="A switch was moved")
    class Switched(msgspec.Struct):
        on: bool

    encode = JsonCodec().payload_encoder(event_type_of(Switched))
    assert bytes(encode(Switched(True))) == b'{"on":true}'
    with pytest.raises(InvalidEventError, match="switched"):
        encode(Switched(object()))  # pyright: ignore[reportArgumentType]
