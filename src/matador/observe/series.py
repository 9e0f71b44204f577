"""The counters and histograms themselves, and those of one queue, name and subscriber."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from matador.policy.retry import Outcome

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""The upper bounds of the histograms, in seconds."""

_LABELS = ("way", "queue", "name", "subscriber")


class Instruments:
    """All counters and histograms of a registry."""

    def __init__(self, registry: CollectorRegistry, buckets: Sequence[float]) -> None:
        import prometheus_client as client

        made: dict[str, Any] = {"registry": registry}
        self.sent = client.Counter(
            "matador_messages_sent", "Messages that the broker has stored.", _LABELS, **made
        )
        self.send_errors = client.Counter(
            "matador_send_errors", "Messages that could not be stored.", _LABELS, **made
        )
        self.attempts = client.Counter(
            "matador_attempts",
            "Attempts to handle a message, by what came of them.",
            (*_LABELS, "outcome"),
            **made,
        )
        self.dead_letters = client.Counter(
            "matador_dead_letters", "Messages that became dead letters.", _LABELS, **made
        )
        self.malformed = client.Counter(
            "matador_malformed", "Messages that could not be read.", ("queue",), **made
        )
        self.fallbacks = client.Counter(
            "matador_transport_fallbacks",
            "Messages sent to the next transport, because one failed.",
            ("failed", "next"),
            **made,
        )
        self.duration = client.Histogram(
            "matador_attempt_duration_seconds",
            "How long the code of a subscriber or a job ran.",
            _LABELS,
            buckets=buckets,
            **made,
        )
        self.wait = client.Histogram(
            "matador_wait_seconds",
            "How long a message waited after it was due, until an attempt began.",
            _LABELS,
            buckets=buckets,
            **made,
        )


class Series:
    """The metrics of one queue, name and subscriber, looked up once: that is what costs most.

    Those of sends and of attempts appear when they are first used: a process that only sends
    shows no attempts.
    """

    __slots__ = ("_by_outcome", "_instruments", "_run", "_sent", "_wait", "labels")

    def __init__(self, instruments: Instruments, labels: tuple[str, ...]) -> None:
        self._instruments = instruments
        self.labels = labels
        self._sent: Callable[[], None] | None = None
        self._by_outcome: dict[Outcome, Callable[[], None]] = {}
        self._run: Callable[[float], None] | None = None
        self._wait: Callable[[float], None] | None = None

    def sent(self) -> None:
        """A message was stored."""
        if self._sent is None:
            self._sent = self._instruments.sent.labels(*self.labels).inc
        self._sent()

    def ended(self, outcome: Outcome, ran: bool, duration: float, waited: float) -> None:
        """An attempt has ended. A message that was refused has no duration."""
        count = self._by_outcome.get(outcome)
        if count is None:
            child = self._instruments.attempts.labels(*self.labels, outcome)
            count = self._by_outcome[outcome] = child.inc
        count()
        if outcome == "dead-letter":
            self._instruments.dead_letters.labels(*self.labels).inc()
        if ran:
            if self._run is None or self._wait is None:
                self._run = self._instruments.duration.labels(*self.labels).observe
                self._wait = self._instruments.wait.labels(*self.labels).observe
            self._run(duration)
            self._wait(waited if waited > 0 else 0.0)  # clocks of two machines may differ
