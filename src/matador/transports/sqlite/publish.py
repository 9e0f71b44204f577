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
    found: dict[str, list[str] | MatadorError] = {}  # by key: nearly all have the same
    outcomes: list[list[str] | MatadorError] = []
    copies: list[Message] = []
    for message in messages:
        key = (message.properties.routing_key if message.properties is not None else None) or ""
        queues = found.get(key)
        if queues is None:
            try:
                queues = [name for name in table.queues(exchange, key) if name in known]
            except QueueNotFoundError as error:
                queues = error
            found[key] = queues
        if isinstance(queues, list):
            for name in queues:
                copies.append(msgspec.structs.replace(message, queue=name))  # noqa: PERF401 - nested
        outcomes.append(queues)
    results = store(session, copies)
    if not any(results):
        return outcomes
    stored = iter(results)
    for place, queues in enumerate(outcomes):
        if isinstance(queues, list):
            # The copies differ in their queue only: if one cannot be stored, none can.
            errors = [error for error in [next(stored) for _ in queues] if error is not None]
            if errors:
                outcomes[place] = errors[0]
    return outcomes
