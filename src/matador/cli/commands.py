"""What all commands share: options, results, help with examples, and errors in one line.

A new command is a function with a docstring and annotated parameters::

    @jobs.add("matador jobs pause emails --provider redis://localhost")
    def pause(*, target: JobQueueOptions, common: Common) -> None:
        \"\"\"Stop all workers from getting jobs.\"\"\"
        target.run(common, lambda queue: queue.pause())
        common.show({"queue": target.queue, "paused": True}, f"{target.queue} is paused")
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import RenderableType
from rich.text import Text
from typer.core import TyperCommand, TyperGroup, TyperOption

from matador.cli.completion import names_of
from matador.cli.connection import connect, connected, imported
from matador.cli.output import (
    FAILED,
    INTERRUPTED,
    CommandError,
    complain,
    err,
    note,
    say,
    say_json,
    stdout_for_machines,
)
from matador.cli.receivers import look_at
from matador.cli.terminal import OutputError
from matador.errors import ConfigurationError, MatadorError
from matador.loading import Loaded, load_application
from matador.model.options import suggestion
from matador.observe.sources import Source
from matador.runtime.service import Service
from matador.storage.paths import local_path, remote_url
from matador.transports.base import Transport
from matador.transports.credentials import without_secrets

P = ParamSpec("P")
T = TypeVar("T")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# -- ways to declare an option --------------------------------------------------------------------


def option(metavar: str, help: str, *names: str, **settings: Any) -> Any:
    """An option with a value; without ``names`` it has the name of its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def flag(help: str, *names: str) -> Any:
    """An option without a value, which has no ``--no-…`` twin."""
    return typer.Option(*names, help=help)


def choice(metavar: str, help: str, name: str, values: Sequence[str]) -> Any:
    """An option whose value is one of ``values``; the shell completes it."""

    def check(given: str | None) -> str | None:
        if given is None or given in values:
            return given
        hint = suggestion(given, values)
        raise typer.BadParameter(f"{given!r} is not one of {', '.join(values)}{hint}")

    return option(metavar, help, name, callback=check, autocompletion=lambda: list(values))


def a_path(text: str) -> Path:
    """The path that an option gives."""
    try:
        return local_path(text, "the path")
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error


def a_location(text: str) -> str:
    """The path or the URL of a store that an option gives."""
    try:
        url = remote_url(text, "the path")
        return str(local_path(text, "the path") if url is None else url)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error


# -- options that several commands have -----------------------------------------------------------

App = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        help="The application: module:attribute or file.py[:attribute]. "
        "The attribute defaults to app.",
        show_default=False,
    ),
]
File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A file or a module, with what it has that receives: applications, job queues and "
        "workers, RPC servers, subscribers, queue services. FILE:name means one of them, "
        "FILE:one,two several.",
        show_default=False,
    ),
]
Wait = Annotated[
    float | None,
    option("SECONDS", "How long to try the first connection. Default: one attempt.", min=0.0),
]
Yes = Annotated[bool, flag("Do not ask for confirmation.", "--yes", "-y")]
DryRun = Annotated[bool, flag("Show what would be done; change nothing.", "--dry-run")]
UntilEmpty = Annotated[bool, flag("Stop when the queues are empty.", "--until-empty")]
Queue = Annotated[
    str | None,
    option("QUEUE", "Only this work queue.", "--queue", "-q", autocompletion=names_of("queues")),
]
Queues = Annotated[
    str | None,
    option(
        "NAMES",
        "Queues to consume, separated by commas. Default: consume_from.",
        autocompletion=names_of("queues", several=True),
    ),
]
Concurrency = Annotated[
    int | None, option("N", "Messages of each queue handled at once, per worker.", min=1)
]
OptionalApp = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP]",
        help="The application, if there is one: payloads are checked against its events.",
        show_default=False,
    ),
]
AppOrQueue = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        help="The application or the job queue: module:attribute or file.py[:attribute]. "
        "The attribute defaults to app.",
        show_default=False,
    ),
]
Event = Annotated[
    str | None, option("KEY", "Only this event.", "--event", autocompletion=names_of("events"))
]
Subscriber = Annotated[
    str | None,
    option("NAME", "Only this subscriber.", "--subscriber", autocompletion=names_of("subscribers")),
]
_ID = option("ID", "An id, or the start of one. Can be repeated.", "--id")
Ids = Annotated[list[str] | None, _ID]
RequiredIds = Annotated[list[str], _ID]
All = Annotated[bool, flag("Everything, without a filter.", "--all")]
Limit = Annotated[int | None, option("N", "At most this many.", "--limit", min=1)]
Timeout = Annotated[float, option("SECONDS", "Give up after this many seconds.", min=0.001)]
JournalFolder = Annotated[
    Path, option("FOLDER", "The journal's folder.", "--journal", parser=a_path)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The options that every command has."""

    as_json: Annotated[bool, flag("Print the result as JSON on stdout.", "--json")] = False
    verbose: Annotated[
        bool, flag("Print more log lines, and tracebacks of errors.", "--verbose", "-v")
    ] = False

    def load(self, app: str, level: int = logging.WARNING) -> Loaded:
        """The application that the command is about. See ``connection.imported``."""
        return imported(lambda: load_application(app), self.level(level))

    def level(self, level: int = logging.WARNING) -> int:
        """The level of the log records to print: all of them with ``--verbose``."""
        return logging.DEBUG if self.verbose else level

    def show(self, value: Any, *for_people: RenderableType, remark: str = "") -> None:
        """Print the result: ``value`` with ``--json``, otherwise the form for people."""
        if self.as_json:
            say_json(value)
            return
        for one in for_people:
            say(one)
        if remark:
            note(remark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connecting(Common):
    """The options of commands that connect to a broker."""

    wait: Wait = None

    def sources(self, file: str) -> list[Source]:
        """What the command looks at. See ``receivers.look_at``."""
        return look_at(file, self.level())

    def connected(self, seen: Sequence[Source]) -> AbstractAsyncContextManager[None]:
        queues = [one.jobs for one in seen if one.jobs is not None]
        return connected([one.service for one in seen], self.wait, queues)

    def reach(self, *services: Service) -> None:
        """With ``--wait``, for commands that connect later: wait until the brokers answer.

        Raises:
            ConnectionFailedError: one of them cannot be reached in that time.
        """

        async def once(transports: Iterable[Transport], wait: float) -> None:
            for one in transports:
                await connect(one, wait)
                await one.disconnect()

        if self.wait is not None:
            asyncio.run(once(dict.fromkeys(one.transport for one in services), self.wait))


# -- commands and groups --------------------------------------------------------------------------


def _tidy(params: list[Any]) -> list[Any]:
    """Remove what Typer adds to the help: ``<bool>`` beside flags, ``<str>`` beside names."""
    for param in params:
        if isinstance(param, TyperOption):
            if param.is_flag and param.metavar is None:
                param.metavar = ""
        else:
            param.display_type_rich = lambda ctx: None  # pyright: ignore[reportUnknownLambdaType]
    return params


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _tidy(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


class _Group(TyperGroup):
    default: str | None = None
    """The command to run if the command line names none."""

    def get_params(self, ctx: Any) -> Any:
        return _tidy(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args[:1] and (args[0] in self.commands or args[0] in ctx.help_option_names)
        completing = ctx.resilient_parsing and not args  # the names of the commands
        if self.default is not None and not named and not completing:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


class Commands(typer.Typer):
    """A group of commands. ``default``: the command to run if the command line names none."""

    def __init__(self, help: str, *, default: str | None = None, **settings: Any) -> None:
        kind = type("_Group", (_Group,), {"default": default})
        super().__init__(cls=kind, help=help, no_args_is_help=default is None, **settings)
        self.callback()(lambda: None)  # a group, even if it has one command

    def add(
        self, *examples: str, name: str | None = None
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Add a command. A parameter of a dataclass's type takes its fields as options."""

        def register(command: Callable[P, T]) -> Callable[P, T]:
            run = _reported(_with_fields_as_options(command))
            help = _reflowed(command.__doc__ or "")
            self.command(name, cls=_Command, help=help, epilog=epilog(*examples))(run)
            return command

        return register


def epilog(*examples: str) -> str:
    """The end of a help text: how the command is used."""
    listed = "\n\n".join(f"  [cyan]{line.replace('[', chr(92) + '[')}[/cyan]" for line in examples)
    title = "Example" if len(examples) == 1 else "Examples"
    return f"[bold]{title}[/bold]\n\n{listed}"


def _reflowed(text: str) -> str:
    """A docstring with one line per paragraph: the help breaks lines to fit the terminal."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _with_fields_as_options(command: Callable[..., T]) -> Callable[..., T]:
    """The command with the fields of its dataclass parameters in place of the parameters."""
    groups: dict[str, tuple[type[Any], list[str]]] = {}

    def expanded() -> Iterator[inspect.Parameter]:
        for one in inspect.signature(command, eval_str=True).parameters.values():
            if is_dataclass(one.annotation) and isinstance(one.annotation, type):
                fields = inspect.signature(one.annotation, eval_str=True).parameters.values()
                groups[one.name] = (one.annotation, [field.name for field in fields])
                yield from fields
            else:
                yield one

    parameters = list(expanded())

    @wraps(command)
    def run(**given: Any) -> T:
        made = {
            name: group(**{field: given.pop(field) for field in fields})
            for name, (group, fields) in groups.items()
        }
        return command(**given, **made)

    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _reported(command: Callable[..., T]) -> Callable[..., T]:
    """The command, with errors as one line and an exit code; ``--verbose`` adds a traceback."""

    @wraps(command)
    def run(**given: Any) -> T:
        verbose: bool = given["verbose"]
        try:
            with stdout_for_machines() if given["as_json"] else contextlib.nullcontext():
                return command(**given)
        except (CommandError, MatadorError, OutputError) as error:
            _fail(str(error), error.code if isinstance(error, CommandError) else FAILED, verbose)
        except KeyboardInterrupt as error:
            more = f"; {error}" if str(error) else ""
            _fail(f"interrupted{more}", INTERRUPTED, verbose=False)
        except (typer.Exit, BrokenPipeError, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the last line of defence
            if isinstance(error, asyncio.CancelledError) and not error.args:
                # What asyncio raises if it is interrupted at the moment at which it begins to run.
                _fail("interrupted", INTERRUPTED, verbose=False)
            if (message := spark_message(error) or _file_message(error)) is None:
                hint = "" if verbose else " (run with --verbose for the traceback)"
                message = f"unexpected {type(error).__name__}: {error}{hint}"
            _fail(message, FAILED, verbose)

    return run


def spark_message(error: BaseException) -> str | None:
    """What an error of Spark says, in one line; None if it is not Spark's."""
    if "pyspark" not in sys.modules:
        return None
    from matador.spark.runtime.messages import spark_error

    return spark_error(error)


def _file_message(error: BaseException) -> str | None:
    """What is wrong with a file, in one line, for errors that the user can fix."""
    if not isinstance(error, OSError):
        return None
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    first, *causes = _COLOUR.sub("", str(error)).splitlines() or [""]
    if "LocalFileSystem" not in first:
        return None
    return ": ".join(line.strip(" ↳") for line in causes or [first])  # of delta-rs


def _fail(text: str, code: int, verbose: bool) -> NoReturn:
    if verbose:
        import traceback

        err().print(Text(without_secrets(traceback.format_exc().rstrip()), style="dim"))
    complain(text)
    raise typer.Exit(code)
