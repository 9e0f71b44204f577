"""The full envelope on the wire, ``{"id", "data", "before"?, "docket": {…}}``, and lenient reading.

An invalid optional field or header never makes a message unreadable.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, get_args

import msgspec

from matador.codec.base import RawEnvelope
from matador.codec.times import from_wire
from matador.errors import DecodeError
from matador.model.envelope import MOST_ATTEMPTS, Docket, Envelope, Importance
from matador.model.message import Headers
from matador.model.text import lone_surrogate

log = logging.getLogger("matador.codec")

_DEFAULT_IMPORTANCE: Importance = "should-investigate"
_IMPORTANCES: dict[str, Importance] = {choice: choice for choice in get_args(Importance)}
_MOST_WARNINGS = 100
_warned: set[str] = set()  # values from other programs; each is logged once per process
_TEXTS = ("eventDescription", "originalQueue", "firstError", "lastError", "correlationId")


class EnvelopeWithBefore(msgspec.Struct, frozen=True):
    """An envelope with ``before``, whose payloads stay encoded.

    ``RawEnvelope`` cannot be decoded in this case: msgspec does not support ``Raw | None``.
    """

    id: str
    data: msgspec.Raw
    docket: Docket
    before: msgspec.Raw = msgspec.Raw(b"")

    def as_envelope(self, nothing: bytes) -> RawEnvelope:
        """The envelope. ``nothing`` is the null of the format."""
        return Envelope(self.id, self.data, self.docket, none_if(self.before, nothing))


class LooseEnvelope(msgspec.Struct, frozen=True):
    """An envelope whose docket has invalid optional fields."""

    id: str
    data: msgspec.Raw
    docket: dict[str, Any]
    before: msgspec.Raw = msgspec.Raw(b"")

    def as_envelope(self, nothing: bytes) -> RawEnvelope:
        """The envelope, without the invalid optional fields.

        Raises:
            ValueError: a required field is missing or invalid.
        """
        fields = self.docket
        for name in _TEXTS:
            fields[name] = readable_text(fields.get(name))
        fields["scheduledFor"] = readable_time(fields.get("scheduledFor"))
        fields["metadata"] = {} if fields.get("metadata") is None else fields["metadata"]
        if "importance" in fields:
            fields["importance"] = importance_of(fields["importance"])
        docket = msgspec.convert({"docket": fields}, _WithDocket).docket
        return Envelope(self.id, self.data, docket, none_if(self.before, nothing))


class _WithDocket(msgspec.Struct, frozen=True):
    docket: Docket  # so that errors name the fields as elsewhere: $.docket.attempts


def none_if(raw: msgspec.Raw | None, nothing: bytes) -> msgspec.Raw | None:
    """``raw``, or None if it is missing or the null of the format."""
    if raw is None or len(raw) == 0 or (len(raw) == len(nothing) and bytes(raw) == nothing):
        return None
    return raw


def header_text(headers: Headers, name: str) -> str:
    """A required header, as text.

    Raises:
        DecodeError: it is missing, or neither text nor an integer.
    """
    value = headers.get(name)
    if value is None or value == "":
        raise DecodeError(f"the header {name} is missing")
    text = readable_text(value)
    if text is None:
        raise DecodeError(f"the header {name} is not text (its type is {type(value).__name__})")
    return text


def readable_text(value: object) -> str | None:
    """An optional text; integers are converted. Anything else is treated as missing."""
    if isinstance(value, str):
        return value if value.isascii() or lone_surrogate(value) is None else None
    if type(value) is int and abs(value) <= MOST_ATTEMPTS:
        return str(value)
    return None


def readable_time(value: object) -> datetime | None:
    """An optional time. Anything else is treated as missing."""
    if isinstance(value, datetime):  # MessagePack has times, in UTC
        return value
    try:
        return from_wire(value) if isinstance(value, str) else None
    except ValueError:
        return None


def importance_of(value: object) -> Importance:
    """An importance; the default, with a warning for each value, if it is unknown."""
    if isinstance(value, str) and (known := _IMPORTANCES.get(value)) is not None:
        return known
    text = ascii(value)[:40] if isinstance(value, str | int) else type(value).__name__
    if text not in _warned and len(_warned) < _MOST_WARNINGS:
        _warned.add(text)
        log.warning("unknown importance %s: using %r", text, _DEFAULT_IMPORTANCE)
    return _DEFAULT_IMPORTANCE
