"""The contents of a catalog: message types and their receivers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["event", "job", "command", "reply", "message"]
"""The kind of a message. ``message``: pub/sub and channels."""

Wire: TypeAlias = Literal["plain", "envelope", "headers"]
"""How the payload is carried: alone, in an envelope with its docket, or with headers beside it."""


@dataclass(frozen=True, slots=True)
class MessageType:
    """A type of message.

    Attributes:
        kind: the kind of message.
        key: its name among those of its kind: the key of an event, ``queue/name`` of a job.
        description: what it means.
        payload: the Python type of the payload. ``Any``: anything; None: there is no payload.
        aliases: other keys of an event.
        wire: how the payload is carried.
        content_type: how it is encoded.
        metadata: the Python type of an event's metadata; None: any mapping.
    """

    kind: Kind
    key: str
    description: str
    payload: Any
    aliases: tuple[str, ...] = ()
    wire: Wire = "plain"
    content_type: str = "application/json"
    metadata: Any = None


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver of a type of message, and its queue.

    Attributes:
        name: the name of the subscriber or the function.
        description: what it does with the message.
        message: the type of the message.
        address: the name of the queue, on the broker.
        elsewhere: its code is in another service.
        reply: the type of the reply.
        details: relevant options, by name.
    """

    name: str
    description: str
    message: MessageType
    address: str
    elsewhere: bool = False
    reply: MessageType | None = None
    details: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All types of messages of a program, and their receivers.

    Example:
        >>> placed = MessageType("event", "order.placed", "An order.", OrderPlaced)
        >>> charge = Receiver("charge", "Charge the card.", placed, "shop.billing")
        >>> Catalogue("shop", "1.0", (placed,), (charge,))
    """

    title: str
    version: str
    messages: tuple[MessageType, ...]
    receivers: tuple[Receiver, ...]
