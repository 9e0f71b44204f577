"""Reads the facts of a run and computes five numbers: lost, duplicated, unexpected, reordered,
stuck. Knows nothing of transports: what is left in the queues is handed in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from chaos.facts import End, Fact, Intent, Refused, Sent, Start

Target: TypeAlias = tuple[int, str]
"""One message: the publish it belongs to, and the subscriber it is for."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message found in a queue: whose it is (None: nobody can tell), its id, and its bytes."""

    target: Target | None
    id: str
    queue: str
    body: bytes = field(repr=False)
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The five numbers, and an example of each kind of trouble.

    Attributes:
        lost: publishes reported as stored that were neither handled nor are anywhere.
        duplicated: completed runs beyond the first of each message.
        unexpected: messages that nobody sent, that were refused, that came with other bytes, or
            under another identity.
        reordered: runs out of order, or overlapping, within an ordering key.
        stuck: messages still in a work queue.
    """

    lost: int = 0
    duplicated: int = 0
    unexpected: int = 0
    reordered: int = 0
    stuck: int = 0
    published: int = 0
    handled: int = 0
    dead: int = 0
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"lost {self.lost}, duplicated {self.duplicated}, unexpected {self.unexpected}, "
            f"reordered {self.reordered}, stuck {self.stuck}"
        )


class History:
    """Facts, sorted by what they are about. Grows as facts are added."""

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self.intents: dict[int, Intent] = {}
        self.sent: dict[Target, Sent] = {}
        self.refused: dict[Target, Refused] = {}
        self.starts: defaultdict[Target, list[Start]] = defaultdict(list)
        self.ends: dict[tuple[int, int], End] = {}
        self.completed: Counter[Target] = Counter()
        self.others: list[Fact] = []
        self.add(facts)

    def add(self, facts: Iterable[Fact]) -> None:
        """Take in more facts."""
        for fact in facts:
            match fact:
                case Intent():
                    self.intents[fact.seq] = fact
                case Sent():
                    self.sent[fact.seq, fact.subscriber] = fact
                case Refused():
                    self.refused[fact.seq, fact.subscriber] = fact
                case Start():
                    self.starts[fact.seq, fact.subscriber].append(fact)
                case End():
                    self.ends[fact.pid, fact.run] = fact
                    if fact.result == "done":
                        self.completed[fact.seq, fact.subscriber] += 1
                case _:
                    self.others.append(fact)

    def end_of(self, start: Start) -> End | None:
        """The end of a run; None: it was killed, or still runs."""
        return self.ends.get((start.pid, start.run))


def check(
    history: History,
    *,
    waiting: Iterable[Stored] = (),
    dead: Iterable[Stored] = (),
    late_repeats: bool = False,
) -> Verdict:
    """The verdict on a run. ``waiting``: what is left in work queues; ``dead``: dead letters.

    ``late_repeats``: what was completed may be run again behind later messages of its key, as when
    a worker is killed between storing a retry and acknowledging the original. It counts as
    duplicated then, and not as reordered.
    """
    left, dead = list(waiting), list(dead)
    somewhere = {stored.target for stored in (*left, *dead)} | history.completed.keys()
    lost = [target for target in history.sent if target not in somewhere]
    twice = {target: runs - 1 for target, runs in history.completed.items() if runs > 1}
    strange = list(_strange(history, [*left, *dead]))
    disorder = list(_disorder(history, late_repeats))
    return Verdict(
        lost=len(lost),
        duplicated=sum(twice.values()),
        unexpected=len(strange),
        reordered=len(disorder),
        stuck=len(left),
        published=len(history.sent),
        handled=len(history.completed),
        dead=len(dead),
        examples=(
            *(f"lost: {target}" for target in lost[:3]),
            *(f"duplicated: {target}" for target in list(twice)[:3]),
            *(f"unexpected: {what}" for what in strange[:3]),
            *(f"reordered: {what}" for what in disorder[:3]),
            *(f"stuck: {stored}" for stored in left[:3]),
        ),
    )


def _strange(history: History, stored: Iterable[Stored]) -> Iterator[str]:
    ids: defaultdict[Target, set[str]] = defaultdict(set)
    for target, starts in history.starts.items():
        ids[target].update(start.id for start in starts)
        if not all(start.intact for start in starts):
            yield f"{target} came with other bytes than were sent"
    for one in stored:
        if one.target is not None:
            ids[one.target].update({one.id} - {""})  # the simplest form of a dead letter has none
    for target, seen in ids.items():
        sent, refused = history.sent.get(target), history.refused.get(target)
        if target[0] not in history.intents:
            yield f"{target} was never sent"
        elif refused is not None and refused.certain:
            yield f"{target} was refused ({refused.error}), and is there"
        elif len(seen) > 1 or (sent is not None and not seen <= {sent.id}):
            yield f"{target} is there under several ids: {sorted(seen)}"


def _disorder(history: History, late_repeats: bool) -> Iterator[str]:
    by_key: defaultdict[tuple[str, str], list[Start]] = defaultdict(list)
    for (_, subscriber), starts in history.starts.items():
        for start in _first_runs(history, starts) if late_repeats else starts:
            if start.key is not None:
                by_key[subscriber, start.key].append(start)
    for (_, key), starts in by_key.items():
        starts.sort(key=lambda start: start.at)
        for before, after in pairwise(starts):
            end = history.end_of(before)
            if after.seq < before.seq:
                yield f"{key}: {after.seq} started after {before.seq}"
            elif after.seq > before.seq and end is not None and end.at > after.at:
                yield f"{key}: {after.seq} started while {before.seq} was running"


def _first_runs(history: History, starts: Sequence[Start]) -> Iterator[Start]:
    """The runs of a message up to the first that was completed."""
    for start in sorted(starts, key=lambda start: start.at):
        yield start
        end = history.end_of(start)
        if end is not None and end.result == "done":
            return
