"""Observability: the journal, metrics and health checks. Journal and metrics are hooks."""

from matador.observe.endpoint import MetricsServer
from matador.observe.journal import Journal, Tap
from matador.observe.logs import JsonFormatter
from matador.observe.metrics import PrometheusMetrics
from matador.runtime.recorder import AttemptedMessage, Recorder, Recorders, SentMessage

__all__ = [
    "AttemptedMessage",
    "Journal",
    "JsonFormatter",
    "MetricsServer",
    "PrometheusMetrics",
    "Recorder",
    "Recorders",
    "SentMessage",
    "Tap",
]
