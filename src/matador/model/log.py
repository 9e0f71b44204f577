"""Queues that are logs in partitions, such as Kafka's: where their messages are, and what is there.

Values that travel between the processes of a data pipeline.
"""

from __future__ import annotations

import msgspec

from matador.model.message import Headers


class LogPartition(msgspec.Struct, frozen=True):
    """A partition of a queue, and the offsets that can be read: from ``start``, before ``end``.

    ``home`` names the log in the world: its cluster and its name there. ``made`` is the id that it
    was given when it was made: another one if it was deleted and made again.
    """

    queue: str
    home: str
    made: str
    number: int
    start: int
    end: int


class LogRange(msgspec.Struct, frozen=True):
    """The messages of a partition from one offset to the one before another."""

    partition: LogPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets there are. Not all of them need to be messages."""
        return max(0, self.end - self.start)


class LogMessage(msgspec.Struct, frozen=True):
    """A message of a log, as it is stored. ``stored_at``: microseconds since 1970, if known.

    ``problem``: a part of it that could not be read.
    """

    number: int
    offset: int
    body: bytes
    headers: Headers
    stored_at: int | None = None
    problem: str | None = None
