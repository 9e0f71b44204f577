"""Adds jobs, many at once.

BullMQ ignores a job whose id is taken, and does not say so. A message is sent again under its id
on purpose (a redrive), so it is looked in the same transaction whether the id was free, and what
was ignored is added under another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from secrets import token_hex

from matador.errors import (
    MatadorError,
    MessageTooLargeError,
    UnstorableError,
    UnsupportedError,
)
from matador.model.message import Message
from matador.transports.bullmq import wire
from matador.transports.bullmq.link import Link, Session
from matador.transports.bullmq.names import bull_priority, job_id
from matador.transports.bullmq.queues import Place, Queues
from matador.transports.bullmq.scripts import Call

_MOST_EACH = 100
_MOST_BYTES = 1 << 20
_LONGEST = 2**53  # ms: what a worker on Node can count


async def store(
    link: Link, session: Session, queues: Queues, messages: Sequence[Message]
) -> list[MatadorError | None]:
    """Add a job for each message; for each: None, or why it is not stored."""
    outcomes: list[MatadorError | None] = [None] * len(messages)
    waiting: list[tuple[int, Place]] = []
    size = 0
    for index, message in enumerate(messages):
        place = await queues.find_or_none(session, message.queue)
        if isinstance(place, MatadorError):
            outcomes[index] = place
            continue
        if place.kind is not None:
            outcomes[index] = UnsupportedError(
                f"{message.queue!r} are failed jobs of {place.queue!r}: a message gets there by "
                f"failing, and cannot be sent to them"
            )
            continue
        waiting.append((index, place))
        size += len(message.body)
        if len(waiting) >= _MOST_EACH or size >= _MOST_BYTES:
            await _store(link, session, messages, waiting, outcomes)
            waiting, size = [], 0
    if waiting:
        await _store(link, session, messages, waiting, outcomes)
    return outcomes


async def _store(
    link: Link,
    session: Session,
    messages: Sequence[Message],
    places: Sequence[tuple[int, Place]],
    outcomes: list[MatadorError | None],
) -> None:
    calls: list[Call | tuple[str, str | bytes]] = []
    sent: list[tuple[int, Place]] = []
    for index, place in places:
        message = messages[index]
        id_ = job_id(message.id)
        try:
            call = add(session, place, message, id_)
        except UNWRITABLE as error:
            outcomes[index] = unwritable(message.id, error)
            continue
        scripts = session.scripts(place.queue)
        calls += (("EXISTS", scripts.job_key(id_) if id_ else scripts.key("") + "-"), call)
        sent.append((index, place))
    if not calls:
        return
    try:
        answers = await link.run_together(session, calls)
    except MatadorError as error:
        for index, _ in sent:
            outcomes[index] = error
        return
    ignored: list[tuple[int, Place]] = []
    for (index, place), taken, answer in zip(sent, answers[::2], answers[1::2], strict=True):
        if isinstance(answer, MatadorError):
            outcomes[index] = answer
        elif taken == 1:
            ignored.append((index, place))
    if ignored:
        again = [
            add(session, place, messages[index], other_id(messages[index]))
            for index, place in ignored
        ]
        try:
            answers = await link.run(session, again)
        except MatadorError as error:
            for index, _ in ignored:
                outcomes[index] = error
            return
        for (index, _), answer in zip(ignored, answers, strict=True):
            outcomes[index] = answer if isinstance(answer, MatadorError) else None


def add(session: Session, place: Place, message: Message, id_: str) -> Call:
    """The call that adds a job for a message.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: it cannot be written.
        MessageTooLargeError: the server does not take as much.
    """
    return session.scripts(place.queue).add(
        id_,
        str(message.headers.get(wire.NAME_HEADER) or wire.DEFAULT_NAME),
        data_of(session, message),
        session.now(),
        delay=milliseconds(message.delay),
        priority=bull_priority(message.priority) if place.priorities else 0,
    )


def data_of(session: Session, message: Message) -> str:
    """The data of the job for a message. Raises as ``add`` does."""
    data = wire.written(message)
    # A character may be four bytes; the server cuts the connection of who sends too much.
    if len(data) * 4 > session.largest and (size := len(data.encode())) > session.largest:
        raise MessageTooLargeError(size, session.largest, what="job")
    return data


def other_id(message: Message) -> str:
    """An id for a job whose message's id is taken."""
    return f"{message.id}~{token_hex(6)}"


def milliseconds(delay: float) -> int:
    """A delay in whole milliseconds, never shorter.

    Raises:
        ValueError, OverflowError: it is longer than the server can reckon with.
    """
    found = max(0, ceil(delay * 1000))
    if found > _LONGEST:
        raise OverflowError(f"a delay of {delay:g} s")
    return found


UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError, MessageTooLargeError)
"""What making a call raises for a message that can never be stored."""


def unwritable(id_: str, error: Exception) -> UnstorableError:
    """The error for a message that can never be stored: a header, its id, its delay, its size."""
    if isinstance(error, UnstorableError):
        return error
    made = UnstorableError(f"message {id_!r} cannot be written: {error}")
    made.__cause__ = error
    return made
