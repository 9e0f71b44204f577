"""How commands are declared: the options they share, help with examples, errors in one line."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup, TyperOption

from matador.cli.output import (
    FAILED,
    INTERRUPTED,
    CommandError,
    complain,
    err,
    stdout_for_machines,
)
from matador.cli.spark_session import spark_message
from matador.errors import ConfigurationError, MatadorError
from matador.observe.paths import local_path
from matador.transports.credentials import without_secrets

P = ParamSpec("P")
T = TypeVar("T")

# -- options that many commands share -------------------------------------------------------------

App = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        help="The application: module:attribute or file.py[:attribute]. "
        "The attribute defaults to app.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print more log lines, and tracebacks of errors.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
Queue = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="QUEUE", help="Only this work queue.")
]
Event = Annotated[str | None, typer.Option("--event", metavar="KEY", help="Only this event.")]
Subscriber = Annotated[
    str | None, typer.Option("--subscriber", metavar="NAME", help="Only this subscriber.")
]
_ID = typer.Option("--id", metavar="ID", help="An id, or the start of one. Can be repeated.")
Ids = Annotated[list[str] | None, _ID]
RequiredIds = Annotated[list[str], _ID]
All = Annotated[bool, typer.Option("--all", help="Everything, without a filter.")]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="At most this many.")
]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.001, help="Give up after this many seconds.")
]


def a_path(text: str) -> Path:
    """The path that an option gives."""
    try:
        return local_path(text, "the path")
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error


JournalFolder = Annotated[
    Path,
    typer.Option("--journal", metavar="FOLDER", parser=a_path, help="The journal's folder."),
]
LakeFolder = Annotated[
    Path, typer.Option("--lake", metavar="FOLDER", parser=a_path, help="The lake's folder.")
]

# -- commands and groups ----------------------------------------------------------------------


def _tidy(params: list[Any]) -> list[Any]:
    """Leave out what Typer adds to the help: ``<bool>`` beside flags, ``<str>`` beside names."""
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
    def get_params(self, ctx: Any) -> Any:
        return _tidy(super().get_params(ctx))


class Commands(typer.Typer):
    """A group of commands."""

    def __init__(self, help: str, **settings: Any) -> None:
        super().__init__(cls=_Group, help=help, no_args_is_help=True, **settings)
        self.callback()(lambda: None)  # a group, even if it has one command

    def add(
        self, *examples: str, name: str | None = None
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Add a command. A parameter of a dataclass's type takes its fields as options."""

        def register(command: Callable[P, T]) -> Callable[P, T]:
            run = _with_fields_as_options(_reported(command))
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


def _reported(command: Callable[P, T]) -> Callable[P, T]:
    """A command whose errors become one line and an exit code; ``--verbose`` adds a traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        verbose = kwargs.get("verbose") is True
        machine = kwargs.get("as_json") is True
        try:
            with stdout_for_machines() if machine else contextlib.nullcontext():
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
            if (message := spark_message(error)) is None:
                hint = "" if verbose else " (run with --verbose for the traceback)"
                message = f"unexpected {type(error).__name__}: {error}{hint}"
            _fail(message, FAILED, verbose)

    return run


def _fail(text: str, code: int, verbose: bool) -> NoReturn:
    if verbose:
        import traceback

        err().print(Text(without_secrets(traceback.format_exc().rstrip()), style="dim"))
    complain(text)
    raise typer.Exit(code)
