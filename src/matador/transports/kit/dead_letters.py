"""Converts a ``DeadLetter`` settlement to the message to store."""

from __future__ import annotations

from matador.model.message import REASON_HEADER, DeadLetter, Message
from matador.model.topology import dead_letter_name


def dead_letter_of(settlement: DeadLetter, original: Message) -> Message:
    """The message to store; ``original`` is the one that was delivered, if none is given.

    The message has no delay. A bare dead letter has only the body and the reason.
    """
    message = original if settlement.message is None else settlement.message
    queue = dead_letter_name(settlement.receipt.queue, settlement.kind)
    if settlement.bare:
        return Message(message.id, queue, message.body, {REASON_HEADER: settlement.reason})
    return Message(
        message.id,
        queue,
        message.body,
        {**message.headers, REASON_HEADER: settlement.reason},
        0.0,
        message.priority,
        message.ordering_key,
        message.properties,
    )
