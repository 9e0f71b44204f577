"""Observability: the journal, metrics and traces, which are hooks; health checks; logs."""

from matador.observe.endpoint import MetricsServer
from matador.observe.history import History
from matador.observe.journal import Journal, Tap
from matador.observe.logs import JsonFormatter
from matador.observe.metrics import PrometheusMetrics
from matador.observe.tracing import Tracing
from matador.runtime.recorder import AttemptedMessage, Recorder, Recorders, SentMessage

__all__ = [
    "AttemptedMessage",
    "History",
    "Journal",
    "JsonFormatter",
    "MetricsServer",
    "PrometheusMetrics",
    "Recorder",
    "Recorders",
    "SentMessage",
    "Tap",
    "Tracing",
]
