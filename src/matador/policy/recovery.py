"""What happens to sends while the broker cannot be reached: the options of the buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from matador.model.backoff import BackoffStrategy
from matador.model.options import Seconds, one_of, seconds, whole_number


@dataclass(frozen=True, slots=True)
class Recovery:
    """Sends during a reconnect wait in a buffer, and leave it in order.

    A buffered send is not reported as sent: its caller waits.

    Args:
        buffer: False: sends fail at once while there is no connection.
        max_size: the maximum number of buffered sends. Others fail with ``BufferFullError``.
        ttl: the maximum time in the buffer in seconds. Then the send fails with
            ``BufferExpiredError``.
        reconnect: how the delays between attempts to reconnect grow. None: as the URL says.

    Raises:
        ConfigurationError: an option is invalid.

    Example:
        >>> Recovery(max_size=10_000, ttl=60).buffer
        True
    """

    buffer: bool = True
    max_size: int = 1000
    ttl: Seconds = 30.0
    reconnect: BackoffStrategy | None = None

    def __post_init__(self) -> None:
        whole_number(self.max_size, "Recovery: max_size", minimum=1)
        object.__setattr__(self, "ttl", seconds(self.ttl, "Recovery: ttl", minimum=0.001))
        if self.reconnect is not None:
            one_of(self.reconnect, "Recovery: reconnect", get_args(BackoffStrategy))
