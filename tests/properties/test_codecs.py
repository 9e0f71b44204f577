"""What goes through a codec comes back; what is no envelope is a DecodeError and nothing else."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.fuzz.corpus import CORPUS, Sample
from tests.fuzz.mutations import mutate
from tests.fuzz.targets import try_codec
from tests.properties.strategies import Anything, dockets, json_objects, json_values, texts
from tests.support.envelopes import CODECS, STAMP, there_and_back, wire_headers

from matador.codec import Codec, Preparing
from matador.codec.compressed import inflate
from matador.errors import DecodeError, InvalidEventError
from matador.model.envelope import Docket, Envelope
from matador.model.event import event_type_of

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
EVENT = event_type_of(Anything)
PLAIN = Docket(
    event_key="anything",
    target_subscriber="someone",
    created_at=datetime(2026, 11, 15, tzinfo=UTC),
    attempts=1,
    importance="can-ignore",
)


@each_codec
@given(
    id=texts,
    docket=dockets,
    content=json_values,
    before=st.none() | json_values.map(lambda content: Anything(content)),
)
def test_what_is_sent_is_what_arrives(
    codec: Codec, id: str, docket: Docket, content: Any, before: Anything | None
) -> None:
    sent = Anything(content)
    data = codec.encode_payload(EVENT, sent)
    raw_before = None if before is None else codec.encode_payload(EVENT, before)
    arrived = there_and_back(codec, Envelope(id, data, docket, raw_before))
    assert arrived.id == id
    assert arrived.docket == docket
    assert codec.decode_payload(EVENT, arrived.data) == sent
    if before is None:
        assert arrived.before is None
    else:
        assert arrived.before is not None
        assert codec.decode_payload(EVENT, arrived.before) == before


@pytest.mark.parametrize("name", ["json", "headers"])
@given(
    id=texts,
    docket=dockets,
    content=json_values,
    before=st.none() | json_values,
    created_at=st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=2))])),
)
@example(
    id='"', docket=PLAIN, content=None, before=None, created_at=datetime(2026, 1, 1, tzinfo=UTC)
)
def test_a_stencil_makes_the_same_bytes_and_headers(
    name: str, id: str, docket: Docket, content: Any, before: Any, created_at: datetime
) -> None:
    codec = CODECS[name]
    assert isinstance(codec, Preparing)
    data = codec.encode_payload(EVENT, Anything(content))
    earlier = None if before is None else codec.encode_payload(EVENT, Anything(before))
    whole = msgspec.structs.replace(docket, created_at=created_at)
    stencil = codec.prepare(msgspec.structs.replace(docket, correlation_id=None, metadata={}))
    made = stencil(id, data, created_at, earlier, docket.correlation_id, docket.metadata)
    assert made == codec.encode(Envelope(id, data, whole, earlier))


@each_codec
@given(body=st.binary(max_size=200))
@example(body=b"")
@example(body=b"\x1f\x8b")
@example(body=b"\x28\xb5\x2f\xfd")
def test_any_bytes_are_an_envelope_or_a_decode_error(codec: Codec, body: bytes) -> None:
    with suppress(DecodeError):  # and nothing else
        codec.decode(body, wire_headers(), STAMP)


@pytest.mark.parametrize("name", ["json", "headers"])
@given(fields=json_objects)
def test_any_json_object_is_an_envelope_or_a_decode_error(
    name: str, fields: dict[str, Any]
) -> None:
    with suppress(DecodeError):
        CODECS[name].decode(msgspec.json.encode(fields), wire_headers(), STAMP)


headers = st.dictionaries(
    st.sampled_from([*wire_headers(), "x-event-id", "x-matador-scheduled-for"]),
    texts | st.integers() | st.none() | st.booleans() | st.binary(),
)


@given(headers=headers)
def test_any_headers_are_a_docket_or_a_decode_error(headers: dict[str, Any]) -> None:
    for sample in CORPUS:
        if sample.codec == "headers":
            wrong = Sample("headers", sample.body, {**sample.headers, **headers})
            try_codec(wrong)


@given(seed=st.integers(0, 2**32), number=st.integers(0, len(CORPUS) - 1))
def test_a_mutated_message_is_an_envelope_or_a_decode_error(seed: int, number: int) -> None:
    mutated, _ = mutate(CORPUS[number], random.Random(seed))
    try_codec(mutated)


@given(st.recursive(st.floats() | st.integers(), lambda inner: st.lists(inner, max_size=4)))
def test_a_number_arrives_as_it_is_or_is_refused(content: Any) -> None:
    codec = CODECS["json"]
    finite = all(math.isfinite(number) for number in flat(content))
    try:
        raw = codec.encode_payload(EVENT, Anything(content))
    except InvalidEventError:
        assert not finite
    else:
        assert finite
        assert codec.decode_payload(EVENT, raw) == Anything(content)


def flat(content: Any) -> list[float]:
    if isinstance(content, list):
        return [number for inner in content for number in flat(inner)]  # pyright: ignore[reportUnknownVariableType]
    return [content]


@given(st.binary(max_size=100), st.integers(1, 50))
def test_nothing_inflates_beyond_the_limit(body: bytes, limit: int) -> None:
    for start in (b"", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"):
        try:
            plain = inflate(start + body, limit)
        except DecodeError:
            continue
        assert plain == start + body or len(plain) <= limit
