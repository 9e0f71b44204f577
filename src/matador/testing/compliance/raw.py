"""Entries as a foreign program writes them: odd in every part, below the transport."""

from __future__ import annotations

from random import Random
from typing import Protocol


class RawEntries(Protocol):
    """Writes entries straight into a broker's queue, past the transport.

    What is written is anything the broker takes: bodies, headers, properties, fields and columns
    that are missing, of another type, too long, badly encoded, nested, out of range.
    """

    async def write(self, queue: str, random: Random) -> str:
        """Store one entry in a queue, by its full name; describe it for whoever reads a failure.

        The same state of ``random`` gives the same entry.
        """
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...
