"""What a handler of a subscriber knows of a message beside its data."""

from __future__ import annotations

import msgspec

from matador.messages.context import Acknowledgement, Arrival, DeliveryContext


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message on its way to one handler; a context is made of it if the handler takes one."""

    arrival: Arrival
    exchange: str
    acknowledgement: Acknowledgement | None = None

    @property
    def context(self) -> MessageContext:
        """The context."""
        return MessageContext(self)


class MessageContext(DeliveryContext):
    """What a handler knows of a message beside its data. See ``DeliveryContext``, too.

    Attributes:
        routing_key: the key that the message was published with.
        exchange: the exchange of the subscriber.

    Example:
        >>> @sub.on("orders.*")
        ... async def orders(order: dict, ctx: MessageContext) -> None:
        ...     print(ctx.routing_key, ctx.message_id, ctx.attempts)
    """

    __slots__ = ("exchange", "routing_key")

    def __init__(self, received: Received) -> None:
        super().__init__(received.arrival, received.acknowledgement)
        self.routing_key = routing_key_of(received.arrival)
        self.exchange = received.exchange


def routing_key_of(arrival: Arrival) -> str:
    """The key that a message was published with; empty if it has none."""
    properties = arrival.delivery.properties
    return "" if properties is None else properties.routing_key or ""
