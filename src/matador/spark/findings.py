"""What a report says: how everyone does, who is slow, who fails, what grows, what died and why.

Plain values, bounded however large the lake is. How they are found is in ``findings_query``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from matador.spark.reconcile import Reconciliation


@dataclass(frozen=True, slots=True)
class SubscriberHealth:
    """How one subscriber of an event did. Times in milliseconds; None: it never ran.

    ``sent`` and the two halves of it are by the middle of the report's period.
    """

    event_key: str
    subscriber: str
    sent: int
    sent_early: int
    sent_late: int
    count: int
    successes: int
    retries: int
    dead_letters: int
    discards: int
    wait_p50: float | None
    wait_p95: float | None
    wait_p99: float | None
    duration_p50: float | None
    duration_p95: float | None
    duration_p99: float | None

    @property
    def success_rate(self) -> float:
        """Attempts that succeeded, of all."""
        return self.successes / self.count if self.count else 0.0

    @property
    def retry_rate(self) -> float:
        """Attempts that are tried again, of all."""
        return self.retries / self.count if self.count else 0.0

    @property
    def dead_letter_rate(self) -> float:
        """Attempts that ended in dead letters, of all."""
        return self.dead_letters / self.count if self.count else 0.0

    @property
    def growth(self) -> float | None:
        """The later half of what was sent against the earlier; None: there was no earlier."""
        return self.sent_late / self.sent_early if self.sent_early else None


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened in one step of the charts."""

    start: datetime
    sent: int = 0
    handled: int = 0
    retried: int = 0
    dead_lettered: int = 0
    discarded: int = 0
    by_event: dict[str, int] = field(default_factory=dict[str, int])
    wait: tuple[float | None, float | None, float | None] = (None, None, None)
    duration: tuple[float | None, float | None, float | None] = (None, None, None)


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one error signature; see ``triage``."""

    signature: str
    error_type: str | None
    text: str
    count: int
    new: bool
    first_seen: datetime
    last_seen: datetime
    example_id: str
    example: str
    events: tuple[str, ...]
    subscribers: tuple[str, ...]
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """All of it. Of subscribers and groups the first few; ``more_…`` says how many there are more.

    ``step``: the seconds that a moment lasts.
    """

    lake: str
    made_at: datetime
    step: int = 60
    moments: tuple[Moment, ...] = ()
    subscribers: tuple[SubscriberHealth, ...] = ()
    more_subscribers: int = 0
    groups: tuple[DeadLetterGroup, ...] = ()
    more_groups: int = 0
    quarantined: tuple[tuple[str, int], ...] = ()
    reconciliation: Reconciliation = field(default_factory=Reconciliation)

    @property
    def slowest(self) -> list[SubscriberHealth]:
        """Those that run, by the 95th percentile of their running time, the slowest first."""
        ran = [one for one in self.subscribers if one.duration_p95 is not None]
        return sorted(ran, key=lambda one: -(one.duration_p95 or 0))

    @property
    def failing(self) -> list[SubscriberHealth]:
        """Those with dead letters or retries, the worst first."""
        failed = [one for one in self.subscribers if one.dead_letters or one.retries]
        return sorted(failed, key=lambda one: (-one.dead_letter_rate, -one.retry_rate))

    @property
    def growing(self) -> list[SubscriberHealth]:
        """Those that got more in the later half of the period than in the earlier."""
        more = [one for one in self.subscribers if one.sent_late > one.sent_early]
        return sorted(more, key=lambda one: -(one.growth or one.sent_late))

    def total(self, name: str) -> int:
        """The sum of one count of all moments: ``sent``, ``handled``, ``dead_lettered`` …"""
        return sum(getattr(moment, name) for moment in self.moments)
