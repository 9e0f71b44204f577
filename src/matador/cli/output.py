"""What commands print and ask: results, JSON, notes, errors, logs, confirmations and progress."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TextIO, cast

import typer
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from matador._interrupt import INTERRUPTED as INTERRUPTED
from matador.cli.terminal import SafeConsole, for_remarks, for_results, tidy
from matador.errors import MatadorError

FAILED = 1
WRONG_USAGE = 2
TERMINATED = 143

EXIT_CODES = (
    (0, "success; also when a signal ends what runs until Ctrl-C, such as `worker`"),
    (FAILED, "failure; also a worker that had to leave handlers behind"),
    (WRONG_USAGE, "wrong usage"),
    (INTERRUPTED, "interrupted by Ctrl-C before it was done"),
    (TERMINATED, "interrupted by SIGTERM before it was done"),
)
"""The meanings of the exit codes, also for the help and the reference page."""

_GAP = 2  # columns between those of a table
_SHORT_NAME = 24  # columns that a name gets before numbers are left out
_WIDE = 200  # columns without a terminal, so that tables are not cut
# With --json, the real stdout; sys.stdout is stderr then.
_machine: ContextVar[TextIO] = ContextVar("_machine")


class CommandError(Exception):
    """A command failed; the message is for its user."""

    code = FAILED


class UsageError(CommandError):
    """The command line is invalid."""

    code = WRONG_USAGE


@contextlib.contextmanager
def wrong_usage(*errors: type[MatadorError], prefix: str = "") -> Generator[None]:
    """Errors of these types come from the command line. Their texts follow a ``prefix``.

    Raises:
        UsageError: in place of such an error.
    """
    try:
        yield
    except errors as error:
        raise UsageError(f"{prefix}{error}") from error


def out() -> Console:
    """Where results go: stdout."""
    return _console(for_results(sys.stdout))


def err() -> Console:
    """Where everything else goes: stderr."""
    return _console(for_remarks(sys.stderr))


def _console(file: TextIO) -> Console:
    # No markup: the text comes from users and may contain brackets.
    made = SafeConsole(file=file, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _WIDE
    return made


def say(renderable: RenderableType) -> None:
    """Print a result for people."""
    out().print(renderable)


def results() -> TextIO:
    """The stream for results, also while ``sys.stdout`` is redirected."""
    return for_results(_machine.get(None) or sys.stdout)


def say_json_line(value: Any) -> None:
    """Print one of many results for machines, on one line."""
    say_json(value, indent=None)


def say_json(value: Any, indent: int | None = 2) -> None:
    """Print a result for machines, and flush."""
    try:
        text = json.dumps(value, indent=indent, default=str, allow_nan=False)
    except (TypeError, ValueError):  # a message may hold values that JSON lacks
        text = json.dumps(_as_json(value), indent=indent, default=str)
    target = results()
    # json.dumps escapes all control characters but this one.
    target.write(text.replace("\x7f", "\\u007f") + "\n")
    target.flush()


def _as_json(value: Any) -> Any:
    """The value, with keys and numbers that JSON does not have as strings."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key if isinstance(key, str) else str(key): _as_json(one) for key, one in items}
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def note(text: str, *, style: str = "dim") -> None:
    """Print a remark on stderr."""
    err().print(Text(tidy(text), style=style), soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    _labelled("warning", "yellow", text)


def complain(text: str) -> None:
    """Print an error on stderr."""
    _labelled("error", "red", text)


def _labelled(label: str, style: str, text: str) -> None:
    line = Text.assemble((f"{label}:", f"bold {style}"), " ", tidy(text))
    err().print(line, soft_wrap=True)


def table(
    *columns: str, title: str | None = None, right: Sequence[str] = (), whole: Sequence[str] = ()
) -> Table:
    """A table in the style of all commands.

    The columns in ``right`` hold numbers. Those, and the ones in ``whole``, are not wrapped.
    """
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(
            column,
            header_style="dim",
            justify="right" if column in right else "left",
            no_wrap=column in right or column in whole,
            overflow="fold",
        )
    return made


def number_cell(number: float | None, style: str = "", form: str = ",") -> Text:
    """A number in a table: dim if it is 0, a dash if it is not known."""
    if number is None:
        return Text("–", "dim")
    return Text(format(number, form), style if number else "dim")


def fit(
    width: int,
    names: Sequence[Text],
    columns: Mapping[str, Sequence[Text]],
    least: Sequence[str],
    title: str,
) -> tuple[Table, list[str]]:
    """A table of names and numbers for a screen of ``width`` columns, and what was left out.

    What ``least`` names is left out first, one column after the other, until names have room.
    """

    def wide(title: str, cells: Sequence[Text]) -> int:
        return max([len(title), *(cell.cell_len for cell in cells)])

    shown, left_out = dict(columns), list[str]()
    longest = wide(title, names)

    def room() -> int:
        return width - sum(wide(one, cells) + _GAP for one, cells in shown.items())

    for one in least:
        if room() >= min(longest, _SHORT_NAME):
            break
        if one in shown:
            del shown[one]
            left_out.append(one)
    made = table(title, *shown, right=tuple(shown))
    made.columns[0].max_width = max(1, min(longest, room()))
    for row in zip(names, *shown.values(), strict=True):
        made.add_row(*row)
    return made, left_out


def mark(fine: bool | None) -> Text:
    """✓ for True, ✗ for False, ! for None."""
    if fine is None:
        return Text("!", "yellow")
    return Text("✓", "green") if fine else Text("✗", "red")


def plural(number: int, noun: str) -> str:
    """A number with its noun, in the singular or plural.

    Example:
        >>> plural(1, "dead letter"), plural(1200, "queue")
        ('1 dead letter', '1,200 queues')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@contextlib.contextmanager
def stdout_for_machines() -> Generator[None]:
    """Keep stdout for the result: what the application prints goes to stderr."""
    before = _machine.set(sys.stdout)
    try:
        with contextlib.redirect_stdout(for_remarks(sys.stderr)):
            yield
    finally:
        _machine.reset(before)


class ConsoleHandler(logging.Handler):
    """Prints log lines on stderr, above a live display."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        if console.is_terminal:
            self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        else:
            line = "%(asctime)s %(levelname)s %(name)s: %(message)s"
            self.setFormatter(logging.Formatter(line))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; failures are handled as logging's own handlers do."""
        try:
            text = tidy(self.format(record))
            style = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}.get(record.levelname)
            self.console.print(Text(text, style=style or "dim"), soft_wrap=True)
        except Exception:  # noqa: BLE001 - as logging's own handlers do
            self.handleError(record)


