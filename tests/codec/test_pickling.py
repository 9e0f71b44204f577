"""Codecs travel to other processes, such as the executors of Spark."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest
from tests.support.envelopes import STAMP, make_raw

from matador import event
from matador.codec import Codec, CompressedCodec, HeaderCodec, JsonCodec, MessagePackCodec
from matador.errors import InvalidEventError
from matador.model.event import event_type_of


@event("parcel.sent", description="A parcel left.")
@dataclass(frozen=True)
class ParcelSent:
    number: int


class OwnCodec(JsonCodec):
    """One of a user's own."""


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("kind", [JsonCodec, HeaderCodec, MessagePackCodec, OwnCodec])
def test_the_copy_does_the_same(
    kind: type[JsonCodec | HeaderCodec | MessagePackCodec], check: bool
) -> None:
    codec = kind(check_sends=check)
    parcel = event_type_of(ParcelSent)
    wrong = ParcelSent("seven")  # pyright: ignore[reportArgumentType] - wrong on purpose
    assert codec.encode_payload(parcel, ParcelSent(1))  # something is prepared by now
    copy = pickle.loads(pickle.dumps(codec))
    assert type(copy) is kind
    encoded = copy.encode(make_raw())
    assert encoded == codec.encode(make_raw())
    assert copy.decode(encoded.body, encoded.headers, STAMP) == make_raw()
    if check:
        with pytest.raises(InvalidEventError):
            copy.encode_payload(parcel, wrong)
    else:
        assert copy.encode_payload(parcel, wrong)


def test_the_copy_compresses_within_the_same_limits() -> None:
    long = make_raw(b'"' + b"x" * 5000 + b'"')
    codec: Codec = CompressedCodec(MessagePackCodec(), "zstd", threshold=100, max_size=9000)
    copy = pickle.loads(pickle.dumps(codec))
    assert repr(copy) == repr(codec)
    assert copy.encode(long) == codec.encode(long)
    assert copy.encode(make_raw()) == codec.encode(make_raw())
