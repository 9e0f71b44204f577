"""Stores messages once, however often they are sent: ids are noted by the script that stores.

Ids are noted beside the queue, in its slot. How far a scope is sealed is kept beside the scope, and
in every queue the scope has enrolled; a seal goes to the scope first and to its queues after, a
sender enrols its queue before it stores: so a sender that comes late meets the seal in either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matador.model.message import Message, Once
from matador.transports.redis.keys import scope_keys
from matador.transports.redis.link import Link
from matador.transports.redis.scripts import script
from matador.transports.redis.sending import Outcomes, deliver, parcels

_MOST_REMEMBERED = 10_000


class Notes:
    """Stores once and seals, for one transport."""

    def __init__(self, link: Link, prefix: str, key_of: Callable[[str], str]) -> None:
        self._link = link
        self._prefix = prefix
        self._key_of = key_of
        self._enrolled: set[tuple[Once, str]] = set()

    async def store(self, messages: Sequence[Message], once: Once) -> Outcomes:
        """Store those whose ids are not noted under ``once`` yet; for each None, or why not."""
        channel = await self._link.channel()
        outcomes: Outcomes = [None] * len(messages)
        for queue in dict.fromkeys(message.queue for message in messages):
            if await self._enrol(once, queue) >= once.batch:
                return outcomes
        name = script("send_once")
        for parcel in parcels(messages, outcomes, plain=False):
            keys = [self._key_of(parcel.queue)]
            front = (once.scope, once.batch)
            await deliver(self._link, channel, name, keys, parcel, outcomes, front)
        return outcomes

    async def seal(self, once: Once) -> None:
        """Let nothing more be stored in a part of a scope, or in those before it."""
        keys = scope_keys(self._prefix, once.scope)
        queues: list[bytes] = await self._link.run(script("seal_scope"), keys, [once.batch])
        for queue in queues:
            key = self._key_of(queue.decode(errors="replace"))
            await self._link.run(script("seal"), [key], [once.scope, once.batch])

    async def _enrol(self, once: Once, queue: str) -> int:
        """Make the queue known to the scope; the part up to which the scope is sealed."""
        if (once, queue) in self._enrolled:
            return -1
        keys = scope_keys(self._prefix, once.scope)
        sealed: int = await self._link.run(script("enroll"), keys, [queue])
        if len(self._enrolled) >= _MOST_REMEMBERED:
            self._enrolled.clear()
        self._enrolled.add((once, queue))
        return sealed
