"""Which message is being handled, so that each log line about it can say so.

Handlers set it before they run your code, which runs in a copy of the context: its own log lines,
those of the libraries it calls, and those of tasks and threads it starts, carry it, too. They do so
once somebody wants it (``matador.observe.JsonFormatter``); nothing is computed until a line is
formatted.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Protocol


class LogFields(Protocol):
    """What is known of a message that is being handled."""

    def log_fields(self) -> Mapping[str, object]:
        """Its fields in a log line. Those that are None are left out."""
        ...


class LogContext:
    """Is the message of interest to anybody? Each costs a little."""

    wanted = False


HANDLED: ContextVar[LogFields | None] = ContextVar("matador_handled", default=None)
"""The message that is being handled here, or was handled last by the same slot of a worker."""
