"""The state of every message of a small lake, computed in this process.

``message_states_spark`` does the same for lakes of any size. Below some hundred thousand rows, a
Spark job takes longer than the work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from matador.spark.aggregates.windows import WHO
from matador.spark.runtime.arrow import Table, pa
from matador.spark.tables.keys import EVENT

PLACE: Final = (*WHO, "queue")
COUNTS: Final = (
    *("sent", "handled", "dead_lettered", "discarded", "waiting"),
    *("replayed", "sent_again", "handled_twice", "not_sent"),
)
MESSAGE: Final = "message"
"""The ``way`` of pub/sub, which is left out."""

EVENT_COLUMNS: Final = ("id", *PLACE, "recorded_at", "replay_id", "replay_of")
DELIVERY_COLUMNS: Final = ("id", *PLACE, "outcome", "started_at", "attempt")
_ENDS = {"dead-letter": "dead_lettered", "discard": "discarded"}

Key: TypeAlias = str | tuple[str, str, str]
"""The key of a message: the id of an event, or the id in its queue."""


class MessageStates(Protocol):
    """The state of every message, computed in this process or by Spark."""

    def counts(self, most: int) -> list[dict[str, Any]]:
        """``COUNTS`` by ``PLACE``: the ``most`` places with the most messages."""
        ...

    def odd(self, most_of_a_kind: int, most: int) -> list[dict[str, Any]]:
        """The oldest messages of each problem and subscriber: ``problem``, ``id``, ``PLACE``."""
        ...


class _State(NamedTuple):
    id: str
    place: tuple[str, ...]
    at: int
    state: str
    replayed: bool
    again: bool
    twice: bool

    @property
    def problem(self) -> str | None:
        if self.state == "not_sent":
            return "not-sent"
        if self.twice:
            return "handled-twice"
        return "waiting" if self.state == "waiting" else None


@dataclass(slots=True)
class _Attempts:
    """The recorded deliveries of one message."""

    id: str
    place: tuple[str, ...]
    first: int
    last: tuple[int, int, str]
    successes: int = 0

    def add(self, id: str, place: tuple[str, ...], last: tuple[int, int, str]) -> None:
        self.id = min(self.id, id)
        if place != self.place:
            self.place = tuple(map(min, self.place, place))
        self.first = min(self.first, last[0])
        # By time: a redriven message starts again with attempt 1.
        self.last = max(self.last, last)


class FewMessageStates:
    """The states of the messages in rows of ``events`` and ``deliveries``."""

    def __init__(self, events: Table, deliveries: Table) -> None:
        self._states = [*_states(events, deliveries)]

    def counts(self, most: int) -> list[dict[str, Any]]:
        found: dict[tuple[str, ...], Counter[str]] = {}
        for one in self._states:
            counted = found.setdefault(one.place, Counter())
            counted[one.state] += 1
            if one.state != "not_sent":
                counted["sent"] += 1
                counted["replayed"] += one.replayed
            counted["sent_again"] += one.again and one.state == "dead_lettered"
            counted["handled_twice"] += one.twice
        ranked = sorted(found, key=lambda place: (-found[place]["sent"], place))
        return [
            {**_named(place), **{name: found[place][name] for name in COUNTS}}
            for place in ranked[:most]
        ]

    def odd(self, most_of_a_kind: int, most: int) -> list[dict[str, Any]]:
        seen: Counter[tuple[str, ...]] = Counter()
        chosen: list[tuple[str, int, str, tuple[str, ...]]] = []
        for one in sorted(self._states, key=lambda one: (one.at, one.id)):
            if (problem := one.problem) is not None:
                kind = (problem, *one.place[: len(WHO)])
                seen[kind] += 1
                if seen[kind] <= most_of_a_kind:
                    chosen.append((problem, one.at, one.id, one.place))
        return [
            {"problem": problem, "id": id, **_named(place)}
            for problem, _, id, place in sorted(chosen)[:most]
        ]


def _named(place: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(PLACE, place, strict=True))


def _key(place: tuple[str, ...], id: str) -> Key:
    way, _, subscriber, _ = place
    return id if way == EVENT else (way, subscriber, id)


def _states(events: Table, deliveries: Table) -> Iterator[_State]:
    attempts = _attempts(deliveries)
    copies: Counter[Key] = Counter()  # job ids may be reused
    again: set[Key] = set()
    sent: list[tuple[Key, str, tuple[str, ...], int, bool]] = []
    for place, (id, at, replay_id, replay_of) in _rows(
        events, "id", "recorded_at", "replay_id", "replay_of"
    ):
        key = _key(place, id)
        copies[key] += 1
        sent.append((key, id, place, at, replay_id is not None))
        if replay_of is not None:
            again.add(_key(place, replay_of))
    for key, id, place, at, replayed in sent:
        found = attempts.get(key)
        twice = found is not None and found.successes > copies[key]
        yield _State(id, place, at, _state(found), replayed, key in again, twice)
    for key, found in attempts.items():
        if key not in copies:
            twice = found.successes > 1
            yield _State(found.id, found.place, found.first, "not_sent", False, key in again, twice)


def _state(found: _Attempts | None) -> str:
    if found is None:
        return "waiting"
    return "handled" if found.successes else _ENDS.get(found.last[2], "waiting")


def _attempts(deliveries: Table) -> dict[Key, _Attempts]:
    found: dict[Key, _Attempts] = {}
    for place, (id, at, attempt, outcome) in _rows(
        deliveries, "id", "started_at", "attempt", "outcome"
    ):
        key, last = _key(place, id), (at, attempt, outcome)
        if key in found:
            found[key].add(id, place, last)
        else:
            found[key] = _Attempts(id, place, at, last)
        found[key].successes += outcome == "success"
    return found


def _rows(rows: Table, *names: str) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...]]]:
    """The place of each row, and some of its columns; times in microseconds."""
    places = zip(*(rows.column(name).to_pylist() for name in PLACE), strict=True)
    values = zip(*(_plain(rows, name) for name in names), strict=True)
    for place, value in zip(places, values, strict=True):
        if place[0] != MESSAGE:
            yield place, value


def _plain(rows: Table, name: str) -> list[Any]:
    column = rows.column(name)
    return (column.cast(pa.int64()) if name.endswith("_at") else column).to_pylist()
