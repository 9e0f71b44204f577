"""What commands print and how they fail: consoles, JSON, one-line errors, logs."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import math
import sys
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TextIO, TypeVar, cast

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from matador.cli.safe_text import SafeConsole, tidy
from matador.errors import MatadorError
from matador.transports.credentials import without_secrets

P = ParamSpec("P")
T = TypeVar("T")

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
TERMINATED = 143

_WIDE = 200  # columns where there is no terminal, so that tables are not cut
# With --json, stdout as it was: whatever the application prints goes to stderr meanwhile.
_machine: ContextVar[TextIO] = ContextVar("_machine")


class CommandError(Exception):
    """A command cannot do what it was asked to; the message is for its user."""

    code = FAILED


class UsageError(CommandError):
    """What was asked for cannot be meant."""

    code = WRONG_USAGE


def out() -> Console:
    """Where results go: stdout."""
    return _console(sys.stdout)


def err() -> Console:
    """Where everything else goes: stderr."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    # No markup: what is printed comes from users, and may have brackets.
    made = SafeConsole(file=file, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _WIDE
    return made


def say(renderable: RenderableType) -> None:
    """Print a result for people."""
    out().print(renderable)


def say_json(value: Any) -> None:
    """Print a result for machines."""
    _write_json(value, indent=2)


def say_json_line(value: Any) -> None:
    """Print one of many results for machines, at once."""
    _write_json(value, indent=None)


def results() -> TextIO:
    """Where results go, whatever stdout stands for meanwhile."""
    return _machine.get(None) or sys.stdout


def _write_json(value: Any, indent: int | None) -> None:
    try:
        text = json.dumps(value, indent=indent, default=str, allow_nan=False)
    except (TypeError, ValueError):  # a message may hold what JSON has no word for
        text = json.dumps(_as_json(value), indent=indent, default=str)
    target = results()
    # json.dumps escapes all control characters but this one.
    target.write(text.replace("\x7f", "\\u007f") + "\n")
    target.flush()


def _as_json(value: Any) -> Any:
    """The value with the keys and numbers that JSON lacks as strings."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key if isinstance(key, str) else str(key): _as_json(one) for key, one in items}
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def note(text: str, *, style: str = "dim") -> None:
    """Say something beside the result."""
    err().print(Text(tidy(text), style=style), soft_wrap=True)


def warn(text: str) -> None:
    """Say what is worth a look."""
    _labelled("warning", "yellow", text)


def complain(text: str) -> None:
    """Say why it did not work."""
    _labelled("error", "red", text)


def _labelled(label: str, style: str, text: str) -> None:
    line = Text.assemble((f"{label}:", f"bold {style}"), " ", tidy(text))
    err().print(line, soft_wrap=True)


def table(*columns: str, title: str | None = None, right: tuple[str, ...] = ()) -> Table:
    """A table as all commands draw theirs; the columns in ``right`` hold numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        numbers = column in right
        made.add_column(
            column,
            header_style="dim",
            justify="right" if numbers else "left",
            no_wrap=numbers,
            overflow="fold",
        )
    return made


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    Example:
        >>> plural(1, "dead letter"), plural(1200, "queue")
        ('1 dead letter', '1,200 queues')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def reported(command: Callable[P, T]) -> Callable[P, T]:
    """A command whose errors become one line and an exit code; ``--verbose`` shows where from."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        verbose = kwargs.get("verbose") is True
        try:
            if kwargs.get("as_json") is not True:
                return command(*args, **kwargs)
            with _stdout_for_machines():
                return command(*args, **kwargs)
        except CommandError as error:
            _fail(str(error), error.code, verbose)
        except MatadorError as error:
            _fail(str(error), FAILED, verbose)
        except KeyboardInterrupt as error:
            more = f"; {error}" if str(error) else ""
            _fail(f"interrupted{more}", INTERRUPTED, verbose=False)
        except (typer.Exit, BrokenPipeError, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the last line of defence
            more = "" if verbose else " (--verbose shows where)"
            _fail(f"unexpected {type(error).__name__}: {error}{more}", FAILED, verbose)

    run.__doc__ = _reflowed(command.__doc__ or "")
    return run


@contextlib.contextmanager
def _stdout_for_machines() -> Generator[None]:
    before = _machine.set(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _machine.reset(before)


def _reflowed(text: str) -> str:
    """A docstring whose paragraphs are one line each: the help breaks them where it must."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _fail(text: str, code: int, verbose: bool) -> NoReturn:
    if verbose:
        import traceback

        err().print(Text(without_secrets(traceback.format_exc().rstrip()), style="dim"))
    complain(text)
    raise typer.Exit(code)


class ConsoleHandler(logging.Handler):
    """Log lines on stderr, above whatever is displayed there."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        if console.is_terminal:
            self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        else:
            line = "%(asctime)s %(levelname)s %(name)s: %(message)s"
            self.setFormatter(logging.Formatter(line))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; one that cannot be printed is reported the way logging does."""
        try:
            text = tidy(self.format(record))
            style = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}.get(record.levelname)
            self._console.print(Text(text, style=style or "dim"), soft_wrap=True)
        except Exception:  # noqa: BLE001 - as logging's own handlers do
            self.handleError(record)


def show_logs(level: int, console: Console | None = None) -> None:
    """Show log records from ``level`` on, unless the application has set up logging itself."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(ConsoleHandler(console or err()))
        root.setLevel(level)
        logging.getLogger("asyncio").setLevel(max(level, logging.WARNING))
        # Client libraries log what is translated, and told, anyway; they are heard when asked for.
        detailed = level <= logging.DEBUG
        logging.getLogger("pika").setLevel(logging.INFO if detailed else logging.CRITICAL)
