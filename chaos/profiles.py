"""What a scenario needs to know of a broker: how to reach it, how to look into it, how to hurt it.

A profile looks into the broker by its own means, not by those of the product. What it can do to
the broker beyond that is in protocols of their own; a scenario that needs one is not run where it
is missing, and the table says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from chaos.checker import Stored, Target


class Unplayable(Exception):
    """What a scenario needs cannot be had on this machine."""


class Profile(Protocol):
    """A broker. Made for one scenario, in a folder of its own."""

    @property
    def durable(self) -> bool:
        """Must nothing be lost?"""
        ...

    def url(self, lease: float) -> str:
        """Where the product finds it; deliveries are held for ``lease`` seconds."""
        ...

    def stored(self, queue: str) -> Sequence[Stored]:
        """What is in a queue, by its full name, whatever its state; nothing if it is not there."""
        ...

    def depth(self, queue: str) -> int:
        """How many messages are in a queue, whatever their state."""
        ...

    def damage(self) -> str | None:
        """What is broken in the broker's own storage, if anything is."""
        ...

    def close(self) -> None:
        """Give back what was taken: mounts, servers."""
        ...


@runtime_checkable
class FillsUp(Protocol):
    """The broker can run out of room."""

    def limit_room(self, size: int) -> None:
        """Leave it ``size`` bytes in all. Before anything was stored.

        Raises:
            Unplayable: this machine does not allow it.
        """
        ...

    def make_room(self, size: int) -> None:
        """Give it ``size`` bytes in all."""
        ...


@runtime_checkable
class LosesQueues(Protocol):
    """A queue can go missing."""

    def drop_queue(self, queue: str) -> None:
        """Remove a queue, by its full name, behind everybody's back."""
        ...


@runtime_checkable
class RefusesDeadLetters(Protocol):
    """Storing a dead letter can be made to fail."""

    def refuse_dead_letters(self) -> None:
        """From now on no dead letter can be stored."""
        ...

    def accept_dead_letters(self) -> None:
        """They can be stored again."""
        ...


class _Data(msgspec.Struct):
    seq: int


class _Docket(msgspec.Struct):
    target: str = msgspec.field(name="targetSubscriber")


class _Body(msgspec.Struct):
    data: _Data
    docket: _Docket


_read = msgspec.json.Decoder(_Body).decode


def target_of(body: bytes) -> Target | None:
    """Whose message this is, read off its bytes; None if they do not say."""
    try:
        found = _read(body)
    except msgspec.DecodeError:
        return None
    return found.data.seq, found.docket.target


def make_profile(name: str, folder: Path) -> Profile:
    """The profile of a transport.

    Raises:
        LookupError: there is none; those there are, are named.
    """
    from chaos.sqlite import SqliteProfile

    known = {"sqlite": SqliteProfile}
    if name not in known:
        raise LookupError(f"no transport {name!r} here; there is {', '.join(known)}")
    return known[name](folder)
