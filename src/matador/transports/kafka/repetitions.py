"""What the client library logs, without its repetitions and without lost connections."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

_EVERY = 30.0
_CONNECTION = re.compile(
    r"\[thrd:.*(Connect to|[Cc]onnection refused|Disconnected|brokers are down)"
)
_MOST_LINES = 500


class Repetitions(logging.Filter):
    """Lets a line through once in 30 seconds, and then says how often it was left out.

    While a broker is away, each client logs each of its attempts to connect: dozens a second. The
    transport says once that the cluster cannot be reached, so those lines are for who asks for
    details.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it."""
        text = record.getMessage()
        if _CONNECTION.search(text) and not LOG.isEnabledFor(logging.INFO):
            return False
        line = text.partition(" (after ")[0]  # how long an attempt took is no news
        now = self._now()
        with self._lock:
            since, left_out = self._seen.get(line, (now - _EVERY, 0))
            if now - since < _EVERY:
                self._seen[line] = since, left_out + 1
                return False
            if len(self._seen) >= _MOST_LINES:
                self._seen.clear()
            self._seen[line] = now, 0
        if left_out:
            record.msg, record.args = f"{text} ({left_out:,} more like this were left out)", ()
        return True


LOG = logging.getLogger("matador.transports.kafka")
LOG.addFilter(Repetitions())
