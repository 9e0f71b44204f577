"""The terminal and the standard streams, which may fail, be closed or be attacked.

Results that cannot be written are an error of one line. Remarks and errors that cannot be written
are left out: they change neither the result nor the exit code. Control characters are replaced, so
that text from messages cannot control the terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from matador.transports.credentials import without_secrets


class OutputError(Exception):
    """The results of a command cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to stdout: {error.strerror}")


class _Guarded:
    """A stream that writes inside ``guard``, which handles the errors; otherwise the original."""

    def __init__(self, file: TextIO, guard: Callable[[], AbstractContextManager[None]]) -> None:
        self._file, self._guard = file, guard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with self._guard():
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with self._guard():
            self._file.flush()


@contextlib.contextmanager
def output_errors() -> Generator[None]:
    """Turn errors of writing results into ``OutputError``."""
    try:
        yield
    except BrokenPipeError:  # the reader has stopped reading: no error
        raise
    except OSError as error:
        raise OutputError(error) from error


@contextlib.contextmanager
def no_errors() -> Generator[None]:
    """Leave out remarks that cannot be written."""
    with contextlib.suppress(OSError):
        yield


def for_results(file: TextIO) -> TextIO:
    """The stream, whose errors are ``OutputError`` or, without a reader, ``BrokenPipeError``."""
    return cast("TextIO", _Guarded(file, output_errors))


def for_remarks(file: TextIO) -> TextIO:
    """The stream, without errors."""
    return cast("TextIO", _Guarded(file, no_errors))


def prepare_streams() -> None:
    """Make sure that all streams exist and accept every character."""
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
    """Write what is buffered; discard what cannot be written. Returns the error of stdout."""
    problem = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            # Otherwise Python tries again at its end, and reports a failure of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            problem = error if stream is sys.stdout else problem
    return problem


# -- control characters ---------------------------------------------------------------------------


_UNSEEN = "\N{REPLACEMENT CHARACTER}"
# Characters that could move the cursor, change colors or titles, or reverse the text, each mapped
# to one visible character, so that the positions of styles stay right.
_PICTURES = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\N{SYMBOL FOR DELETE}",
    **dict.fromkeys(range(0x80, 0xA0), _UNSEEN),  # C1: some terminals treat them as escapes
    **dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F)), _UNSEEN),  # bidirectional
    **dict.fromkeys(range(0x2066, 0x206A), _UNSEEN),
    **dict.fromkeys((0x2028, 0x2029, 0xFEFF), _UNSEEN),  # line and paragraph separators
    **dict.fromkeys(range(0xD800, 0xE000), _UNSEEN),  # lone surrogates cannot be encoded
    **dict.fromkeys(range(0xE0000, 0xE0080), _UNSEEN),  # tags: invisible letters
}
_ONE_LINE = {**_PICTURES, ord("\n"): "\N{SYMBOL FOR LINE FEED}", ord("\t"): " "}


class SafeConsole(Console):
    """A console that prints no control characters: messages come from any program."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        if isinstance(renderable, Text):
            renderable = _without_controls(renderable)
        return super().render(renderable, options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(text.translate(_PICTURES), **options)


def _without_controls(text: Text) -> Text:
    plain = text.plain
    cleaned = plain.translate(_PICTURES)
    if cleaned == plain:
        return text
    copy = text.copy()
    copy.plain = cleaned
    return copy


def one_line(text: str) -> str:
    """The text as one line, for a table cell: line breaks become visible symbols.

    Example:
        >>> one_line("charged\\nerror: none")
        'charged␊error: none'
    """
    return text.translate(_ONE_LINE)


def tidy(text: str) -> str:
    """The text without passwords, and with further lines indented: none looks like an error."""
    return without_secrets(text).replace("\n", "\n    ")
