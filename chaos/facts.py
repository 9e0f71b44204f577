"""What happened, as facts in append-only logs: one JSON line a fact, one file a process.

A line is one write to a file opened for appending, so a kill loses at most the last line of the
process that was killed. Times are nanoseconds of the monotonic clock, which all processes of a
machine share and nobody can set.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

Result: TypeAlias = Literal["done", "raised", "cut"]
"""How a run of a handler ended: it returned, it raised, or it was cancelled."""


class Intent(msgspec.Struct, frozen=True, tag="intent"):
    """A publisher is about to publish. Without a later fact, the outcome is unknown."""

    seq: int
    key: str | None
    at: int


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """A publish was reported as stored for one subscriber, under this envelope id."""

    seq: int
    subscriber: str
    id: str
    at: int = 0


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A publish failed for one subscriber; unless ``certain``, it may be stored all the same."""

    seq: int
    subscriber: str
    error: str
    text: str
    certain: bool
    at: int = 0


class Start(msgspec.Struct, frozen=True, tag="start"):
    """A handler started. ``run`` tells the runs of one process apart."""

    seq: int
    subscriber: str
    id: str
    key: str | None
    attempt: int
    redelivered: bool
    intact: bool
    pid: int
    run: int
    at: int


class End(msgspec.Struct, frozen=True, tag="end"):
    """A run of a handler ended."""

    seq: int
    subscriber: str
    pid: int
    run: int
    result: Result
    at: int


class Effect(msgspec.Struct, frozen=True, tag="effect"):
    """A step of a resumable handler took effect: really, not from memory."""

    seq: int
    subscriber: str
    step: str
    pid: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A process is up."""

    pid: int


Fact: TypeAlias = Intent | Sent | Refused | Start | End | Effect | Ready

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Fact).decode


def now() -> int:
    """The time of a fact."""
    return time.monotonic_ns()


class FactLog:
    """Writes facts. Safe to use from several threads.

    Attributes:
        folder: where it is.
    """

    def __init__(self, path: Path) -> None:
        self.folder = path.parent
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *facts: Fact) -> None:
        """Add facts, in one write."""
        os.write(self._file, b"".join(_encode(fact) + b"\n" for fact in facts))


class FactReader:
    """Reads the logs of a folder while they are being written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new_facts(self) -> Iterator[Fact]:
        """The facts that were added since the last call; a line without its end is not one yet.

        Raises:
            msgspec.DecodeError: a whole line that is not a fact: the log itself is broken.
        """
        for path in sorted(self._folder.glob("*.facts")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole, _, _ = text.rpartition(b"\n")
            if whole:
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                yield from map(_decode, whole.split(b"\n"))
