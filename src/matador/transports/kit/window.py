"""Tracks unacknowledged deliveries, and the position up to which all of them are finished.

For brokers that acknowledge everything up to a position: RabbitMQ's ``multiple``, the offsets of
Kafka. Deliveries may finish in any order.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Item = TypeVar("Item")


class AckWindow(Generic[Item]):
    """Items by position, added in ascending order.

    Example:
        >>> window = AckWindow[str]()
        >>> for offset in (1, 2, 3, 4):
        ...     window.add(offset, "delivery")
        >>> for offset in (1, 2, 4):
        ...     window.finish(offset)
        >>> window.take_prefix(), window.take_rest()
        (2, [4])
    """

    __slots__ = ("_finished", "_items")

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        self._finished: set[int] = set()

    def __len__(self) -> int:
        """How many are not acknowledged yet, finished or not."""
        return len(self._items)

    @property
    def unfinished(self) -> int:
        """How many are not finished."""
        return len(self._items) - len(self._finished)

    @property
    def has_finished(self) -> bool:
        """Whether there is something to acknowledge."""
        return bool(self._finished)

    def add(self, position: int, item: Item) -> None:
        self._items[position] = item

    def finish(self, position: int) -> None:
        """Mark an item as finished; it stays in the window until it is taken."""
        self._finished.add(position)

    def discard(self, position: int) -> Item | None:
        """Remove an item that must not be acknowledged; None if it is unknown."""
        self._finished.discard(position)
        return self._items.pop(position, None)

    def take_prefix(self) -> int | None:
        """Remove all finished items that have no unfinished item before them; return the last
        position."""
        last: int | None = None
        finished = self._finished
        for position in self._items:
            if position not in finished:
                break
            last = position
        if last is not None:
            done = [position for position in finished if position <= last]
            finished.difference_update(done)
            for position in done:
                del self._items[position]
        return last

    def take_rest(self) -> list[int]:
        """Remove all other finished items; return their positions."""
        if not self._finished:
            return []
        rest = sorted(self._finished)
        self._finished.clear()
        for position in rest:
            del self._items[position]
        return rest

    def clear(self) -> list[Item]:
        """Remove all items and return them."""
        items = list(self._items.values())
        self._items.clear()
        self._finished.clear()
        return items
