"""Envelopes through every codec: what arrives, what is refused at send, what is no envelope."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from tests.support.envelopes import (
    CODECS,
    STAMP,
    make_docket,
    make_raw,
    there_and_back,
    wire_headers,
)

from matador.codec import Codec, HeaderCodec, JsonCodec, MessagePackCodec
from matador.codec.base import Encoded, Preparing, Stencil, preparing
from matador.codec.json_text import find_duplicate_key
from matador.codec.wire import readable_text
from matador.errors import DecodeError, InvalidEventError
from matador.model.envelope import MOST_ATTEMPTS, ROOM_FOR_ERRORS, Docket, Envelope
from matador.model.event import EventType
from matador.model.text import storable_text

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
NAN = float("nan")


def change(field: str, value: object) -> dict[str, Any]:
    return {field: value}


def is_json(codec: Codec) -> bool:
    return codec.content_type == "application/json"


# -- what arrives ---------------------------------------------------------------------------------


@each_codec
def test_an_envelope_arrives_as_it_was_sent(codec: Codec) -> None:
    envelope = make_raw(
        b"\x01" if not is_json(codec) else b'{"a":[1,null]}',
        before=b"\x02" if not is_json(codec) else b'"x"',
        original_queue="shop.events",
        scheduled_for=datetime(2026, 11, 15, 19, 3, tzinfo=UTC),
        attempts=7,
        first_error="é漢😀",
        last_error='\x00\n"\\',
        importance="can-ignore",
        correlation_id="",
        metadata={"tenant": "acme", "": [1, 2.5, None, {"é": True}]},
    )
    assert there_and_back(codec, envelope) == envelope


@each_codec
@pytest.mark.parametrize("before", [None, "null"])
def test_a_before_of_null_is_none(codec: Codec, before: str | None) -> None:
    null = b"null" if is_json(codec) else b"\xc0"
    envelope = make_raw(b"1", before=null if before else None)
    assert there_and_back(codec, envelope).before is None


@pytest.mark.parametrize("codec", [JsonCodec(), MessagePackCodec()], ids=repr)
def test_what_is_not_there_is_not_written(codec: Codec) -> None:
    body = codec.encode(make_raw(b"1")).body
    for name in (b"scheduledFor", b"firstError", b"metadata", b"before", b"null", b"\xc0"):
        assert name not in body


def test_the_description_travels_where_there_is_no_header_codec() -> None:
    for codec in (JsonCodec(), MessagePackCodec()):
        envelope = make_raw(b"1", event_description="A customer placed an order.")
        assert there_and_back(codec, envelope) == envelope


# -- times ----------------------------------------------------------------------------------------


@each_codec
@pytest.mark.parametrize("field", ["created_at", "scheduled_for"])
@pytest.mark.parametrize(
    ("moment", "arrives"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
        (
            datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC),
            datetime(2026, 1, 1, 0, 0, 0, 999_000, tzinfo=UTC),
        ),
        (datetime(2026, 1, 1, 0, 0, 0, 999, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
        (
            datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
            datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
        ),
        (datetime(999, 1, 1, tzinfo=UTC), datetime(999, 1, 1, tzinfo=UTC)),
        (
            datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30))),
            datetime(2026, 1, 1, 6, 30, tzinfo=UTC),
        ),
        (
            datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")),
            datetime(2026, 7, 1, 10, tzinfo=UTC),
        ),
        (
            datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))),
            datetime(1, 1, 1, tzinfo=UTC),
        ),
        (
            datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))),
            datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        ),
    ],
    ids=str,
)
def test_times_arrive_in_utc_cut_to_milliseconds(
    codec: Codec, field: str, moment: datetime, arrives: datetime
) -> None:
    arrived = there_and_back(codec, make_raw(b"1", **change(field, moment)))
    assert getattr(arrived.docket, field) == arrives


@each_codec
@pytest.mark.parametrize("field", ["created_at", "scheduled_for"])
def test_a_time_without_a_zone_is_refused(codec: Codec, field: str) -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the point
    with pytest.raises(InvalidEventError, match="no time zone"):
        codec.encode(make_raw(b"1", **change(field, naive)))


# -- what cannot be written -----------------------------------------------------------------------


@dataclass
class Measured:
    value: float


@each_codec
@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({1: "x"}, "the key 1 is not a string"),
        ({None: "x"}, "key"),
        ({"a": object}, "type"),
        ({"a": "\ud800"}, "surrogate"),
        ({"\ud800": "a"}, "surrogate"),
    ],
    ids=repr,
)
def test_metadata_that_cannot_be_written_is_refused(
    codec: Codec, metadata: dict[Any, Any], problem: str
) -> None:
    with pytest.raises(InvalidEventError, match=problem):
        codec.encode(make_raw(b"1", metadata=metadata))


@each_codec
def test_metadata_that_contains_itself_is_refused(codec: Codec) -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(InvalidEventError, match="recursion"):
        codec.encode(make_raw(b"1", metadata=endless))


@each_codec
@pytest.mark.parametrize("text", ["event_key", "correlation_id", "first_error", "original_queue"])
def test_a_lone_surrogate_in_the_docket_is_refused(codec: Codec, text: str) -> None:
    with pytest.raises(InvalidEventError, match="surrogate"):
        codec.encode(make_raw(b"1", **change(text, "\udcff")))


@pytest.mark.parametrize("name", [name for name, codec in CODECS.items() if is_json(codec)])
@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"a": NAN}, r"nan cannot be encoded as JSON - at `\$\.a`"),
        (
            {"a": [0.5, {"b": float("-inf")}]},
            r"-inf cannot be encoded as JSON - at `\$\.a\[1\]\.b`",
        ),
        ({"a": (NAN,)}, r"nan .* `\$\.a\[0\]`"),
        ({"a": {NAN}}, r"nan .* `\$\.a\[0\]`"),
        ({"a": Measured(NAN)}, r"nan .* `\$\.a\.value`"),
        ({"a": {1: "x"}}, r"the key 1 is not a string - at `\$\.a`"),
        ({"a": [{"b": {2: 1}}]}, r"the key 2 is not a string - at `\$\.a\[0\]\.b`"),
    ],
    ids=repr,
)
def test_metadata_that_json_would_change_is_refused(
    name: str, metadata: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidEventError, match=problem):
        CODECS[name].encode(make_raw(b"1", metadata=metadata))


def test_messagepack_carries_metadata_that_json_cannot() -> None:
    envelope = make_raw(
        b"\x01",
        metadata={
            "infinite": float("inf"),
            "keys": {1: "one", None: "none", (1, 2): "pair"},
            "time": datetime(2026, 1, 1, tzinfo=UTC),
            "bytes": b"\xff",
            "own": msgspec.msgpack.Ext(5, b"x"),
        },
    )
    assert there_and_back(MessagePackCodec(), envelope) == envelope


@each_codec
def test_metadata_with_dates_and_the_like_arrives_as_text_or_as_it_was(codec: Codec) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    arrived = there_and_back(codec, make_raw(b"1", metadata={"at": moment})).docket.metadata["at"]
    assert arrived == ("2026-01-01T00:00:00Z" if is_json(codec) else moment)


def test_large_numbers_in_metadata_arrive_in_json_and_are_refused_in_messagepack() -> None:
    envelope = make_raw(b"1", metadata={"a": 2**70})
    assert there_and_back(JsonCodec(), envelope) == envelope
    with pytest.raises(InvalidEventError, match="serialize ints"):
        MessagePackCodec().encode(envelope)


# -- what is no envelope --------------------------------------------------------------------------


@each_codec
def test_an_empty_body_is_said_to_be_empty(codec: Codec) -> None:
    with pytest.raises(DecodeError, match="empty"):
        codec.decode(b"", {}, STAMP)


@each_codec
def test_a_truncated_body_is_refused(codec: Codec) -> None:
    encoded = codec.encode(make_raw(b"1", metadata={"a": "b"}))
    for end in range(len(encoded.body)):
        with pytest.raises(DecodeError):
            codec.decode(encoded.body[:end], encoded.headers, STAMP)


@pytest.mark.parametrize("codec", [JsonCodec(), MessagePackCodec()], ids=repr)
def test_trailing_bytes_are_refused(codec: Codec) -> None:
    encoded = codec.encode(make_raw(b"1"))
    with pytest.raises(DecodeError):
        codec.decode(encoded.body + b"1", encoded.headers, STAMP)


@pytest.mark.parametrize(
    ("written_by", "read_by", "hint"),
    [
        ("msgpack", "json", "MessagePackCodec"),
        ("json", "msgpack", "JsonCodec"),
        ("gzip-json", "json", "CompressedCodec"),
        ("zstd-json", "json", "CompressedCodec"),
    ],
)
def test_the_wrong_codec_says_which_one_is_right(written_by: str, read_by: str, hint: str) -> None:
    encoded = CODECS[written_by].encode(make_raw(b"1"))
    with pytest.raises(DecodeError, match=hint):
        CODECS[read_by].decode(encoded.body, encoded.headers, STAMP)


def nested(codec: Codec, depth: int) -> Any:
    return b"[" * depth + b"]" * depth if is_json(codec) else b"\x91" * depth + b"\x01"


@pytest.mark.parametrize("codec", [JsonCodec(), MessagePackCodec()], ids=repr)
@pytest.mark.parametrize("place", ["data", "before", "metadata"])
def test_a_body_nested_too_deeply_is_refused(codec: Codec, place: str) -> None:
    marker = b'"MARKER"' if is_json(codec) else b"\xa6MARKER"
    parts: dict[str, Any] = {"data": b"1", place: marker}
    metadata = {"a": "MARKER"} if place == "metadata" else {}
    envelope = make_raw(parts["data"], before=parts.get("before"), metadata=metadata)
    body = codec.encode(envelope).body
    assert body.count(marker) == 1
    with pytest.raises(DecodeError, match=r"deep|recursion"):
        codec.decode(body.replace(marker, nested(codec, 100_000)), {}, STAMP)


# -- what a DecodeError says --------------------------------------------------------------------

HOSTILE = "\x1b[2J\r\n\x00\u202e\ud800" * 40_000  # 200,000 characters nobody wants to see


def hostile_bodies() -> dict[str, tuple[bytes, dict[str, Any]]]:
    text = json.dumps(HOSTILE).encode()
    good = {"docket": {"eventKey": "k", "targetSubscriber": "s", "attempts": 1}}
    late = {**good["docket"], "createdAt": HOSTILE, "importance": "can-ignore"}
    headers: dict[str, Any] = {**wire_headers()}
    return {
        "key": (b"{" + text + b":1," + text + b":2}", headers),
        "text": (text, headers),
        "id": (b'{"data":1,"id":[' + text + b"]}", headers),
        "older": (
            b'{"data":1,"key":"k","targetSubscriber":"s","universal":' + text + b"}",
            headers,
        ),
        "docket": (json.dumps({"id": "1", "data": 1, "docket": late}).encode(), headers),
        "metadata": (b'{"id":"1","data":1,"metadata":' + text + b"}", headers),
        "numbers": (b"9" * 200_000, headers),
        "nan": (b'{"id":"1","data":NaN}', headers),
        "infinity": (b'{"id":"1","data":-Infinity}', headers),
        "nested": (b"[" * 200_000, headers),
        "bytes": (bytes(range(256)) * 1000, headers),
        "attempts": (b'{"id":"1","data":1}', {**headers, "x-matador-attempts": HOSTILE}),
        "created": (b'{"id":"1","data":1}', {**headers, "x-matador-created-at": HOSTILE}),
        "time": (b'{"id":"1","data":1}', {**headers, "x-matador-created-at": "\x1b" * 200_000}),
        "event": (b'{"id":"1","data":1}', {**headers, "x-matador-event-key": HOSTILE}),
    }


@each_codec
@pytest.mark.parametrize("what", hostile_bodies())
def test_what_is_said_of_a_hostile_message_is_short_and_can_be_printed(
    codec: Codec, what: str
) -> None:
    body, headers = hostile_bodies()[what]
    said = ""
    try:
        codec.decode(body, headers, STAMP)
    except DecodeError as error:
        said = str(error)
    assert said or what in ("event", "key")  # none of the codec's business
    assert len(said) <= 300
    assert said.isprintable()


def test_a_key_that_is_twice_there_is_named_in_short() -> None:
    body = hostile_bodies()["key"][0]
    found = find_duplicate_key(body)
    assert found is not None
    assert HOSTILE.startswith(found)
    assert 20 <= len(found) <= 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fine", "fine"),
        ("é 漢 😀", "é 漢 😀"),
        ("a\nb\x1b[2J\x00\x7f\u202e\ud800", r"a\nb\x1b[2J\x00\x7f\u202e\ud800"),
        ("x" * 300, "x" * 300),
        ("x" * 301, "x" * 299 + "…"),
        ("\x00" * 299, "\\x00" * 74 + "\\x0…"),
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_a_decode_error_cleans_its_text(text: str, said: str) -> None:
    assert str(DecodeError(text)) == said
    assert "could not be decoded" in str(DecodeError())


def test_the_room_for_errors_is_enough_for_the_longest_texts() -> None:
    plain = make_raw(b"1")
    longest = storable_text("\x01" * 100_000)
    docket = msgspec.structs.replace(
        plain.docket,
        attempts=MOST_ATTEMPTS,
        first_error=longest,
        last_error=longest,
        original_queue="q" * 255,
        scheduled_for=plain.docket.created_at,
    )
    grown = msgspec.structs.replace(plain, docket=docket)
    for codec in (JsonCodec(), MessagePackCodec()):
        growth = len(codec.encode(grown).body) - len(codec.encode(plain).body)
        assert growth < ROOM_FOR_ERRORS


def test_messagepack_with_half_of_a_character_says_so() -> None:
    body = MessagePackCodec().encode(make_raw(b"\x01", correlation_id="aXXX")).body
    with pytest.raises(DecodeError, match=r"lone surrogate \(U\+D800, half"):
        MessagePackCodec().decode(body.replace(b"XXX", b"\xed\xa0\x80"), {}, STAMP)


def test_messagepack_that_ends_early_is_not_blamed_on_a_surrogate() -> None:
    body = MessagePackCodec().encode(make_raw(b"\xc4\x03\xed\xa0\x80")).body
    with pytest.raises(DecodeError, match="not an envelope in MessagePack"):
        MessagePackCodec().decode(body[:-1], {}, STAMP)


def test_a_time_of_messagepacks_own_stays_in_a_loose_docket() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    docket = {
        "eventKey": "k",
        "targetSubscriber": "s",
        "attempts": 1,
        "createdAt": moment,
        "scheduledFor": moment,
        "importance": "unheard-of",
    }
    body = msgspec.msgpack.encode({"id": "1", "data": 1, "docket": docket})
    assert MessagePackCodec().decode(body, {}, STAMP).docket.scheduled_for == moment


def test_prepared_headers_are_each_messages_own() -> None:
    stencil = HeaderCodec().prepare(make_docket())
    first = stencil("1", msgspec.Raw(b"1"), datetime(2026, 1, 1, tzinfo=UTC), None, "c", {})
    second = stencil("2", msgspec.Raw(b"2"), datetime(2026, 1, 2, tzinfo=UTC), None, None, {})
    assert first.headers["x-matador-created-at"] == "2026-01-01T00:00:00.000Z"
    assert second.headers["x-matador-created-at"] == "2026-01-02T00:00:00.000Z"
    assert first.headers["x-matador-correlation-id"] == "c"
    assert "x-matador-correlation-id" not in second.headers


@pytest.mark.parametrize(
    "changes",
    [
        {"correlation_id": "\ud800"},
        {"metadata": {"a": "\ud800"}},
        {"metadata": {"\ud800": 1}},
        {"metadata": {"a": NAN}},
        {"metadata": {"a": [NAN]}},
        {"metadata": {1: "a"}},
        {"metadata": {"a": 1j}},
    ],
    ids=ascii,
)
@pytest.mark.parametrize("codec", [JsonCodec(), HeaderCodec()], ids=repr)
def test_a_stencil_refuses_what_encode_refuses(codec: Preparing, changes: dict[str, Any]) -> None:
    docket = make_docket()
    stencil, moment = codec.prepare(docket), docket.created_at
    correlation_id, metadata = changes.get("correlation_id"), changes.get("metadata", {})
    assert isinstance(codec, JsonCodec | HeaderCodec)
    with pytest.raises(InvalidEventError) as refused:
        codec.encode(make_raw(b"1", **changes))
    with pytest.raises(InvalidEventError) as refused_too:
        stencil("1", msgspec.Raw(b"1"), moment, None, correlation_id, metadata)
    assert str(refused_too.value) == str(refused.value)


def test_a_codec_that_encodes_in_another_way_does_not_prepare_in_the_inherited_one() -> None:
    class Encodes(JsonCodec):
        def encode(self, envelope: Envelope[msgspec.Raw]) -> Encoded:
            return super().encode(envelope)

    class EncodesPayloads(JsonCodec):
        def encode_payload(self, event: EventType, payload: Any) -> msgspec.Raw:
            return super().encode_payload(event, payload)

    class Both(Encodes):
        def prepare(self, docket: Docket) -> Stencil:
            return super().prepare(docket)

        def encode(self, envelope: Envelope[msgspec.Raw]) -> Encoded:
            return super().encode(envelope)

    assert preparing(JsonCodec()) is not None
    assert preparing(HeaderCodec()) is not None
    assert preparing(Both()) is not None
    assert preparing(Encodes()) is None
    assert preparing(EncodesPayloads()) is None
    assert preparing(MessagePackCodec()) is None


def test_messagepack_times_of_its_own_type_are_read_too() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    body = msgspec.msgpack.encode(
        {
            "id": "1",
            "data": 1,
            "docket": {
                "eventKey": "k",
                "targetSubscriber": "s",
                "attempts": 1,
                "createdAt": moment,
                "importance": "can-ignore",
            },
        }
    )
    assert MessagePackCodec().decode(body, {}, STAMP).docket.created_at == moment


@pytest.mark.parametrize(
    "spelled", [b'"before"', b'"\\u0062efore"', b'"b\\u0065fore"'], ids=lambda text: text.decode()
)
def test_before_is_found_however_its_name_is_spelled(spelled: bytes) -> None:
    body = JsonCodec().encode(make_raw(b"1", before=b"2")).body
    envelope = JsonCodec().decode(body.replace(b'"before"', spelled), {}, STAMP)
    assert envelope.before is not None
    assert bytes(envelope.before) == b"2"


# -- what the codecs say of themselves ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content_type", "text"),
    [
        ("json", "application/json", "JsonCodec()"),
        ("msgpack", "application/msgpack", "MessagePackCodec()"),
        ("headers", "application/json", "HeaderCodec()"),
        ("gzip-msgpack", "application/msgpack", "CompressedCodec(MessagePackCodec(), 'gzip')"),
    ],
)
def test_content_type_and_repr(name: str, content_type: str, text: str) -> None:
    assert CODECS[name].content_type == content_type
    assert repr(CODECS[name]) == text


def test_a_stencil_writes_times_at_the_edges_of_a_millisecond_as_encode_does() -> None:
    codec = JsonCodec()
    stencil = codec.prepare(make_docket())
    start = datetime(2026, 11, 15, 19, 2, 37, 435_500, UTC)
    for micros in (0, 499, 500, 501, 999, 1_500, 0, -500, -501):
        moment = start + timedelta(microseconds=micros)
        body = stencil("1", msgspec.Raw(b"1"), moment, None, None, None).body
        milliseconds = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        assert json.loads(body)["docket"]["createdAt"] == milliseconds


def test_a_time_of_another_zone_is_written_in_utc() -> None:
    moment = datetime(2026, 11, 15, 20, 2, 37, 435_123, timezone(timedelta(hours=1)))
    body = JsonCodec().encode(make_raw(b"1", created_at=moment)).body
    assert json.loads(body)["docket"]["createdAt"] == "2026-11-15T19:02:37.435Z"


def test_metadata_that_cannot_be_encoded_is_named_by_its_key() -> None:
    with pytest.raises(InvalidEventError, match=r"metadata\['b'\] cannot be encoded"):
        JsonCodec().encode(make_raw(b"1", metadata={"a": 1, "b": object(), "c": 2}))


def test_an_optional_text_may_be_a_number_up_to_a_bound() -> None:
    for number in (MOST_ATTEMPTS, -MOST_ATTEMPTS):
        assert readable_text(number) == str(number)
    for other in (MOST_ATTEMPTS + 1, -MOST_ATTEMPTS - 1, True, 1.0):
        assert readable_text(other) is None
