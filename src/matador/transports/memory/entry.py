"""A message in memory, and the hold that a receiver has on it."""

from __future__ import annotations

from math import inf
from typing import Literal, TypeAlias

import msgspec

from matador.model.message import Message

EntryState: TypeAlias = Literal["fresh", "ready", "blocked", "delayed", "held", "done"]
"""``fresh``: next in the deque. ``ready``: next in the heap. ``blocked``: behind its key."""


class Entry(msgspec.Struct, gc=False):
    """A stored message. ``seq`` is its place in the queue; times are of the monotonic clock."""

    seq: int
    message: Message
    stored: float
    due: float = 0.0
    state: EntryState = "fresh"
    deliveries: int = 0
    turn: int = 0
    """Counts the times it was held, so that an older hold can be told from the present one."""
    lease_until: float = inf


class Hold(msgspec.Struct, frozen=True, gc=False):
    """The handle of a delivery: which message, and which turn of it."""

    entry: Entry
    turn: int

    @property
    def valid(self) -> bool:
        """Is the message still in these hands?"""
        return self.entry.state == "held" and self.entry.turn == self.turn
