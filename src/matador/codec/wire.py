"""The full envelope as it stands on the wire: ``{"id", "data", "before"?, "docket": {…}}``."""

from __future__ import annotations

import msgspec

from matador.codec.base import RawEnvelope
from matador.model.envelope import Docket, Envelope


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
