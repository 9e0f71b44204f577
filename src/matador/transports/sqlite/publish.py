"""Publishes messages to an exchange: every queue with a matching binding gets a copy, or none."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from matador.errors import MatadorError, QueueNotFoundError
from matador.model.message import Message
from matador.transports.sqlite.send import store
from matador.transports.sqlite.session import WriterSession


def publish(
    session: WriterSession, messages: Sequence[Message], exchange: str
) -> list[list[str] | MatadorError]:
    """Store copies in the transaction that looks up the bindings.

    Returns, for each message, the queues that got it, or why none did.
    """
    table, known = session.routes.table, session.queues
    outcomes: list[list[str] | MatadorError] = []
    copies: list[Message] = []
    for message in messages:
        key = message.properties.routing_key if message.properties is not None else None
        try:
            queues = [name for name in table.queues(exchange, key or "") if name in known]
        except QueueNotFoundError as error:
            outcomes.append(error)
            continue
        copies += [msgspec.structs.replace(message, queue=name) for name in queues]
        outcomes.append(queues)
    stored = iter(store(session, copies))
    for place, queues in enumerate(outcomes):
        if isinstance(queues, list):
            # The copies differ in their queue only: if one cannot be stored, none can.
            errors = [error for error in [next(stored) for _ in queues] if error is not None]
            if errors:
                outcomes[place] = errors[0]
    return outcomes