def json_logs(fields: Mapping[str, object]) -> None:
    """Print log records as JSON on stderr from now on, each with these fields.

    Handlers of the application that print to the terminal print JSON, too.
    """
    from matador.observe.logs import JsonFormatter

    root, formatter = logging.getLogger(), JsonFormatter(fields)
    for handler in root.handlers[:]:
        if isinstance(handler, ConsoleHandler):
            root.removeHandler(handler)
        elif isinstance(handler, logging.StreamHandler) and not isinstance(
            handler, logging.FileHandler
        ):
            cast("logging.StreamHandler[Any]", handler).setFormatter(formatter)
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter)
        root.addHandler(handler)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether to print a record. A command that connects once reports connection errors itself."""
    return record.name != "matador.transport"


def show_logs(level: int, console: Console | None = None) -> None:
    """Print log records from ``level`` up, unless the application has configured logging."""
    root = logging.getLogger()
    if not root.handlers:
        handler = ConsoleHandler(console or err())
        if level == logging.WARNING:
            handler.addFilter(_is_news)
        root.addHandler(handler)
        root.setLevel(level)
        logging.getLogger("asyncio").setLevel(max(level, logging.WARNING))
        detailed = level <= logging.DEBUG
        if detailed:  # otherwise their transports say when pika's connections are refused
            logging.getLogger("pika").setLevel(logging.INFO)
        logging.getLogger("aiobotocore").setLevel(logging.INFO if detailed else logging.WARNING)


# -- questions and progress -----------------------------------------------------------------------


def confirm(question: str, otherwise: str) -> None:
    """Ask for confirmation.

    Raises:
        typer.Exit: the answer was no. That is no failure.
        UsageError: there is no terminal to ask on; ``otherwise`` says what would have been done.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{otherwise}; add --yes to skip the confirmation")
    # An event loop would only note a Ctrl-C and keep waiting for the answer.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        err().print(f"{question}? [y/N] ", end="")
        answer = sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)
    if answer.strip().lower() not in ("y", "yes"):
        note("nothing was changed")
        raise typer.Exit


def working(text: str) -> AbstractContextManager[object]:
    """A spinner on a terminal; nothing elsewhere."""
    console = err()
    return console.status(text) if console.is_terminal else nullcontext()


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A progress display on a terminal, gone when it ends; nothing elsewhere."""
    console = err()
    return Progress(
        TextColumn("{task.description}"),
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def counting_progress(verb: str) -> Generator[Callable[[int, int], None]]:
    """A progress bar, as a function that takes the number done and the total."""
    with progress_bar(BarColumn(), MofNCompleteColumn()) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
