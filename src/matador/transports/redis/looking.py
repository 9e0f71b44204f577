"""Looks at queues from outside: pages of entries from all lanes, in order of their ids.

A position is an entry's id, with its lane behind a colon where that is not the lane ``0``. Delayed
messages come after all others; theirs is ``due~name``.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from matador.errors import ConfigurationError
from matador.model.message import MessageState, QueueDepth, StoredMessage
from matador.transports.base import no_retention
from matador.transports.redis.entries import stored_of
from matador.transports.redis.link import Link
from matador.transports.redis.scripts import script
from matador.transports.redis.sending import no_such_queue

_PAGE = 200
_NOBODY = b"-"
_POSITION = re.compile(r"(\d{1,20})-(\d{1,20})(?::(t|\d{1,2}))?", re.ASCII)
_DELAYED = re.compile(r"\d{1,15}~(\d{16}|[0-9a-f]{40})", re.ASCII)
_HIGHEST_ID = 2**64 - 1


class Place(NamedTuple):
    """Where an entry stands among those of all lanes."""

    ms: int
    seq: int
    rank: int


_START = Place(0, 0, -1)


async def find(link: Link, queue: str, base: str) -> tuple[int, float | None]:
    """How many priorities a queue has, and its retention in milliseconds.

    Raises:
        QueueNotFoundError: there is no such queue.
    """
    found = await link.run(script("find"), [base])
    if found is None:
        raise no_such_queue(queue, link.where)
    levels, retention = found
    return levels, None if retention < 0 else retention


async def browse(
    link: Link, queue: str, base: str, after: str | None, limit: int | None
) -> AsyncIterator[StoredMessage]:
    """All that is not finished, from behind a position on; pages are read as it goes."""
    left = limit
    if after is None or not _DELAYED.fullmatch(after):
        place = _place(after)
        while left is None or left > 0:
            page, place = await _page(link, queue, base, place)
            for stored in page:
                if stored.state != "done":
                    yield stored
                    left = None if left is None else left - 1
                    if left == 0:
                        return
            if place is None:
                break
        after = None
    # Behind the others, so that one that comes due meanwhile is not seen twice.
    async for stored in _delayed(link, queue, base, after, left):
        yield stored


async def read(
    link: Link, queue: str, base: str, after: str | None, limit: int
) -> list[StoredMessage]:
    """Up to ``limit`` messages behind a position, finished ones included.

    Raises:
        UnsupportedError: the queue has no retention.
    """
    place: Place | None = _place(after)
    _, retention = await find(link, queue, base)
    if retention is None:
        raise no_retention(queue)
    found: list[StoredMessage] = []
    while place is not None and len(found) < limit:
        page, place = await _page(link, queue, base, place, limit - len(found))
        found += page
    return found[:limit]


async def depth(link: Link, queue: str, base: str) -> QueueDepth:
    """How many messages there are in which state."""
    found = await link.run(script("depth"), [base])
    if found is None:
        raise no_such_queue(queue, link.where)
    ready, delayed, in_flight = found
    return QueueDepth(ready=ready, delayed=delayed, in_flight=in_flight)


async def purge(link: Link, queue: str, base: str) -> int:
    """Delete every message that nobody holds; says how many there were."""
    total = 0
    while deleted := await link.run(script("purge"), [base]):
        if deleted < 0:
            raise no_such_queue(queue, link.where)
        total += deleted
    return total


def targets(positions: Sequence[str]) -> list[str]:
    """Positions as the script ``take`` wants them; those that are none are left out."""
    found: list[str] = []
    for position in positions:
        if _DELAYED.fullmatch(position):
            found += ("d", position)
        elif _is_position(position):
            id_, _, lane = position.partition(":")
            found += (lane or "0", id_)
    return found


async def _page(
    link: Link, queue: str, base: str, after: Place, most: int = _PAGE
) -> tuple[list[StoredMessage], Place | None]:
    """Entries behind a place, and the place to go on from; None: that was all."""
    levels, _ = await find(link, queue, base)
    names = [*map(str, range(levels)), "t"]
    count = max(1, min(most, _PAGE))
    looks = await asyncio.gather(
        *(
            link.run(script("look"), [base], [name, _first(after, rank), count])
            for rank, name in enumerate(names)
        )
    )
    found: list[tuple[Place, StoredMessage]] = []
    for rank, (name, look) in enumerate(zip(names, looks, strict=True)):
        if look is None:
            raise no_such_queue(queue, link.where)
        found += _seen(queue, name, rank, look)
    chosen = heapq.nsmallest(count, found, key=lambda pair: pair[0])
    if not chosen:
        return [], None
    # With fewer than asked for, every lane has been read to its end.
    return [stored for _, stored in chosen], chosen[-1][0] if len(chosen) == count else None


def _first(after: Place, rank: int) -> str:
    """The first id of a lane that is behind a place, as XRANGE wants it."""
    exclusive = "(" if after.ms + after.seq > 0 and rank <= after.rank else ""
    return f"{exclusive}{after.ms}-{after.seq}"


def _seen(
    queue: str, name: str, rank: int, look: Sequence[Any]
) -> list[tuple[Place, StoredMessage]]:
    delivered, rows, entries = look
    last = _ids(delivered)
    held = {row[0]: row for row in rows}
    found: list[tuple[Place, StoredMessage]] = []
    for id_, fields in entries:
        ms, seq = _ids(id_)
        state: MessageState = "ready"
        count = 0
        row = held.get(id_)
        if row is not None:
            _, consumer, claim, uncounted = row
            count = claim - uncounted
            if consumer != _NOBODY:
                state = "in-flight"
        elif (ms, seq) <= last:
            state = "done"
        position = id_.decode() if name == "0" else f"{id_.decode()}:{name}"
        stored = stored_of(queue, position, fields, state, stored_at=ms, delivery_count=count)
        found.append((Place(ms, seq, rank), stored))
    return found


async def _delayed(
    link: Link, queue: str, base: str, after: str | None, left: int | None
) -> AsyncIterator[StoredMessage]:
    behind = (0, "") if after is None else _delayed_place(after)
    skip = 0
    while left is None or left > 0:
        rows = await link.run(script("look_delayed"), [base], [skip, _PAGE])
        if rows is None:
            raise no_such_queue(queue, link.where)
        if not rows:
            return
        skip += len(rows)
        for due, name, fields in rows:
            position = f"{due}~{name.decode()}"
            if _delayed_place(position) <= behind:
                continue
            yield stored_of(queue, position, fields, "delayed", due_at=due)
            left = None if left is None else left - 1
            if left == 0:
                return


def _place(position: str | None) -> Place:
    if position is None:
        return _START
    found = _POSITION.fullmatch(position)
    if found is None or not _is_position(position):
        raise ConfigurationError(f"{position!r} is not a position; use StoredMessage.position")
    ms, seq, lane = found.groups()
    # The rank of lanes by name: levels as they are, then what was taken.
    rank = 0 if lane is None else 99 if lane == "t" else int(lane)
    return Place(int(ms), int(seq), rank)


def _is_position(text: str) -> bool:
    """Is it one of an entry that can be there?"""
    found = _POSITION.fullmatch(text)
    return found is not None and max(int(found[1]), int(found[2])) <= _HIGHEST_ID


def _ids(id_: bytes) -> tuple[int, int]:
    ms, _, seq = id_.partition(b"-")
    return int(ms), int(seq)


def _delayed_place(position: str) -> tuple[int, str]:
    due, _, name = position.partition("~")
    return int(due), name
