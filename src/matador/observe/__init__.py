"""Observability: the journal, metrics and traces, which are hooks; health checks; logs."""

from matador.observe.endpoint import MetricsServer
from matador.observe.history import History
from matador.observe.journal import Journal, Tap
from matador.observe.logs import JsonFormatter
from matador.observe.metrics import Metrics
from matador.observe.tracing import Tracing
from matador.runtime.facts import Attempt, NotSent, Received, Sent

__all__ = [
    "Attempt",
    "History",
    "Journal",
    "JsonFormatter",
    "Metrics",
    "MetricsServer",
    "NotSent",
    "Received",
    "Sent",
    "Tap",
    "Tracing",
]
