"""History: what workers did lately, in a SQLite file that the dashboard reads."""

from matador.observe.history.hook import History
from matador.observe.history.store import HistoryStore

__all__ = ["History", "HistoryStore"]
