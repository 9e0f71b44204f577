"""Stores messages: one script call a queue and batch, whatever their number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from matador.errors import (
    MatadorError,
    MessageTooLargeError,
    QueueNotFoundError,
    TransportError,
    UnstorableError,
)
from matador.model.message import Message
from matador.transports.redis.answers import error_of
from matador.transports.redis.channel import Argument, Channel
from matador.transports.redis.entries import fields_of, is_plain, milliseconds
from matador.transports.redis.link import Link
from matador.transports.redis.scripts import Script, script

Outcomes: TypeAlias = list[MatadorError | None]

# One script holds up everybody else on the server: not for longer than a few milliseconds.
_MOST = 500
_MOST_BYTES = 1 << 20
LARGEST = 500 << 20
"""Bytes of a body. A server drops the connection of whoever sends more than 512 MB in one piece."""

UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)
"""What it means when a message cannot be put into bytes."""


class Parcel(NamedTuple):
    """Messages of one queue that are stored by one call."""

    queue: str
    places: list[int]
    arguments: list[Argument]
    plain: bool


def no_such_queue(queue: str, where: str) -> QueueNotFoundError:
    """The error for a queue that nobody has declared."""
    return QueueNotFoundError(
        f"there is no queue {queue!r} in {where}; apply the topology that has it"
    )


async def store(link: Link, key_of: Callable[[str], str], messages: Sequence[Message]) -> Outcomes:
    """Store messages, those of one queue in order; for each None, or why it is not stored.

    Raises:
        NotConnectedError: nothing was stored.
    """
    channel = await link.channel()
    outcomes: Outcomes = [None] * len(messages)

    async def send(parcel: Parcel) -> None:
        name = script("send" if parcel.plain else "send_full")
        await deliver(link, channel, name, [key_of(parcel.queue)], parcel, outcomes)

    made = list(parcels(messages, outcomes))
    if len(made) == 1:
        await send(made[0])
    else:
        # Side by side, and in order: they travel on one connection.
        await asyncio.gather(*map(send, made))
    return outcomes


async def deliver(
    link: Link,
    channel: Channel,
    name: Script,
    keys: Sequence[str],
    parcel: Parcel,
    outcomes: Outcomes,
    front: Sequence[Argument] = (),
) -> None:
    """Have a script store a parcel, and write down the outcome of each of its messages."""
    try:
        answer = await link.run_on(channel, name, keys, [*front, *parcel.arguments])
    except TransportError as error:
        note(outcomes, parcel.places, error)
        return
    note_answer(outcomes, parcel.places, answer, parcel.queue, link, channel)


def note_answer(
    outcomes: Outcomes,
    places: Sequence[int],
    answer: Any,
    queue: str,
    link: Link,
    channel: Channel,
) -> None:
    """Write down what a script that stores has answered."""
    if answer == 0:
        note(outcomes, places, no_such_queue(queue, link.where))
    elif answer != 1:
        for index, text in answer:
            outcomes[places[index]] = refusal(text, link, channel)


def note(outcomes: Outcomes, places: Sequence[int], error: MatadorError) -> None:
    """Write down one error for several messages."""
    for place in places:
        outcomes[place] = error


def refusal(text: bytes, link: Link, channel: Channel) -> MatadorError:
    """The error for what a script says about one message of many."""
    return link.translated(channel, error_of(text.decode(errors="replace")))


def parcels(
    messages: Sequence[Message], outcomes: Outcomes, *, plain: bool = True
) -> Iterator[Parcel]:
    """Messages by queue, in their order; those that cannot be written get their outcome here.

    ``plain``: the short form may be used where nothing has more than an id and a body.
    """
    queues: dict[str, list[int]] = {}
    for place, message in enumerate(messages):
        queues.setdefault(message.queue, []).append(place)
    for queue, places in queues.items():
        short = plain and all(is_plain(messages[place]) for place in places)
        parcel, size = Parcel(queue, [], [], short), 0
        for place in places:
            message = messages[place]
            arguments = parcel.arguments
            try:
                if len(message.body) > LARGEST:
                    raise MessageTooLargeError(len(message.body), LARGEST)
                if short:
                    arguments.append(message.id.encode())
                    arguments.append(message.body)
                else:
                    arguments.extend(written(message))
            except (*UNWRITABLE, MessageTooLargeError) as error:
                outcomes[place] = unwritable(message, error)
                continue
            parcel.places.append(place)
            size += len(message.body)
            if len(parcel.places) >= _MOST or size >= _MOST_BYTES:
                yield parcel
                parcel, size = Parcel(queue, [], [], short), 0
        if parcel.places:
            yield parcel


def written(message: Message) -> list[Argument]:
    """A message as the scripts want it: delay, priority, number of fields, fields.

    Raises:
        TypeError, ValueError, OverflowError: a part of it cannot be stored.
        MessageTooLargeError: it is too large for any server.
    """
    check_size(message)
    fields = fields_of(message)
    priority: Argument = "" if message.priority is None else message.priority
    return [milliseconds(message.delay), priority, len(fields), *fields]


def check_size(message: Message) -> None:
    """Can a server take it?

    Raises:
        MessageTooLargeError: no.
    """
    if len(message.body) > LARGEST:
        raise MessageTooLargeError(len(message.body), LARGEST)


def unwritable(message: Message | None, error: Exception) -> UnstorableError:
    """The error for a message, or a reason without one, that cannot be put into bytes."""
    if isinstance(error, UnstorableError):
        return error
    what = "the dead letter" if message is None else f"message {message.id!r}"
    made = UnstorableError(f"{what} cannot be stored: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
