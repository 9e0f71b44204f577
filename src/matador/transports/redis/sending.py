"""Stores messages: one script call a queue and batch, whatever their number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from matador.errors import MatadorError, QueueNotFoundError, SendFailedError, TransportError
from matador.model.message import Message
from matador.transports.redis.channel import Argument, Channel
from matador.transports.redis.entries import fields_of, is_plain, milliseconds
from matador.transports.redis.link import Link
from matador.transports.redis.scripts import Script, script

Outcomes: TypeAlias = list[MatadorError | None]

# One script holds up everybody else on the server: not for longer than a few milliseconds.
_MOST = 500
_MOST_BYTES = 1 << 20


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
        keys = [key_of(parcel.queue)]
        note(outcomes, parcel, await deliver(link, channel, name, keys, parcel))

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
    front: Sequence[Argument] = (),
) -> MatadorError | None:
    """Have a script store a parcel; None, or why it did not."""
    try:
        stored = await link.run_on(channel, name, keys, [*front, *parcel.arguments])
    except TransportError as error:
        return error
    return None if stored else no_such_queue(parcel.queue, link.where)


def note(outcomes: Outcomes, parcel: Parcel, error: MatadorError | None) -> None:
    """Write down the outcome of all messages of a parcel."""
    if error is not None:
        for place in parcel.places:
            outcomes[place] = error


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
            if short:
                parcel.arguments.append(message.id)
                parcel.arguments.append(message.body)
            else:
                try:
                    parcel.arguments.extend(written(message))
                except (TypeError, ValueError, OverflowError) as error:
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
        TypeError: the headers cannot be stored.
    """
    fields = fields_of(message)
    priority: Argument = "" if message.priority is None else message.priority
    return [milliseconds(message.delay), priority, len(fields), *fields]


def unwritable(message: Message, error: Exception) -> SendFailedError:
    """The error for a message that cannot be put into bytes."""
    text = f"message {message.id!r} cannot be stored: {type(error).__name__}: {error}"
    return SendFailedError(text, queue=message.queue, cause=error)
