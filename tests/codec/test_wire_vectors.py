"""What services in other languages write and expect, byte for byte.

The messages here are spelled out as they stand on a queue, and never made by the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.support.envelopes import NEW_ID, NOW, STAMP, make_raw, wire_headers

from matador.codec import Codec, HeaderCodec, JsonCodec, MessagePackCodec, wire
from matador.errors import DecodeError
from matador.model.envelope import Docket, Envelope
from matador.model.event import event, event_type_of
from matador.model.message import Headers

HEADERS: Headers = {
    "x-matador-attempts": 1,
    "x-matador-correlation-id": "corr-123",
    "x-matador-created-at": "2026-11-15T19:02:37.435Z",
    "x-matador-event-key": "user.created",
    "x-matador-importance": "must-investigate",
    "x-matador-subscriber": "send-email",
}
BODY = (
    '{"id":"50dbfa1b-48c7-4fcd-a99d-c8a164d1f02e",'
    '"data":{"userId":"u1","n":1.5,"u":"é漢😀","nul":null},'
    '"metadata":{"tenant":"acme"}}'
).encode()


@event("user.created", description="Somebody signed up.")
class UserCreated(msgspec.Struct, rename="camel"):
    user_id: str
    n: float
    u: str
    nul: None


USER = UserCreated("u1", 1.5, "é漢😀", None)
DOCKET = Docket(
    event_key="user.created",
    target_subscriber="send-email",
    created_at=datetime(2026, 11, 15, 19, 2, 37, 435000, tzinfo=UTC),
    attempts=1,
    importance="must-investigate",
    correlation_id="corr-123",
    metadata={"tenant": "acme"},
)

# -- the message seen on a queue ------------------------------------------------------------------


def test_the_example_is_read() -> None:
    envelope = HeaderCodec().decode(BODY, HEADERS, STAMP)
    assert envelope.id == "50dbfa1b-48c7-4fcd-a99d-c8a164d1f02e"
    assert envelope.docket == DOCKET
    assert envelope.before is None
    assert HeaderCodec().decode_payload(event_type_of(UserCreated), envelope.data) == USER


def test_the_example_is_written() -> None:
    codec = HeaderCodec()
    data = codec.encode_payload(event_type_of(UserCreated), USER)
    encoded = codec.encode(Envelope("50dbfa1b-48c7-4fcd-a99d-c8a164d1f02e", data, DOCKET))
    assert encoded.body == BODY
    assert encoded.headers == HEADERS


def test_the_description_is_not_sent() -> None:
    encoded = HeaderCodec().encode(make_raw(event_description="A customer placed an order."))
    assert b"customer" not in encoded.body
    assert "A customer placed an order." not in encoded.headers.values()


def test_every_optional_header_is_written_and_read() -> None:
    optional: Headers = {
        "x-matador-scheduled-for": "2026-11-15T19:03:07.001Z",
        "x-matador-original-queue": "shop.events",
        "x-matador-first-error": "the gateway is down",
        "x-matador-last-error": "é漢😀",
        "x-matador-correlation-id": "corr-123",
    }
    headers = {**wire_headers(), **optional}
    envelope = HeaderCodec().decode(b'{"id":"1","data":2}', headers, STAMP)
    docket = envelope.docket
    assert docket.scheduled_for == datetime(2026, 11, 15, 19, 3, 7, 1000, tzinfo=UTC)
    assert docket.original_queue == "shop.events"
    assert docket.first_error == "the gateway is down"
    assert docket.last_error == "é漢😀"
    encoded = HeaderCodec().encode(envelope)
    assert encoded.body == b'{"id":"1","data":2}'
    assert encoded.headers == headers


def test_before_is_an_extra_field_of_the_body() -> None:
    body = b'{"id":"1","data":2,"before":{"a":1}}'
    envelope = HeaderCodec().decode(body, wire_headers(), STAMP)
    assert envelope.before is not None
    assert bytes(envelope.before) == b'{"a":1}'
    assert HeaderCodec().encode(envelope).body == body


@pytest.mark.parametrize(
    "header",
    [
        "x-matador-event-key",
        "x-matador-subscriber",
        "x-matador-created-at",
        "x-matador-importance",
        "x-matador-attempts",
    ],
)
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_header_is_named(header: str, value: str | None) -> None:
    headers = wire_headers(**{header.removeprefix("x-").replace("-", "_"): value})
    with pytest.raises(DecodeError, match=header):
        HeaderCodec().decode(BODY, headers, STAMP)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-matador-attempts", 0),
        ("x-matador-attempts", -1),
        ("x-matador-attempts", "many"),
        ("x-matador-attempts", "1.5"),
        ("x-matador-attempts", "9" * 5000),
        ("x-matador-attempts", 10**5000),
        ("x-matador-attempts", 2**31),
        ("x-matador-attempts", True),
        ("x-matador-attempts", [1]),
        ("x-matador-created-at", "yesterday"),
        ("x-matador-created-at", "2026-11-15T19:02:37"),
        ("x-matador-created-at", 1794769357436),
        ("x-matador-event-key", {"a": 1}),
        ("x-matador-subscriber", "\ud800"),
    ],
    ids=lambda value: ascii(value)[:20] if not isinstance(value, int) else f"{value % 2**40}",
)
def test_a_wrong_header_is_named(header: str, value: Any) -> None:
    headers = wire_headers(**{header.removeprefix("x-").replace("-", "_"): value})
    with pytest.raises(DecodeError, match=header):
        HeaderCodec().decode(BODY, headers, STAMP)


@pytest.mark.parametrize("value", ["", "soon", "2026-11-15T19:02:37", 5, True, [1], {}, b"\xff"])
def test_a_time_for_later_that_is_none_does_not_matter(value: Any) -> None:
    headers = wire_headers(matador_scheduled_for=value)
    assert HeaderCodec().decode(BODY, headers, STAMP).docket.scheduled_for is None


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("original-queue", "original_queue"),
        ("first-error", "first_error"),
        ("last-error", "last_error"),
        ("correlation-id", "correlation_id"),
    ],
)
@pytest.mark.parametrize(
    ("value", "read"),
    [
        (1.5, None),
        (True, None),
        ([1], None),
        ({"a": 1}, None),
        (b"\xff", None),
        ("\ud800", None),
        (2**40, None),
        (17, "17"),
        ("é", "é"),
    ],
    ids=ascii,
)
def test_an_optional_header_of_another_type_does_not_matter(
    name: str, field: str, value: Any, read: str | None
) -> None:
    headers = {**wire_headers(), f"x-matador-{name}": value}
    envelope = HeaderCodec().decode(BODY, headers, STAMP)
    assert getattr(envelope.docket, field) == read
    assert envelope.id == "50dbfa1b-48c7-4fcd-a99d-c8a164d1f02e"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "empty"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"id":"1","data":"\xff"}', "UTF-8"),
        (b"{", "not JSON"),
        (b'{"id":"1","data":NaN}', "not JSON"),
        (b'{"id":"1","data":"\\ud800"}', r"lone surrogate \(\\ud800, .* at byte 18"),
        (b'{"id":"1","data":"\\ud83d\\ude00 \\uDFFF"}', r"lone surrogate \(\\uDFFF, .* byte 31"),
        (b'{"id":"1","data":"\\ud83d\\ud83d\\ude00"}', r"surrogate \(\\ud83d, .* at byte 18"),
        (b'{"id":"1","data":"\\ud83d \\ude00"}', r"lone surrogate \(\\ud83d, .* at byte 18"),
        (b'{"id":"1","data":"a\xed\xbf\xbf"}', r"lone surrogate \(U\+DFFF, .* at byte 19"),
        (b'{"id":"1","data":"\\\\ud800"', "not JSON"),
        (b'{"id":"1","data":"\\ud83d\\ude00"', "not JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"id":"1"}', "data"),
        (b'{"data":1}', "id"),
        (b'{"id":5,"data":1}', r"\$\.id"),
        (b'{"id":null,"data":1}', r"\$\.id"),
        (b'{"id":"1","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
        (b"\x1f\x8b\x08", "CompressedCodec"),
        (b"\x83\xa2id", "MessagePackCodec"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_body_that_is_none_says_why(body: bytes, problem: str) -> None:
    for codec in (HeaderCodec(), JsonCodec()):
        with pytest.raises(DecodeError, match=problem):
            codec.decode(body, wire_headers(), STAMP)


def test_metadata_of_the_wrong_type_is_named() -> None:
    with pytest.raises(DecodeError, match=r"\$\.metadata"):
        HeaderCodec().decode(b'{"id":"1","data":1,"metadata":5}', wire_headers(), STAMP)


@pytest.mark.parametrize("metadata", ["{}", "null", None])
def test_empty_metadata_is_none_at_all(metadata: str | None) -> None:
    body = '{"id":"1","data":2' + (f',"metadata":{metadata}' if metadata else "") + "}"
    envelope = HeaderCodec().decode(body.encode(), wire_headers(), STAMP)
    assert envelope.docket.metadata == {}
    assert HeaderCodec().encode(envelope).body == b'{"id":"1","data":2}'


def test_unknown_fields_and_white_space_do_not_matter() -> None:
    body = b' { "new" : [ ] , "data" : 2 , "id" : "1" , "before" : null } \n'
    envelope = HeaderCodec().decode(body, {**wire_headers(), "x-new": "1"}, STAMP)
    assert (envelope.id, bytes(envelope.data), envelope.before) == ("1", b"2", None)


# -- the full envelope, as other transports carry it ----------------------------------------------

FULL: dict[str, Any] = {
    "id": "50dbfa1b-48c7-4fcd-a99d-c8a164d1f02e",
    "data": {"userId": "u1", "n": 1.5, "u": "é漢😀", "nul": None},
    "before": {"userId": "u0", "n": 1, "u": "", "nul": None},
    "docket": {
        "eventKey": "user.created",
        "eventDescription": "Somebody signed up.",
        "targetSubscriber": "send-email",
        "originalQueue": "shop.events",
        "scheduledFor": "2026-11-15T19:03:07.000Z",
        "attempts": 2,
        "createdAt": "2026-11-15T19:02:37.435Z",
        "firstError": "first",
        "lastError": "last",
        "importance": "must-investigate",
        "correlationId": "corr-123",
        "metadata": {"tenant": "acme"},
    },
}


def as_bytes(message: object) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def without(message: dict[str, Any], path: str) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    if rest:
        return {**message, head: without(message[head], rest)}
    return {name: value for name, value in message.items() if name != head}


def test_a_full_envelope_is_read() -> None:
    envelope = JsonCodec().decode(as_bytes(FULL), {}, STAMP)
    assert envelope.docket == Docket(
        event_key="user.created",
        event_description="Somebody signed up.",
        target_subscriber="send-email",
        original_queue="shop.events",
        scheduled_for=datetime(2026, 11, 15, 19, 3, 7, tzinfo=UTC),
        attempts=2,
        created_at=datetime(2026, 11, 15, 19, 2, 37, 435000, tzinfo=UTC),
        first_error="first",
        last_error="last",
        importance="must-investigate",
        correlation_id="corr-123",
        metadata={"tenant": "acme"},
    )
    assert json.loads(bytes(envelope.data)) == FULL["data"]
    assert envelope.before is not None
    assert json.loads(bytes(envelope.before)) == FULL["before"]


def test_a_full_envelope_is_written() -> None:
    envelope = JsonCodec().decode(as_bytes(FULL), {}, STAMP)
    assert json.loads(JsonCodec().encode(envelope).body) == FULL


OPTIONAL = [
    "before",
    *(
        f"docket.{name}"
        for name in (
            "eventDescription",
            "originalQueue",
            "scheduledFor",
            "firstError",
            "lastError",
            "correlationId",
            "metadata",
        )
    ),
]
REQUIRED = [
    "id",
    "data",
    "docket",
    *(
        f"docket.{name}"
        for name in ("eventKey", "targetSubscriber", "attempts", "createdAt", "importance")
    ),
]


@pytest.mark.parametrize("path", OPTIONAL)
def test_an_optional_field_may_be_absent_and_is_then_not_written(path: str) -> None:
    message = without(FULL, path)
    envelope = JsonCodec().decode(as_bytes(message), {}, STAMP)
    assert json.loads(JsonCodec().encode(envelope).body) == message


def test_the_required_fields_are_enough() -> None:
    message = FULL
    for path in OPTIONAL:
        message = without(message, path)
    envelope = JsonCodec().decode(as_bytes(message), {}, STAMP)
    assert json.loads(JsonCodec().encode(envelope).body) == message


@pytest.mark.parametrize("path", REQUIRED)
def test_a_required_field_that_is_missing_is_named(path: str) -> None:
    with pytest.raises(DecodeError, match=f"`{path.rpartition('.')[2]}`"):
        JsonCodec().decode(as_bytes(without(FULL, path)), {}, STAMP)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eventKey", 5),
        ("targetSubscriber", None),
        ("attempts", 0),
        ("attempts", 2**31),
        ("attempts", "1"),
        ("createdAt", "yesterday"),
        ("createdAt", "2026-11-15T19:02:37.435"),
        ("metadata", []),
        ("metadata", 5),
    ],
)
@pytest.mark.parametrize("importance", ["can-ignore", "grave"])
def test_a_wrong_field_of_the_docket_is_named(field: str, value: Any, importance: str) -> None:
    docket = {**FULL["docket"], "importance": importance, field: value}
    for codec, encode in BOTH_FORMATS:
        with pytest.raises(DecodeError, match=rf"\$\.docket\.{field}"):
            codec.decode(encode({**FULL, "docket": docket}), {}, STAMP)


BOTH_FORMATS: list[tuple[Codec, Callable[[object], bytes]]] = [
    (JsonCodec(), as_bytes),
    (MessagePackCodec(), msgspec.msgpack.encode),
]


@pytest.mark.parametrize(
    ("field", "name", "value", "read"),
    [
        ("scheduledFor", "scheduled_for", 5, None),
        ("scheduledFor", "scheduled_for", "soon", None),
        ("scheduledFor", "scheduled_for", "2026-11-15T19:03:07", None),
        ("correlationId", "correlation_id", {}, None),
        ("correlationId", "correlation_id", 5, "5"),
        ("correlationId", "correlation_id", False, None),
        ("eventDescription", "event_description", [], None),
        ("originalQueue", "original_queue", 1.5, None),
        ("firstError", "first_error", {"message": "x"}, None),
        ("lastError", "last_error", ["x"], None),
        ("metadata", "metadata", None, {}),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_an_optional_field_of_another_type_does_not_matter(
    field: str, name: str, value: Any, read: Any, before: bool
) -> None:
    message = FULL if before else without(FULL, "before")
    good = JsonCodec().decode(as_bytes(message), {}, STAMP)
    docket = {**FULL["docket"], field: value}
    for codec, encode in BOTH_FORMATS:
        envelope = codec.decode(encode({**message, "docket": docket}), {}, STAMP)
        assert envelope.docket == msgspec.structs.replace(good.docket, **{name: read})
        assert (envelope.id, envelope.before is None) == (good.id, not before)


def read_with_importance(value: Any) -> list[Docket]:
    """The docket of every form of a message with this importance."""
    docket = {**FULL["docket"], "importance": value}
    bodies = [
        codec.decode(encode({**FULL, "docket": docket}), {}, STAMP)
        for codec, encode in BOTH_FORMATS
    ]
    headers = wire_headers(matador_importance=value)
    older = {"key": "user.created", "targetSubscriber": "send-email", "data": 1}
    bodies += [HeaderCodec().decode(body, headers, STAMP) for body in (BODY, as_bytes(older))]
    return [one.docket for one in bodies]


def test_an_unknown_importance_is_the_usual_one_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        dockets = read_with_importance("test-of-one-warning")
        assert {one.importance for one in dockets} == {"should-investigate"}
    (warning,) = caplog.records
    assert (warning.levelname, warning.name) == ("WARNING", "matador.codec")
    text = "unknown importance 'test-of-one-warning': using 'should-investigate'"
    assert warning.message == text


@pytest.mark.parametrize("value", [5, 1.5, True, ["can-ignore"], {"a": 1}], ids=repr)
def test_an_importance_of_another_type_is_an_unknown_one(value: Any) -> None:
    dockets = read_with_importance(value)
    assert {one.importance for one in dockets} == {"should-investigate"}


def test_the_warnings_about_importance_come_to_an_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_warned", set[str]())
    for number in range(500):
        read_with_importance(f"\x1b[2J{number}" * 100)
    assert 10 < len(caplog.records) <= 100
    assert all(one.message.isprintable() and len(one.message) < 200 for one in caplog.records)


# -- the older body -------------------------------------------------------------------------------

OLDER: dict[str, Any] = {
    "key": "user.created",
    "data": {"userId": "u1"},
    "metadata": {"tenant": "acme", "region": "north"},
    "universal": {
        "event_id": "e-1",
        "user_id": "u-9",
        "correlation_id": "corr-1",
        "region": "south",
    },
    "targetSubscriber": "send-email",
}

both = pytest.mark.parametrize("codec", [HeaderCodec(), JsonCodec()], ids=repr)


def read_older(codec: HeaderCodec | JsonCodec, headers: Headers | None = None, **changes: Any):
    message = {name: value for name, value in (OLDER | changes).items() if value is not ...}
    return codec.decode(as_bytes(message), headers or {}, STAMP)


@both
def test_an_older_body_needs_no_headers(codec: HeaderCodec | JsonCodec) -> None:
    envelope = read_older(codec)
    assert envelope.id == "e-1"
    assert bytes(envelope.data) == b'{"userId":"u1"}'
    assert envelope.before is None
    assert envelope.docket == Docket(
        event_key="user.created",
        target_subscriber="send-email",
        created_at=NOW,
        attempts=1,
        importance="should-investigate",
        correlation_id="corr-1",
        metadata={"tenant": "acme", "region": "south", "user_id": "u-9"},
    )


@both
@pytest.mark.parametrize(
    ("headers", "universal", "expected"),
    [
        ({"x-event-id": "from-header"}, {"event_id": "from-body"}, "from-header"),
        ({}, {"event_id": "from-body"}, "from-body"),
        ({"x-event-id": ""}, {"event_id": "from-body"}, "from-body"),
        ({}, {"event_id": 5}, "5"),
        ({}, {"event_id": None}, NEW_ID),
        ({}, {"event_id": ""}, NEW_ID),
        ({}, {}, NEW_ID),
        ({}, None, NEW_ID),
        ({}, ..., NEW_ID),
    ],
    ids=str,
)
def test_where_the_id_of_an_older_body_comes_from(
    codec: HeaderCodec | JsonCodec, headers: Headers, universal: Any, expected: str
) -> None:
    assert read_older(codec, headers, universal=universal).id == expected


@both
@pytest.mark.parametrize(
    ("headers", "universal", "expected"),
    [
        ({"x-matador-correlation-id": "a", "x-correlation-id": "b"}, {"correlation_id": "c"}, "a"),
        ({"x-correlation-id": "b"}, {"correlation_id": "c"}, "b"),
        ({}, {"correlation_id": "c"}, "c"),
        ({}, {"correlation_id": None}, None),
        ({}, {}, None),
        ({}, None, None),
    ],
    ids=str,
)
def test_where_the_correlation_id_of_an_older_body_comes_from(
    codec: HeaderCodec | JsonCodec, headers: Headers, universal: Any, expected: str | None
) -> None:
    assert read_older(codec, headers, universal=universal).docket.correlation_id == expected


@both
@pytest.mark.parametrize(
    ("metadata", "universal", "expected"),
    [
        ({"a": 1}, {"user_id": "u"}, {"a": 1, "user_id": "u"}),
        ({"user_id": "old"}, {"user_id": "new"}, {"user_id": "new"}),
        ({"user_id": "old"}, {"user_id": None}, {"user_id": "old"}),
        ({"a": 1}, {"a": 2, "b": None}, {"a": 2, "b": None}),
        ({"a": {"b": [1]}}, {}, {"a": {"b": [1]}}),
        ({"a": 1}, None, {"a": 1}),
        (None, {"user_id": 7}, {"user_id": 7}),
        (..., {"x": True}, {"x": True}),
        ({}, {"event_id": "e", "user_id": None, "correlation_id": "c"}, {}),
        (None, None, {}),
        (..., ..., {}),
    ],
    ids=str,
)
def test_how_the_metadata_of_an_older_body_is_merged(
    codec: HeaderCodec | JsonCodec, metadata: Any, universal: Any, expected: dict[str, Any]
) -> None:
    assert read_older(codec, metadata=metadata, universal=universal).docket.metadata == expected


@both
@pytest.mark.parametrize(
    ("options", "delay"),
    [
        ({"delayMs": 1500}, timedelta(seconds=1.5)),
        ({"delayMs": 0}, timedelta(0)),
        ({"delayMs": 0.5}, timedelta(microseconds=500)),
        ({"delayMs": None}, None),
        ({}, None),
        ({"priority": 1}, None),
        (None, None),
        (..., None),
    ],
    ids=str,
)
def test_the_delay_of_an_older_body_counts_from_now(
    codec: HeaderCodec | JsonCodec, options: Any, delay: timedelta | None
) -> None:
    scheduled = read_older(codec, options=options).docket.scheduled_for
    assert scheduled == (None if delay is None else NOW + delay)


@both
def test_attempts_and_importance_of_an_older_body_come_from_headers(
    codec: HeaderCodec | JsonCodec,
) -> None:
    headers: Headers = {"x-matador-attempts": 3, "x-matador-importance": "can-ignore"}
    docket = read_older(codec, headers).docket
    assert (docket.attempts, docket.importance) == (3, "can-ignore")


@both
@pytest.mark.parametrize(
    ("given", "read"),
    [("2", 2), (0, 1), (-5, 1), ("many", 1), ([], 1), (float("inf"), 1), ("9" * 5000, 1)],
    ids=lambda value: str(value)[:9],
)
def test_attempts_of_an_older_body_that_make_no_sense_are_the_first(
    codec: HeaderCodec | JsonCodec, given: Any, read: int
) -> None:
    assert read_older(codec, {"x-matador-attempts": given}).docket.attempts == read


@both
def test_before_of_an_older_body_is_kept(codec: HeaderCodec | JsonCodec) -> None:
    before = read_older(codec, before={"userId": "u0"}).before
    assert before is not None
    assert bytes(before) == b'{"userId":"u0"}'
    assert read_older(codec, before=None).before is None


@both
@pytest.mark.parametrize("data", [None, 0, False, "", [], {"data": {"data": [1]}}], ids=str)
def test_data_of_an_older_body_may_be_anything(codec: HeaderCodec | JsonCodec, data: Any) -> None:
    assert json.loads(bytes(read_older(codec, data=data).data)) == data


@both
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metadata", 5),
        ("universal", []),
        ("options", {"delayMs": "soon"}),
        ("options", {"delayMs": 1e300}),
        ("options", {"delayMs": 1e17}),
        ("universal", {"event_id": {"a": 1}}),
        ("universal", {"event_id": True}),
        ("universal", {"correlation_id": [1]}),
        ("key", ""),
        ("targetSubscriber", ""),
    ],
    ids=str,
)
def test_a_wrong_field_of_an_older_body_is_an_error(
    codec: HeaderCodec | JsonCodec, field: str, value: Any
) -> None:
    with pytest.raises(DecodeError, match="body of the older format"):
        read_older(codec, **{field: value})


@both
@pytest.mark.parametrize("value", [{"a": 1}, b"\xff", "\ud800", 1.5], ids=repr)
@pytest.mark.parametrize("header", ["x-event-id", "x-matador-correlation-id", "x-correlation-id"])
def test_a_wrong_header_of_an_older_body_does_not_matter(
    codec: HeaderCodec | JsonCodec, header: str, value: Any
) -> None:
    assert read_older(codec, {header: value}) == read_older(codec)


@both
@pytest.mark.parametrize(
    "changes",
    [{"key": 5}, {"key": ...}, {"targetSubscriber": None}, {"data": ...}, {"payload": 1}],
    ids=str,
)
def test_what_is_neither_an_older_body_nor_a_newer_one(
    codec: HeaderCodec | JsonCodec, changes: dict[str, Any]
) -> None:
    with pytest.raises(DecodeError, match="not an envelope"):
        read_older(codec, wire_headers(), **changes)


def test_a_newer_body_may_have_fields_of_an_older_one() -> None:
    body = as_bytes({"id": "1", "data": 2, "key": "user.created"})
    assert HeaderCodec().decode(body, wire_headers(), STAMP).id == "1"
    body = as_bytes({"id": "1", "data": 2, "key": "k", "targetSubscriber": "s", "payload": 3})
    assert HeaderCodec().decode(body, wire_headers(), STAMP).docket.event_key == "user.created"


def test_an_older_body_wins_over_the_id_of_a_newer_one() -> None:
    assert read_older(HeaderCodec(), wire_headers(), id="newer").id == "e-1"


def test_an_older_body_leaves_in_the_newer_form() -> None:
    codec = HeaderCodec()
    again = codec.encode(read_older(codec, {"x-matador-attempts": 2}, options={"delayMs": 1000}))
    assert again.body == as_bytes(
        {
            "id": "e-1",
            "data": {"userId": "u1"},
            "metadata": {"tenant": "acme", "region": "south", "user_id": "u-9"},
        }
    )
    assert again.headers == {
        "x-matador-event-key": "user.created",
        "x-matador-subscriber": "send-email",
        "x-matador-created-at": "2026-11-15T19:02:37.435Z",
        "x-matador-importance": "should-investigate",
        "x-matador-attempts": 2,
        "x-matador-correlation-id": "corr-1",
        "x-matador-scheduled-for": "2026-11-15T19:02:38.435Z",
    }
