"""The circuit breaker: while a broker keeps failing, sends fail at once instead of waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from matador.model.options import Seconds, seconds, whole_number

CircuitState: TypeAlias = Literal["closed", "open", "half-open"]
"""``closed``: sends go through. ``open``: they fail at once. ``half-open``: a few are tried."""


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """The options of a circuit breaker.

    Args:
        threshold: how many failures in a row open it.
        recovery_time: seconds after which a few sends are tried again. After a reconnect, they are
            tried at once.
        successes: how many of these sends must succeed to close it. A failure opens it again.

    Raises:
        ConfigurationError: an option is invalid.

    Example:
        >>> CircuitBreaker(threshold=3, recovery_time=10).successes
        3
    """

    threshold: int = 5
    recovery_time: Seconds = 60.0
    successes: int = 3

    def __post_init__(self) -> None:
        whole_number(self.threshold, "CircuitBreaker: threshold", minimum=1)
        checked = seconds(self.recovery_time, "CircuitBreaker: recovery_time")
        object.__setattr__(self, "recovery_time", checked)
        whole_number(self.successes, "CircuitBreaker: successes", minimum=1)


@dataclass(frozen=True, slots=True)
class Circuit:
    """The state of a circuit breaker. Immutable: every change returns a new value; times are passed
    in.

    Attributes:
        options: see ``CircuitBreaker``.
        state: as of the last change; see ``at``.
        failures: in a row.
        opened_at: when it opened last.
        trying: sends under way while it is half-open.
        succeeded: sends that succeeded while it was half-open.

    Example:
        >>> circuit = Circuit(CircuitBreaker(threshold=1, recovery_time=60))
        >>> circuit = circuit.failed(now=0.0)
        >>> circuit.state, circuit.at(60.0).state
        ('open', 'half-open')
    """

    options: CircuitBreaker
    state: CircuitState = "closed"
    failures: int = 0
    opened_at: float = 0.0
    trying: int = 0
    succeeded: int = 0

    def at(self, now: float) -> Circuit:
        """The circuit at a time: an open circuit is half-open after ``recovery_time``."""
        if self.state == "open" and now - self.opened_at >= self.recovery_time:
            return self.connected()
        return self

    @property
    def recovery_time(self) -> float:
        """``CircuitBreaker.recovery_time`` in seconds."""
        return seconds(self.options.recovery_time, "CircuitBreaker: recovery_time")

    @property
    def room(self) -> int | None:
        """How many more sends may start now; None: any number."""
        if self.state == "closed":
            return None
        return 0 if self.state == "open" else max(0, self._needed - self.trying)

    @property
    def _needed(self) -> int:
        return self.options.successes - self.succeeded

    def begun(self, count: int = 1) -> Circuit:
        """Sends have started."""
        if self.state != "half-open":
            return self
        return self._as("half-open", trying=self.trying + count, succeeded=self.succeeded)

    def succeeded_once(self) -> Circuit:
        """A send has succeeded."""
        if self.state == "closed":
            return self if self.failures == 0 else Circuit(self.options)
        if self.state == "open":
            return self
        if self.succeeded + 1 >= self.options.successes:
            return Circuit(self.options)
        return self._as("half-open", trying=max(0, self.trying - 1), succeeded=self.succeeded + 1)

    def failed(self, now: float) -> Circuit:
        """A send, or an attempt to connect, has failed."""
        failures = self.failures + 1
        if self.state == "half-open" or failures >= self.options.threshold:
            opened = self.opened_at if self.state == "open" else now
            return Circuit(self.options, "open", failures, opened)
        return Circuit(self.options, self.state, failures, self.opened_at)

    def undecided(self) -> Circuit:
        """A send ended without a result, because its connection was lost. Another may be tried."""
        if self.state != "half-open":
            return self
        return self._as("half-open", max(0, self.trying - 1), self.succeeded)

    def connected(self) -> Circuit:
        """The connection is restored: an open circuit tries a few sends at once."""
        return self._as("half-open") if self.state == "open" else self

    def _as(self, state: CircuitState, trying: int = 0, succeeded: int = 0) -> Circuit:
        return Circuit(self.options, state, self.failures, self.opened_at, trying, succeeded)
