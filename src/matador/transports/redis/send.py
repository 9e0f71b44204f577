"""Stores messages with one script call per queue and batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from matador.errors import MatadorError, MessageTooLargeError, TransportError
from matador.model.message import Message, Once
from matador.transports.kit.errors import queue_not_found
from matador.transports.redis.client import RedisClient, Script, script
from matador.transports.redis.wire import content_of, fields_of, is_plain, milliseconds
from matador.transports.redis_client.connection import Argument, PipelinedConnection, error_of
from matador.transports.redis_client.errors import UNWRITABLE, unstorable

Outcomes: TypeAlias = list[MatadorError | None]

# A script blocks all other clients of the server, so it may only take a few milliseconds.
_MOST = 500
_MOST_BYTES = 1 << 20
LARGEST = 500 << 20  # bytes; a server drops a connection that sends more than 512 MB
_MOST_REMEMBERED = 10_000


class StoreForm(NamedTuple):
    """The message format of a script. Without ``write``: id and body in turn."""

    script: Script
    write: Callable[[Message], Sequence[Argument]] | None = None
    front: Sequence[Argument] = ()


FormOf: TypeAlias = Callable[[Sequence[Message]], StoreForm]


def stream_form(messages: Sequence[Message]) -> StoreForm:
    """The shortest form in which a stream can store these messages."""
    if all(map(is_plain, messages)):
        return StoreForm(script("send"))
    return StoreForm(script("send_full"), written, ("", ""))


def list_form(messages: Sequence[Message]) -> StoreForm:
    """The form for lists."""

    def push(message: Message) -> list[Argument]:
        return [milliseconds(message.delay), content_of(message)]

    return StoreForm(script("push", "list"), push)


async def store(
    client: RedisClient, key_of: Callable[[str], str], messages: Sequence[Message], form_of: FormOf
) -> Outcomes:
    """Store messages, those of one queue in order; for each, None or the error.

    Raises:
        NotConnectedError: nothing was stored.
    """
    connection = await client.connection()
    outcomes: Outcomes = [None] * len(messages)
    queues: dict[str, list[int]] = {}
    for place, message in enumerate(messages):
        queues.setdefault(message.queue, []).append(place)

    async def send(queue: str, form: StoreForm, places: Sequence[int]) -> None:
        sent, arguments = _arguments(messages, places, form, outcomes)
        if not sent:
            return
        try:
            reply: Any = await client.run_on(connection, form.script, [key_of(queue)], arguments)
        except TransportError as error:
            note(outcomes, sent, error)
            return
        if reply is None:
            note(outcomes, sent, queue_not_found(queue, client.where))
        elif reply != 1:
            for index, text in reply:
                outcomes[sent[index]] = refusal(text, client, connection)

    steps: list[Coroutine[Any, Any, None]] = []
    for queue, places in queues.items():
        form = form_of([messages[place] for place in places])
        steps += [send(queue, form, some) for some in cut(places, messages, _MOST)]
    await run_together(steps)
    return outcomes


async def run_together(steps: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run calls concurrently. One connection carries them, so they stay in order."""
    if len(steps) == 1:
        await steps[0]
    else:
        await asyncio.gather(*steps)


def cut(
    places: Sequence[int],
    messages: Sequence[Message] | Mapping[int, Message | None],
    most: int,
) -> Iterator[list[int]]:
    """The indexes of the messages that fit into one call."""
    some: list[int] = []
    size = 0
    for place in places:
        message = messages[place]
        size += 0 if message is None else len(message.body)
        some.append(place)
        if len(some) >= most or size >= _MOST_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _arguments(
    messages: Sequence[Message], places: Sequence[int], form: StoreForm, outcomes: Outcomes
) -> tuple[list[int], list[Argument]]:
    """The arguments for a script and the indexes of their messages. Sets the outcome of messages
    that cannot be encoded."""
    sent: list[int] = []
    arguments = [*form.front]
    for place in places:
        message = messages[place]
        try:
            if len(message.body) > LARGEST:
                check_size(message)
            if form.write is None:
                arguments += (message.id.encode(), message.body)
            else:
                arguments += form.write(message)
        except UNWRITABLE as error:
            outcomes[place] = unstorable(f"message {message.id!r}", error)
        else:
            sent.append(place)
    return sent, arguments


def note(outcomes: Outcomes, places: Sequence[int], error: MatadorError) -> None:
    """Set one error for several messages."""
    for place in places:
        outcomes[place] = error


def refusal(text: bytes, client: RedisClient, connection: PipelinedConnection) -> MatadorError:
    """The error for a script's reply about one message of a batch."""
    return client.translated(connection, error_of(text.decode(errors="replace")))


def written(message: Message, fields: Sequence[Argument] | None = None) -> list[Argument]:
    """A message for the scripts of streams: delay, priority, number of fields, fields.

    ``fields``: the result of ``fields_of``, if known.

    Raises:
        TypeError, ValueError, OverflowError: a part of it cannot be stored.
    """
    fields = fields or fields_of(message)
    priority: Argument = "" if message.priority is None else int(message.priority)
    return [milliseconds(message.delay), priority, len(fields), *fields]


def check_size(message: Message) -> None:
    """Raise ``MessageTooLargeError`` if no server accepts the message."""
    if len(message.body) > LARGEST:
        raise MessageTooLargeError(len(message.body), LARGEST)


class OnceSender:
    """Stores messages once, however often they are sent: the script that stores them records the
    ids.

    Ids are recorded beside the queue, in its slot. The last sealed batch is recorded for the scope
    and for every queue it uses. A seal is set for the scope first and for its queues after that. A
    sender registers its queue before it stores, so a late sender finds the seal in one of the two
    places.
    """

    def __init__(self, client: RedisClient, prefix: str, key_of: Callable[[str], str]) -> None:
        self._client = client
        self._prefix = prefix
        self._key_of = key_of
        self._enrolled: set[tuple[Once, str]] = set()

    async def store(self, messages: Sequence[Message], once: Once) -> Outcomes:
        """Store the messages whose ids are not recorded under ``once``; for each, None or the
        error."""
        for queue in dict.fromkeys(message.queue for message in messages):
            if await self._enrol(once, queue) >= once.batch:
                return [None] * len(messages)
        form = StoreForm(script("send_full"), written, (once.scope, once.batch))
        return await store(self._client, self._key_of, messages, lambda _: form)

    async def seal(self, once: Once) -> None:
        """Close a batch of a scope and all batches before it."""
        seal, arguments = script("seal", None), (once.batch, once.scope)
        queues: list[bytes] = await self._client.run(seal, self._keys(once), arguments)
        for queue in queues:
            key = self._key_of(queue.decode(errors="replace"))
            await self._client.run(seal, [key], arguments)

    def _keys(self, once: Once) -> tuple[str, str]:
        """The keys of a scope: its last sealed batch, and the queues it uses."""
        key = f"{self._prefix}:{{once:{once.scope}}}"
        return key, f"{key}:queues"

    async def _enrol(self, once: Once, queue: str) -> int:
        """Register the queue with the scope; return the last sealed batch of the scope."""
        if (once, queue) in self._enrolled:
            return -1
        sealed, queues = self._keys(once)
        # In this order, because ``seal`` reads the queues after it has sealed the scope.
        await self._client.call("SADD", queues, queue)
        found = await self._client.call("GET", sealed)
        if len(self._enrolled) >= _MOST_REMEMBERED:
            self._enrolled.clear()
        self._enrolled.add((once, queue))
        return int(found) if found is not None and found.isdigit() else -1
