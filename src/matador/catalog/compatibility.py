"""Compares the AsyncAPI documents of two versions: which changes break readers or writers.

Messages outlive the program that sent them, and programs are not all replaced at once. So a change
is checked in both directions. It breaks *writers* if messages of the old version cannot be handled
by the new one, and *readers* if messages of the new version cannot be handled by the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from matador.catalog.asyncapi import ALIASES, KEY, KIND, RECEIVERS, Document, data_schema
from matador.catalog.schema_comparison import Comparison, Difference
from matador.errors import ConfigurationError

Side: TypeAlias = Literal["readers", "writers"]


@dataclass(frozen=True, slots=True)
class Change:
    """A change that is not compatible.

    Attributes:
        message: the message, as ``event order.placed``.
        path: where in its payload, as ``$.amount``; empty: the message itself.
        text: what has changed.
        breaks: ``readers``, ``writers`` or both.
    """

    message: str
    path: str
    text: str
    breaks: tuple[Side, ...]

    def __str__(self) -> str:
        where = f"{self.message} {self.path}".rstrip()
        return f"{where}: {self.text} (breaks {' and '.join(self.breaks)})"


@dataclass(frozen=True, slots=True)
class Compared:
    """The changes between two documents. ``notes`` are compatible changes to be aware of."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]


def compare(old: Document, new: Document) -> Compared:
    """The incompatible changes from one document to another.

    Raises:
        ConfigurationError: one of them was not written by ``matador docs``.

    Example:
        >>> for change in compare(old, new).changes:
        ...     print(change)
        event order.placed $.amount: the type integer is now string (breaks readers and writers)
    """
    changes: list[Change] = []
    notes: list[str] = []
    before, after = _messages(old, "the old document"), _messages(new, "the new document")
    known = {key: one for one in after.values() for key in _keys(one)}
    for key, message in before.items():
        now = known.get(key)
        name = f"{key[0]} {key[1]}"
        if now is None:
            gone: tuple[Side, ...] = ("readers",) if key[0] == "reply" else ("readers", "writers")
            changes.append(Change(name, "", "was removed", gone))
            continue
        if now[KEY] != key[1]:
            notes.append(
                f"{name} is {now[KEY]} now, and still accepted by its old name; workers of the old "
                f"version do not know the new one"
            )
        changes += _lost_receivers(name, message, now)
        changes += _in_payload(name, (old, message), (new, now))
    return Compared(tuple(changes), tuple(notes))


_Key: TypeAlias = tuple[str, str]


def _messages(document: Document, what: str) -> dict[_Key, Document]:
    """The messages of a document by kind and key."""
    try:
        found = document["components"]["messages"]
        return {(one[KIND], one[KEY]): one for one in found.values()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{what} is not an AsyncAPI document of Matador: write it with `matador docs APP "
            f"--output FILE`"
        ) from error


def _keys(message: Document) -> Iterator[_Key]:
    kind: str = message[KIND]
    yield kind, message[KEY]
    for alias in message.get(ALIASES, ()):
        yield kind, alias


def _lost_receivers(name: str, old: Document, new: Document) -> Iterator[Change]:
    """Subscribers of an event that were removed: a message names its subscriber."""
    if old[KIND] != "event":
        return
    for one in old.get(RECEIVERS, ()):
        if one not in new.get(RECEIVERS, ()):
            text = f"the subscriber {one} was removed; messages for it become dead letters"
            yield Change(name, "", text, ("writers",))


def _in_payload(
    name: str, old: tuple[Document, Document], new: tuple[Document, Document]
) -> list[Change]:
    one, other = data_schema(old[1]), data_schema(new[1])
    found: dict[tuple[str, str], list[Side]] = {}

    def note(side: Side, differences: Iterator[Difference]) -> None:
        for difference in differences:
            sides = found.setdefault((difference.path, difference.text), [])
            if side not in sides:
                sides.append(side)

    comparison = Comparison(old[0], new[0])
    note("readers", comparison.new_for_old(one, other))
    note("writers", comparison.old_for_new(one, other))
    return [Change(name, path, text, tuple(sides)) for (path, text), sides in found.items()]
