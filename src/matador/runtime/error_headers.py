"""The headers of a dead letter about its last error: the type and the traceback."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from itertools import dropwhile
from pathlib import Path

from matador.model.message import ERROR_TYPE_HEADER, TRACEBACK_HEADER
from matador.model.text import SHORT_TEXT, storable_text
from matador.runtime.way import HandlersFailed

_LONGEST_TRACEBACK = 4000
_OURS = str(Path(__file__).parents[1])
_PYTHON = str(Path(traceback.__file__).parent)


def error_type(error: BaseException) -> dict[str, str]:
    """The header with the type of an error."""
    return {ERROR_TYPE_HEADER: storable_text(_name(error), SHORT_TEXT)}


def error_headers(error: BaseException) -> dict[str, str]:
    """The headers with the type and the traceback of an error, for its dead letter.

    The traceback begins at the user's code and has no frames of Matador.
    """
    several = isinstance(error, HandlersFailed) and error.failures.values()
    try:
        lines = "\n".join(_described(one) for one in several or (error,))
    except Exception:  # noqa: BLE001 - its __str__ may raise anything
        lines = _name(error)
    cut = lines if len(lines) <= _LONGEST_TRACEBACK else "…" + lines[-_LONGEST_TRACEBACK:]
    return {**error_type(error), TRACEBACK_HEADER: storable_text(cut, _LONGEST_TRACEBACK + 1)}


def _name(error: BaseException) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _described(error: BaseException) -> str:
    described = traceback.TracebackException.from_exception(error)
    for one in _chain(described):
        one.stack[:] = _of_user(one.stack)
    return "".join(described.format())


def _chain(error: traceback.TracebackException) -> Iterable[traceback.TracebackException]:
    """An error with its causes, and with the errors of its group."""
    seen: list[traceback.TracebackException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if not any(one is known for known in seen):
            seen.append(one)
            more = (one.__cause__, one.__context__, *(one.exceptions or ()))
            waiting += [other for other in more if other is not None]
    return seen


def _of_user(stack: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames without Matador's, and without those of Python that call the user's code."""
    frames = [one for one in stack if not one.filename.startswith(_OURS)]
    return list(dropwhile(_is_python, frames))


def _is_python(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_PYTHON) and "-packages" not in frame.filename
