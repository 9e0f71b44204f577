"""Why something failed in Spark, in one line out of its many."""

from __future__ import annotations

from typing import Any

_LONGEST = 500


def reason_of(error: BaseException) -> str:
    """The first line that says something.

    An error of Java arrives with a line of the bridge to it first, which says nothing.
    """
    java: Any = getattr(error, "java_exception", None)
    text = str(error if java is None else java)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:_LONGEST]
