"""Observability: the journal, and later metrics, traces and health. All of them are hooks."""

from matador.observe.journal import Journal, Tap

__all__ = ["Journal", "Tap"]
