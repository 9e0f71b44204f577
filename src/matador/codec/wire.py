"""The full envelope as it stands on the wire: ``{"id", "data", "before"?, "docket": {…}}``."""

from __future__ import annotations

import msgspec

from matador.codec.base import RawEnvelope
from matador.errors import DecodeError
from matador.model.envelope import MOST_ATTEMPTS, Docket, Envelope
from matador.model.message import Headers


class EnvelopeWithBefore(msgspec.Struct, frozen=True):
    """What an envelope with a ``before`` is decoded as: the docket at once, payloads left alone.

    ``RawEnvelope`` itself cannot be: "raw or nothing" is not a type that msgspec reads.
    """

    id: str
    data: msgspec.Raw
    docket: Docket
    before: msgspec.Raw = msgspec.Raw(b"")

    def as_envelope(self, nothing: bytes) -> RawEnvelope:
        """The envelope; a ``before`` that is the format's null counts as none."""
        return Envelope(self.id, self.data, self.docket, none_if(self.before, nothing))


def none_if(raw: msgspec.Raw | None, nothing: bytes) -> msgspec.Raw | None:
    """``raw``, or None if there is none or it is the format's null."""
    if raw is None or len(raw) == 0 or (len(raw) == len(nothing) and bytes(raw) == nothing):
        return None
    return raw


def header_text(headers: Headers, name: str) -> str | None:
    """A header as text, or None if it is not there.

    Raises:
        DecodeError: it is neither text, nor a number that could be meant as text.
    """
    value = headers.get(name)
    if value is None or (isinstance(value, str) and (value.isascii() or _is_utf8(value))):
        return value
    if type(value) is int and abs(value) <= MOST_ATTEMPTS:
        return str(value)
    raise DecodeError(f"the header {name} is not text (its type is {type(value).__name__})")


def _is_utf8(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:  # half of a character: it could never be written again
        return False
