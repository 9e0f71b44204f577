"""Counts how messages end. One counter for the command line, Spark, metrics and dashboards."""

from __future__ import annotations

import msgspec

from matador.events.hooks import DecodeFailure, Hooks, WorkerError, WorkerSuccess
from matador.model.text import storable_text
from matador.policy.retry import Outcome

_MOST_COUNTS = 1000
_OTHERS = "(others)"
_LONGEST_ERROR = 200


class OutcomeCount(msgspec.Struct, frozen=True):
    """How many attempts ended in one way, and how long they took.

    ``event_key`` and ``subscriber`` are empty for messages that nobody could read. ``error`` is the
    first that was seen.
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

    def plus(self, count: int, total_ms: float, max_ms: float, error: str | None) -> OutcomeCount:
        """This, and so many more."""
        return OutcomeCount(
            self.queue,
            self.event_key,
            self.subscriber,
            self.outcome,
            self.count + count,
            self.total_ms + total_ms,
            max(self.max_ms, max_ms),
            self.error or error,
        )


class OutcomeCounter(Hooks):
    """Counts the outcomes of attempts. Its hooks never wait, so that no worker waits for them.

    What is counted is bounded: beyond a thousand events and subscribers they are counted together.

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
        """How many attempts ended so, on one queue or on all; without outcomes, in any way."""
        return sum(
            one.count
            for one in self._counts.values()
            if queue in (None, one.queue) and (not outcomes or one.outcome in outcomes)
        )

    def take(self) -> list[OutcomeCount]:
        """The counts since the last call."""
        taken, self._counts = self._counts, {}
        return list(taken.values())

    def on_worker_success(self, event: WorkerSuccess) -> None:
        """See ``Hooks``."""
        docket = event.envelope.docket
        key = (event.queue, docket.event_key, docket.target_subscriber, event.outcome)
        self._count(key, event.duration_ms)

    def on_worker_error(self, event: WorkerError) -> None:
        """See ``Hooks``."""
        docket = event.envelope.docket
        key = (event.queue, docket.event_key, docket.target_subscriber, event.outcome)
        self._count(key, event.duration_ms, event.error)

    def on_decode_error(self, event: DecodeFailure) -> None:
        """See ``Hooks``."""
        self._count((event.queue, "", "", event.outcome), 0.0, event.error)

    def _count(
        self,
        key: tuple[str, str, str, Outcome],
        duration_ms: float,
        error: BaseException | None = None,
    ) -> None:
        if key not in self._counts and len(self._counts) >= _MOST_COUNTS:
            key = (key[0], _OTHERS, _OTHERS, key[3])
        before = self._counts.get(key) or OutcomeCount(*key)
        # Only the first error of a kind is described; the others are counted.
        said = None if error is None or before.count else describe(error)
        self._counts[key] = before.plus(1, duration_ms, duration_ms, said)


def describe(error: BaseException) -> str:
    """An error as one short line."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that cannot say what it is
        text = type(error).__name__
    return storable_text(text.replace("\n", " "), _LONGEST_ERROR)
