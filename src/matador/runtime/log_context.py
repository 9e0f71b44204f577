"""The message that is being handled, so that each log line can name it.

The pipeline sets it before it runs a handler in a copy of the context. So the log lines of the
handler, of the libraries it calls, and of the tasks and threads it starts can name the message,
too. ``matador.observe.JsonFormatter`` turns this on; nothing is computed until a line is formatted.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Protocol


class LogFields(Protocol):
    """A message that can describe itself in a log line."""

    def log_fields(self) -> Mapping[str, object]:
        """Its fields in a log line. Those that are None are left out."""
        ...


class LogContext:
    """Whether log lines name the message. Each flag costs a little time per message."""

    wanted = False


HANDLED: ContextVar[LogFields | None] = ContextVar("matador_handled", default=None)
"""The message that is being handled here, or was handled last by the same slot of a worker."""
