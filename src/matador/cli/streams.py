"""Standard streams that cannot be written: a full disk, a closed pipe, no stream at all.

Results that cannot be written are an error of one line. Remarks and errors that cannot be written
are left out: they change neither the result nor the exit code.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal, TextIO, cast


class OutputError(Exception):
    """The results of a command cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to stdout: {error.strerror}")


class _Stream:
    """A stream; everything but writing is up to the original."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Results(_Stream):
    def write(self, text: str) -> int:
        with output_errors():
            return self._file.write(text)

    def flush(self) -> None:
        with output_errors():
            self._file.flush()


class _Remarks(_Stream):
    def write(self, text: str) -> int:
        with no_errors():
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with no_errors():
            self._file.flush()


@contextlib.contextmanager
def output_errors() -> Generator[None]:
    """Turn errors of writing results into ``OutputError``."""
    try:
        yield
    except BrokenPipeError:  # the reader has stopped reading: nothing to tell anybody
        raise
    except OSError as error:
        raise OutputError(error) from error


@contextlib.contextmanager
def no_errors() -> Generator[None]:
    """Leave out remarks that cannot be written."""
    with contextlib.suppress(OSError):
        yield


def for_results(file: TextIO) -> TextIO:
    """The stream, whose errors are ``OutputError`` or, if nobody reads it, ``BrokenPipeError``."""
    return cast("TextIO", _Results(file))


def for_remarks(file: TextIO) -> TextIO:
    """The stream, without errors."""
    return cast("TextIO", _Remarks(file))


def prepare_streams() -> None:
    """See that there are streams, and that every character can be written to them."""
    # In this order, so that no other file gets the number of a stream that is closed.
    sys.stdin = sys.stdin or _nothing("r")
    sys.stdout = sys.stdout or _nothing("w")
    sys.stderr = sys.stderr or _nothing("w")
    for stream in (sys.stdout, sys.stderr):  # a terminal without ✓ is no failure
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nothing(mode: Literal["r", "w"]) -> TextIO:
    return Path(os.devnull).open(mode, encoding="utf-8")


def flush_streams() -> OSError | None:
    """Write what is left. Gives up what cannot be written, and returns why stdout cannot."""
    problem = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            # Otherwise Python tries again at its end, and reports a failure of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            problem = error if stream is sys.stdout else problem
    return problem
