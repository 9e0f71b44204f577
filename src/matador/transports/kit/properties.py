"""Properties of messages: which are refused, and how they travel on brokers without native
properties.

Such a broker carries them as JSON in one header, so that reading a message without properties
costs one look-up and brokers that allow few headers keep room for others.
"""

from __future__ import annotations

from collections.abc import Set

import msgspec

from matador.errors import UnsupportedError
from matador.model.capabilities import PropertyName
from matador.model.message import Headers, Message, Properties

PROPERTIES_HEADER = "x-matador-properties"
ALL_PROPERTIES: frozenset[PropertyName] = frozenset(
    ("routing_key", "reply_to", "correlation_id", "type", "expires_at")
)


class _Carried(msgspec.Struct, omit_defaults=True, gc=False):
    """The properties as they are written: those that are set."""

    routing_key: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    type: str | None = None
    expires_at: float | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Properties).decode


def refused_properties(
    properties: Properties, carried: Set[PropertyName], transport: str
) -> UnsupportedError | None:
    """The error for a message with properties that the transport does not support, or None.

    Call it only where ``message.properties is not None``: events pay nothing for it.
    """
    refused = [
        name for name in sorted(ALL_PROPERTIES - carried) if getattr(properties, name) is not None
    ]
    if not refused:
        return None
    listed = ", ".join(refused)
    return UnsupportedError(
        f"{transport} does not carry the message property {listed}; leave it out"
    )


def headers_with_properties(message: Message) -> Headers:
    """The headers of a message, its properties among them."""
    if message.properties is None:
        return message.headers
    given = message.properties
    carried = _encode(
        _Carried(
            given.routing_key, given.reply_to, given.correlation_id, given.type, given.expires_at
        )
    ).decode()
    if carried == "{}":
        return message.headers
    return {**message.headers, PROPERTIES_HEADER: carried}


def split_properties(headers: Headers) -> tuple[Headers, Properties | None, str | None]:
    """The headers without the properties, the properties, and a description of what could not be
    read."""
    if PROPERTIES_HEADER not in headers:
        return headers, None, None
    rest = {} if len(headers) == 1 else dict(headers)
    text = rest.pop(PROPERTIES_HEADER, headers[PROPERTIES_HEADER])
    try:
        return rest, _decode(str(text)), None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return rest, None, f"the header {PROPERTIES_HEADER} cannot be read"
