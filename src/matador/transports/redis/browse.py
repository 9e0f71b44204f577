"""Reads queues without consuming them: pages of entries of all lanes, in order of their ids.

A position is an entry's id, followed by a colon and its lane unless that is ``0``. Delayed messages
come after all others; their position is ``due~name``.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NamedTuple

from matador.errors import ConfigurationError
from matador.model.message import MessageState, StoredMessage
from matador.transports.kit.errors import no_retention, queue_not_found
from matador.transports.redis.client import RedisClient, script
from matador.transports.redis.wire import stored_of

_PAGE = 200
_NOBODY = b"-"
_POSITION = re.compile(r"(\d{1,20})-(\d{1,20})(?::(t|\d{1,2}))?", re.ASCII)
_DELAYED = re.compile(r"\d{1,15}~(\d{16}|[0-9a-f]{40})", re.ASCII)
_HIGHEST_ID = 2**64 - 1


class _LanePosition(NamedTuple):
    """The position of an entry among those of all lanes."""

    ms: int
    seq: int
    rank: int


_START = _LanePosition(0, 0, -1)


async def browse(
    client: RedisClient, queue: str, base: str, after: str | None
) -> AsyncIterator[StoredMessage]:
    """All messages that are not finished, after a position; read page by page."""
    if after is None or not _DELAYED.fullmatch(after):
        place: _LanePosition | None = _place(after)
        while place is not None:
            page, place, _ = await _page(client, queue, base, place)
            for stored in page:
                if stored.state != "done":
                    yield stored
        after = None
    # Last, so that a message that falls due meanwhile is not returned twice.
    async for stored in _delayed(client, queue, base, after):
        yield stored


async def read(
    client: RedisClient, queue: str, base: str, after: str | None, limit: int
) -> list[StoredMessage]:
    """Up to ``limit`` messages after a position, finished ones included.

    Raises:
        UnsupportedError: the queue has no retention.
    """
    place: _LanePosition | None = _place(after)
    found: list[StoredMessage] = []
    while place is not None and len(found) < limit:
        page, place, kept = await _page(client, queue, base, place, limit - len(found))
        if not kept:
            raise no_retention(queue)
        found += page
    return found[:limit]


def take_arguments(positions: Sequence[str]) -> list[str | int]:
    """Positions for the script ``take``, each with its place; invalid ones are left out."""
    found: list[str | int] = []
    for place, position in enumerate(positions):
        if _DELAYED.fullmatch(position):
            found += (place, "d", position)
        elif _read_position(position) is not None:
            id_, _, lane = position.partition(":")
            found += (place, lane or "0", id_)
    return found


async def _page(
    client: RedisClient, queue: str, base: str, after: _LanePosition, most: int = _PAGE
) -> tuple[list[StoredMessage], _LanePosition | None, bool]:
    """Entries after a position, the position to continue from (None: there are no more), and
    whether the queue keeps finished messages."""
    count = max(1, min(most, _PAGE))
    reply = await client.run(
        script("browse"), [base], (f"{after.ms}-{after.seq}", after.rank, count)
    )
    if reply is None:
        raise queue_not_found(queue, client.where)
    retention, lanes = reply
    found = [seen for lane in lanes for seen in _seen(queue, *lane)]
    chosen = heapq.nsmallest(count, found, key=lambda pair: pair[0])
    # Fewer entries than requested mean that every lane was read to its end.
    last = chosen[-1][0] if len(chosen) == count else None
    return [stored for _, stored in chosen], last, retention != b""


def _seen(
    queue: str, lane: bytes, delivered: bytes, rows: Sequence[Any], entries: Sequence[Any]
) -> Iterator[tuple[_LanePosition, StoredMessage]]:
    name, last = lane.decode(), _ids(delivered)
    held = {id_: (consumer, claim - uncounted) for id_, consumer, claim, uncounted in rows}
    for id_, fields in entries:
        ms, seq = _ids(id_)
        # A delivered entry that is not pending is finished.
        consumer, count = held.get(id_, (_NOBODY, 0))
        state: MessageState = "ready" if id_ in held or (ms, seq) > last else "done"
        if consumer != _NOBODY:
            state = "in-flight"
        position = id_.decode() if name == "0" else f"{id_.decode()}:{name}"
        stored = stored_of(queue, position, fields, state, ms, count)
        yield _LanePosition(ms, seq, _rank(name)), stored


def _rank(lane: str) -> int:
    """Lanes are ranked by their number; the lane of messages taken by position is the last."""
    return 99 if lane == "t" else int(lane)


async def _delayed(
    client: RedisClient, queue: str, base: str, after: str | None
) -> AsyncIterator[StoredMessage]:
    behind = (0, "") if after is None else _delayed_place(after)
    skip = 0
    while rows := await client.run(script("browse_delayed"), [base], [skip, _PAGE]):
        skip += len(rows)
        for due, name, fields in rows:
            position = f"{due}~{name.decode()}"
            if _delayed_place(position) > behind:
                yield stored_of(queue, position, fields, "delayed", due)
    if rows is None:
        raise queue_not_found(queue, client.where)


def _place(position: str | None) -> _LanePosition:
    if position is None:
        return _START
    found = _read_position(position)
    if found is None:
        raise ConfigurationError(f"{position!r} is not a position; use StoredMessage.position")
    return found


def _read_position(position: str) -> _LanePosition | None:
    found = _POSITION.fullmatch(position)
    if found is None or max(int(found[1]), int(found[2])) > _HIGHEST_ID:
        return None
    return _LanePosition(int(found[1]), int(found[2]), _rank(found[3] or "0"))


def _ids(id_: bytes) -> tuple[int, int]:
    ms, _, seq = id_.partition(b"-")
    return int(ms), int(seq)


def _delayed_place(position: str) -> tuple[int, str]:
    due, _, name = position.partition("~")
    return int(due), name
