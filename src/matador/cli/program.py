"""Assembles the commands and runs them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Generator, Sequence
from typing import Annotated

import typer

import matador
from matador.cli.commands import Commands, epilog
from matador.cli.completion import join_bash_words
from matador.cli.dashboard import dashboard
from matador.cli.docs import docs, schema
from matador.cli.doctor import channels, doctor
from matador.cli.jobs import jobs
from matador.cli.journal import journal
from matador.cli.lake import lake
from matador.cli.messages import dead_letters, messages
from matador.cli.output import EXIT_CODES, FAILED, INTERRUPTED, TERMINATED, complain
from matador.cli.queues import queues
from matador.cli.send import send
from matador.cli.send_test_event import run as run_event
from matador.cli.send_test_event import send_test_event
from matador.cli.spark import spark
from matador.cli.tail import tail
from matador.cli.terminal import OutputError, flush_streams, prepare_streams
from matador.cli.top import top
from matador.cli.topology import topology
from matador.cli.worker import worker

_HELP = f"""Send and handle messages over the broker you already run, with no message lost.

Exit codes: {"; ".join(f"{code} {meaning.replace(';', ',')}" for code, meaning in EXIT_CODES)}.

Results go to stdout, everything else to stderr.
"""

program = Commands(
    _HELP,
    name="matador",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"matador {matador.__version__}")
        raise typer.Exit


@program.callback(
    epilog=epilog(
        "matador worker shop.py",
        'matador send shop.py order.placed \'{"order_id": "1", "amount": 5}\'',
        "matador queues shop.py",
    )
)
def start(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options of the program itself."""


program.add(
    "matador worker shop.py",
    "matador worker shop.py:app,emails --queues events,billing --processes 4",
    "matador worker shop.py --reload",
)(worker)
program.add(
    'matador send shop.py order.placed \'{"order_id": "1", "amount": 5}\' --delay 30',
    "matador send shop.py event.json --dry-run",
)(send)
program.add(
    'matador run shop.py order.placed \'{"order_id": "1", "amount": 5}\'',
    "matador run shop.py event.json",
    name="run",
)(run_event)
program.add(
    "matador send-test-event shop.py",
    "matador send-test-event shop.py --event order.placed --verbose",
)(send_test_event)
program.add("matador tail shop.py", "matador tail shop.py --event order.placed --failed --json")(
    tail
)
program.add("matador top shop.py", "matador top shop.py --once --json")(top)
program.add("matador doctor shop.py")(doctor)
program.add(
    "matador docs shop.py --output asyncapi.json",
    "matador docs shop.py --format html --output events.html",
)(docs)
program.add(
    "matador dashboard shop.py",
    "matador dashboard shop.py --history history.db --mask card_number",
    "matador dashboard shop.py --host 0.0.0.0 --token-file token --allowed-host shop.example.com",
)(dashboard)
for group, name in (
    (queues, "queues"),
    (messages, "messages"),
    (dead_letters, "dead-letters"),
    (topology, "topology"),
    (schema, "schema"),
    (jobs, "jobs"),
    (channels, "channels"),
    (journal, "journal"),
    (lake, "lake"),
    (spark, "spark"),
):
    program.add_typer(group, name=name)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    prepare_streams()
    terminated = threading.Event()
    try:
        with _interrupted_by_sigterm(terminated):
            code = _run(arguments)
    except KeyboardInterrupt:  # before, after or beside the command
        complain("interrupted")
        code = INTERRUPTED
    unwritten = flush_streams()
    if code == 0 and unwritten is not None:
        code = FAILED
        if not isinstance(unwritten, BrokenPipeError):
            complain(str(OutputError(unwritten)))
    return TERMINATED if code == INTERRUPTED and terminated.is_set() else code


def _run(arguments: Sequence[str]) -> int:
    try:
        if os.environ.get("_MATADOR_COMPLETE") == "complete_bash":
            join_bash_words()
        command = typer.main.get_command(program)
        code = command.main(list(arguments), prog_name="matador", standalone_mode=False)
    except typer.exceptions.TyperException as error:
        if said := _one_line(error):  # empty if the help was shown instead
            complain(said)
        return getattr(error, "exit_code", FAILED)
    except (typer.Abort, KeyboardInterrupt):  # the latter outside of the command
        complain("interrupted")
        return INTERRUPTED
    except SystemExit as exit_:  # completion ends like this
        code = exit_.code
    except BrokenPipeError:  # the reader of our output has stopped reading
        return FAILED
    except OSError as error:  # of the help: commands report errors of their own
        if error.filename is not None:
            raise
        complain(str(OutputError(error)))
        return FAILED
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _interrupted_by_sigterm(terminated: threading.Event) -> Generator[None]:
    """Treat SIGTERM like Ctrl-C, so that every command shuts down cleanly; sets ``terminated``.

    May raise ``KeyboardInterrupt`` itself, at its beginning and at its end.
    """

    def interrupt(number: int, frame: object) -> None:
        terminated.set()
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)  # its handler knows what to do
        else:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _one_line(error: Exception) -> str:
    describe = getattr(error, "format_message", None)
    return " ".join(str(describe() if callable(describe) else error).split())
