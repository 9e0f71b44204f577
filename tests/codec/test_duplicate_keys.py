"""Keys that one object has twice."""

from __future__ import annotations

import pytest

from matador import JsonCodec
from matador.codec.json_text import find_duplicate_key
from matador.errors import DecodeError
from matador.transports.clock import SystemClock


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"a":1,"a":1}', "a"),
        (b'{"a":1,"b":2,"a":3}', "a"),
        (b'{"x":{"a":1,"a":2}}', "a"),
        (b'[{"a":1},{"b":1,"b":2}]', "b"),
        (b'{"":1,"":2}', ""),
        (b'{"a":1,"\\u0061":2}', "a"),
        ('{"é":1,"\\u00e9":2}'.encode(), "é"),
        (b'{"a":1 , "a":2}', "a"),
        # A number or an escape that is written longer makes up for the dropped key.
        (b'{"a":1e5,"a":1e5}', "a"),
        (b'{"k":1,"k":1,"n":[1E5,1E5,1E5,1E5]}', "k"),
        (b'{"a":0,"a":1e22}', "a"),
        # Numbers that only a payload's type can read.
        (b'{"a":' + b"9" * 5000 + b',"a":1}', "a"),
        (b'{"a":1e999,"a":1}', "a"),
    ],
)
def test_a_duplicate_is_found(body: bytes, key: str) -> None:
    assert find_duplicate_key(body) == key


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"b":2}',
        b'{"a":{"a":{"a":1}}}',
        b'[{"a":1},{"a":1}]',
        b'{"a":"\\"a\\":1,\\"a\\":2"}',
        b'{ "a" : 1e5 , "b" : "\\u0061" }',
        b'{"n":' + b"9" * 5000 + b"}",
        b"1",
        b"",
        b"{",
        b'{"a":1,"a":2',
        b"\xff",
        b'{"a":"\xff","a":1}',
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=lambda body: str(body)[:30],
)
def test_where_there_is_none_none_is_found(body: bytes) -> None:
    assert find_duplicate_key(body) is None


_ID = "0b6b6f3c-4a43-4b0f-8f43-6a1a4c7c1d10"
_TAIL = (
    b'Z","eventKey":"order.placed","targetSubscriber":"charge","attempts":1,'
    b'"importance":"should-investigate"}}'
)


def _body(time: bytes, data: bytes = b"{}", more: bytes = b"", tail: bytes = _TAIL) -> bytes:
    start = b'{"id":"%s",' % _ID.encode()
    return start + more + b'"data":' + data + b',"docket":{"createdAt":"' + time + tail


@pytest.mark.parametrize(
    "body",
    [
        _body(b"2026-11-15T19:02:37.435", more=b'"id":"x",'),
        _body(b"2026-11-15T19:02:37", more=b'"":0,"":1,'),
        _body(b"2026-11-15T19:02:37.4", more=b'"id":"x",'),
        _body(b"2026-11-15T19:02:37.435", b'{}, "data":{}'),
        _body(b'2026-11-15T19:02:37.435Z","createdAt":"2026-11-15T19:02:37.435'),
        _body(b"2026-11-15T19:02:37.435", tail=_TAIL.replace(b'Z",', b'Z","attempts":1,')),
    ],
    ids=["id", "empty", "short-time", "data", "time", "attempts"],
)
def test_a_body_with_a_key_twice_is_refused_after_many_without(body: bytes) -> None:
    codec = JsonCodec()
    for number in range(3):  # the codec remembers how dockets end
        plain = _body(b"2026-11-15T19:02:37.%03d" % number)
        assert codec.decode(plain, {}, SystemClock()).docket.attempts == 1
    with pytest.raises(DecodeError, match="duplicate key"):
        codec.decode(body, {}, SystemClock())
