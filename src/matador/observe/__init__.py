"""Observability: the journal, and later metrics, traces and health. All of them are hooks."""

from matador.observe.journal import Journal, Tap
from matador.runtime.recorder import AttemptedMessage, Recorder, SentMessage

__all__ = ["AttemptedMessage", "Journal", "Recorder", "SentMessage", "Tap"]
