"""What dead letters, the history and the log keep of an error: its type, and where it began."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from itertools import dropwhile
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from matador.model.message import ERROR_TYPE_HEADER, TRACEBACK_HEADER
from matador.model.text import SHORT_TEXT, loggable, storable_text
from matador.runtime.way import HandlersFailed

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

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
    lines = traceback_of(error)
    cut = lines if len(lines) <= _LONGEST_TRACEBACK else "…" + lines[-_LONGEST_TRACEBACK:]
    return {**error_type(error), TRACEBACK_HEADER: storable_text(cut, _LONGEST_TRACEBACK + 1)}


def traceback_of(error: BaseException) -> str:
    """The traceback of an error, from the user's code on, without frames of Matador.

    The type of the error alone if its text cannot be made.
    """
    several = isinstance(error, HandlersFailed) and error.failures.values()
    try:
        return "\n".join(_described(one) for one in several or (error,))
    except Exception:  # noqa: BLE001 - its __str__ may raise anything
        return _name(error)


def log_info(error: Exception) -> ExcInfo | None:
    """``exc_info`` of a log line about an error: its traceback begins at the user's code.

    The whole traceback if the user's code is not in it; None if its text cannot be made.
    """
    if loggable(error) is None:
        return None
    begin = error.__traceback__
    while begin is not None and _is_before_user(begin.tb_frame.f_code.co_filename):
        begin = begin.tb_next
    return type(error), error, begin or error.__traceback__


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
    return list(dropwhile(lambda frame: _is_before_user(frame.filename), frames))


def _is_before_user(filename: str) -> bool:
    """Is it a file of Matador, or of Python itself?"""
    of_python = filename.startswith(_PYTHON) and "-packages" not in filename
    return of_python or filename.startswith(_OURS)
