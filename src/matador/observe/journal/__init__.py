"""The journal: every envelope sent and every delivery outcome, in files that Spark reads."""

from matador.observe.journal.hook import Journal
from matador.observe.journal.tap import Tap

__all__ = ["Journal", "Tap"]
