"""Looks at lists from outside. A position is the name of an element (``contents.element_of``).

A list has no index, so it is read whole, at one moment: only up to ``MOST_SEEN`` messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matador.errors import ConfigurationError, UnsupportedError
from matador.model.message import MessageState, StoredMessage
from matador.transports.redis.contents import element_of, message_of
from matador.transports.redis.entries import moment
from matador.transports.redis.link import Link
from matador.transports.redis.list_subscription import list_script
from matador.transports.redis.sending import no_such_queue

MOST_SEEN = 100_000
_LONGEST = 16  # digits of a name


async def browse(link: Link, queue: str, base: str, after: str | None) -> list[StoredMessage]:
    """All messages behind a position, in order of sending.

    Raises:
        QueueNotFoundError: there is no such queue.
        UnsupportedError: there are too many.
    """
    behind = -1 if after is None else _place(after)
    found: Any = await link.run(list_script("look"), [base], [MOST_SEEN])
    if found is None:
        raise no_such_queue(queue, link.where)
    if isinstance(found, int):
        raise UnsupportedError(
            f"{queue} has {found:,} messages: a list is read whole, and more than {MOST_SEEN:,} "
            f"are not; use streams (the default) where you want to look into long queues"
        )
    messages = [one for one in _messages(queue, *found) if int(one.position) > behind]
    messages.sort(key=lambda one: int(one.position))
    return messages


def places(positions: Sequence[str]) -> list[str]:
    """Positions as the script ``take`` wants them; those that are none are left out."""
    return [position for position in positions if _is_place(position)]


def _messages(
    queue: str, ready: Sequence[bytes], delayed: Sequence[bytes], held: Sequence[bytes]
) -> Iterator[StoredMessage]:
    for message in ready:
        yield _stored(queue, message, "ready")
    for message, due in zip(delayed[::2], delayed[1::2], strict=True):
        yield _stored(queue, message, "delayed", float(due))
    for message in held:
        yield _stored(queue, message, "in-flight")


def _stored(
    queue: str, message: bytes, state: MessageState, due: float | None = None
) -> StoredMessage:
    name, deliveries, content = element_of(message)
    found = message_of(queue, content)
    return StoredMessage(
        position=name,
        id=found.id,
        queue=queue,
        body=found.body,
        headers=found.headers,
        state=state,
        due_at=None if due is None else moment(due),
        delivery_count=deliveries + (state == "in-flight"),
        priority=found.priority,
        ordering_key=found.ordering_key,
    )


def _place(position: str) -> int:
    if not _is_place(position):
        raise ConfigurationError(f"{position!r} is not a position; use StoredMessage.position")
    return int(position)


def _is_place(position: str) -> bool:
    return position.isdecimal() and len(position) <= _LONGEST
