"""An envelope that is sent without options, in the parts that differ from message to message."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from matador.model.envelope import Docket, Envelope

TRACEPARENT = "traceparent"
"""The metadata key of a trace, see W3C Trace Context."""


class Plain(msgspec.Struct, frozen=True, gc=False):
    """The parts of an envelope sent without options that differ from message to message.

    ``json`` is the payload as it was sent, if it was sent as JSON.
    """

    id: str
    payload: Any
    docket: Docket
    created_at: datetime
    traceparent: str | None = None
    json: msgspec.Raw | None = None

    @property
    def envelope(self) -> Envelope[Any]:
        """The envelope."""
        docket = msgspec.structs.replace(self.docket, created_at=self.created_at)
        if self.traceparent is not None:
            docket = msgspec.structs.replace(docket, metadata={TRACEPARENT: self.traceparent})
        return Envelope(self.id, self.payload, docket)
