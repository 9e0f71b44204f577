"""Counts outcomes of messages, for the command line, Spark, metrics and dashboards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from matador.model.text import error_text, storable_text
from matador.policy.retry import Outcome
from matador.runtime.facts import Attempt
from matador.runtime.hooks import Hooks

_MOST_COUNTS = 1000
_OTHERS = "(others)"
_LONGEST_ERROR = 200


class OutcomeCount(msgspec.Struct, frozen=True):
    """The number of attempts with one outcome, and how long they took.

    ``event_key`` and ``subscriber`` are empty for events that could not be decoded. ``error`` is
    the first one.
    """

    queue: str
    event_key: str
    subscriber: str
    outcome: Outcome
    count: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0
    error: str | None = None

    @property
    def mean_ms(self) -> float:
        """The average running time of a callback."""
        return self.total_ms / self.count if self.count else 0.0

    def plus(self, more: OutcomeCount) -> OutcomeCount:
        """The sum of both."""
        return msgspec.structs.replace(
            self,
            count=self.count + more.count,
            total_ms=self.total_ms + more.total_ms,
            max_ms=max(self.max_ms, more.max_ms),
            error=self.error or more.error,
        )


class OutcomeCounter(Hooks):
    """Counts the outcomes of attempts, whatever their way in.

    The number of counters is bounded: beyond a thousand, events and subscribers share one.

    Example:
        >>> counter = OutcomeCounter()
        >>> app = Matador("memory://", schema=schema, hooks=[counter])
        >>> counter.total("shop.events", "success")
        0
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str, Outcome], OutcomeCount] = {}

    @property
    def counts(self) -> list[OutcomeCount]:
        """All counts."""
        return list(self._counts.values())

    def total(self, queue: str | None = None, *outcomes: Outcome) -> int:
        """The number of attempts with these outcomes (default: any), on one queue or on all."""
        return sum(
            one.count
            for one in self._counts.values()
            if queue in (None, one.queue) and (not outcomes or one.outcome in outcomes)
        )

    def take(self) -> list[OutcomeCount]:
        """The counts since the last call."""
        taken, self._counts = self._counts, {}
        return list(taken.values())

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        groups: defaultdict[tuple[str, str, str, Outcome], list[Attempt]] = defaultdict(list)
        for attempt in batch:
            message = attempt.message
            queue, outcome = message.delivery.receipt.queue, attempt.outcome
            if attempt.malformed and message.way == "event":
                groups[queue, "", "", outcome].append(attempt)
            else:
                groups[queue, message.name, message.receiver, outcome].append(attempt)
        for key, attempts in groups.items():
            if key not in self._counts and len(self._counts) >= _MOST_COUNTS:
                key = (key[0], _OTHERS, _OTHERS, key[3])
            before = self._counts.get(key) or OutcomeCount(*key)
            error = attempts[0].error
            # Only the first error is kept; the others are counted.
            said = None if error is None or before.count else describe(error)
            durations = [one.duration * 1000 for one in attempts]
            self._counts[key] = OutcomeCount(
                *key,
                before.count + len(attempts),
                before.total_ms + sum(durations),
                max(before.max_ms, *durations),
                before.error or said,
            )


def describe(error: BaseException) -> str:
    """An error as one short line, with its type."""
    name, text = type(error).__name__, error_text(error, _LONGEST_ERROR).replace("\n", " ")
    return name if text == name else storable_text(f"{name}: {text}", _LONGEST_ERROR)
