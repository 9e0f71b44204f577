"""When a call is made again: only if asked for, and only if there was no reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matador.errors import (
    ConfigurationError,
    ConnectionFailedError,
    ConnectionLostError,
    NotConnectedError,
    RpcTimeoutError,
)
from matador.model.options import Seconds, seconds, whole_number

_NO_REPLY = (RpcTimeoutError, ConnectionLostError, NotConnectedError, ConnectionFailedError)


@dataclass(frozen=True, slots=True)
class CallRetry:
    """Calls again after a timeout or a lost connection, with the same message id.

    The call may have run although there was no reply. A server with ``deduplication`` runs it once
    and sends the same reply again.

    Args:
        attempts: how often a call is made in all, the first time included.
        delay: seconds before the second attempt.
        multiplier: by how much the delay grows with each attempt.
        max_delay: the longest delay in seconds.
        when: decides whether to call again, as a function of the error and of the number of the
            attempt. By default, after a timeout and when the connection was lost.

    Raises:
        ConfigurationError: an option is invalid.

    Example:
        >>> CallRetry(attempts=5, delay=0.5).delay_after(2)
        1.0
    """

    attempts: int = 3
    delay: Seconds = 0.1
    multiplier: float = 2.0
    max_delay: Seconds = 5.0
    when: Callable[[Exception, int], bool] | None = None

    def __post_init__(self) -> None:
        whole_number(self.attempts, "CallRetry: attempts", minimum=1)
        object.__setattr__(self, "delay", seconds(self.delay, "CallRetry: delay"))
        multiplier = seconds(self.multiplier, "CallRetry: multiplier", minimum=1)
        object.__setattr__(self, "multiplier", multiplier)
        object.__setattr__(self, "max_delay", seconds(self.max_delay, "CallRetry: max_delay"))
        if self.when is not None and not callable(self.when):
            raise ConfigurationError(f"CallRetry: when must be a function, got {self.when!r}")

    def again(self, error: Exception, attempt: int) -> bool:
        """Whether to call again after ``error`` in the attempt with that number."""
        if attempt >= self.attempts:
            return False
        if self.when is not None:
            return bool(self.when(error, attempt))
        return isinstance(error, _NO_REPLY)

    def delay_after(self, attempt: int) -> float:
        """Seconds to wait after the attempt with that number."""
        first = seconds(self.delay, "delay")
        longest = seconds(self.max_delay, "max_delay")
        try:
            return min(first * self.multiplier ** (attempt - 1), longest)
        except OverflowError:
            return longest
