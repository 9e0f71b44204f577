"""The full envelope as it stands on the wire: ``{"id", "data", "before"?, "docket": {…}}``."""

from __future__ import annotations

from typing import Any

import msgspec

from matador.codec.base import RawEnvelope
from matador.model.envelope import Docket


class WireDocket(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A docket with its times already written: what is encoded."""

    event_key: str
    target_subscriber: str
    attempts: int
    created_at: msgspec.Raw
    importance: str
    event_description: str | None = None
    original_queue: str | None = None
    scheduled_for: msgspec.Raw | None = None
    first_error: str | None = None
    last_error: str | None = None
    correlation_id: str | None = None
    metadata: dict[str, Any] | None = None


class WireEnvelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is encoded."""

    id: str
    data: msgspec.Raw
    docket: WireDocket
    before: msgspec.Raw | None = None


class ReadEnvelope(msgspec.Struct, frozen=True):
    """What is decoded: the docket at once, the payload left alone."""

    id: str
    data: msgspec.Raw
    docket: Docket
    before: msgspec.Raw = msgspec.Raw(b"")

    def as_envelope(self, nothing: bytes) -> RawEnvelope:
        """The envelope; a ``before`` that is the format's null counts as none."""
        before = self.before
        if before:
            content = bytes(before)
            return RawEnvelope(
                id=self.id,
                data=self.data,
                docket=self.docket,
                before=None if content == nothing else before,
            )
        return RawEnvelope(id=self.id, data=self.data, docket=self.docket)
