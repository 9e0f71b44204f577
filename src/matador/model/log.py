"""Partitions and offsets of queues that are logs, such as Kafka's.

Values that travel between the processes of a data pipeline.
"""

from __future__ import annotations

import msgspec

from matador.model.message import Headers


class LogPartition(msgspec.Struct, frozen=True):
    """A partition of a queue, and the offsets that can be read: from ``start``, before ``end``.

    ``home`` identifies the log globally: its cluster and its name there. ``made`` is the id that
    the log was given on creation; it changes if the log is deleted and recreated.
    """

    queue: str
    home: str
    made: str
    number: int
    start: int
    end: int


class LogRange(msgspec.Struct, frozen=True):
    """The messages of a partition from ``start`` up to but not including ``end``."""

    partition: LogPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets. Not every offset has a message."""
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
