"""The journal: every envelope sent and every delivery outcome, in files that Spark reads."""

from matador.observe.journal.hook import Journal

__all__ = ["Journal"]
