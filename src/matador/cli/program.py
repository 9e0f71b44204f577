"""Puts the commands together and runs them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

import matador
from matador.cli.dead_letters import dead_letters
from matador.cli.doctor import doctor
from matador.cli.journal import journal
from matador.cli.lake import lake
from matador.cli.options import examples
from matador.cli.output import FAILED, INTERRUPTED, TERMINATED, complain
from matador.cli.queues import queues
from matador.cli.send import send
from matador.cli.spark import spark
from matador.cli.topology import topology
from matador.cli.trial import send_test_event
from matador.cli.worker import worker

program = typer.Typer(
    name="matador",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"matador {matador.__version__}")
        raise typer.Exit


@program.callback(
    epilog=examples(
        "matador worker shop.py",
        'matador send shop.py order.placed \'{"order_id": "1", "amount": 5}\'',
        "matador queues shop.py",
    )
)
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which one.")
    ] = False,
) -> None:
    """Events over the broker you already run, with no message lost.

    Exit codes: 0 fine, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 by SIGTERM.

    Results go to stdout, all else to stderr.
    """


program.command(
    epilog=examples(
        "matador worker shop.py",
        "matador worker shop.app:application --queues events,billing --processes 4",
    )
)(worker)
program.command(
    epilog=examples(
        'matador send shop.py order.placed \'{"order_id": "1", "amount": 5}\' --delay 30',
        "matador send shop.py event.json --dry-run",
    )
)(send)
program.command(
    epilog=examples(
        "matador send-test-event shop.py",
        "matador send-test-event shop.py --event order.placed --verbose",
    )
)(send_test_event)
program.add_typer(topology, name="topology")
program.command(epilog=examples("matador queues shop.py", "matador queues shop.py --watch"))(queues)
program.add_typer(dead_letters, name="dead-letters")
program.command(epilog=examples("matador doctor shop.py"))(doctor)
program.add_typer(journal, name="journal")
program.add_typer(lake, name="lake")
program.add_typer(spark, name="spark")


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows no ✓ must not end a command
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with _terminated() as terminated:
        code = _run(arguments)
        return TERMINATED if code == INTERRUPTED and terminated.is_set() else code


def _run(arguments: Sequence[str]) -> int:
    command = typer.main.get_command(program)
    try:
        code = command.main(list(arguments), prog_name="matador", standalone_mode=False)
    except typer.exceptions.TyperException as error:
        if said := _one_line(error):  # nothing, where the help was shown instead
            complain(said)
        return getattr(error, "exit_code", FAILED)
    except typer.Abort:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _terminated() -> Generator[threading.Event]:
    """SIGTERM interrupts like Ctrl-C, so that every command ends in good order; was there one?"""
    terminated = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        terminated.set()
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)  # whoever listens to it knows what to do
        else:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield terminated
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, before)


def _one_line(error: Exception) -> str:
    describe = getattr(error, "format_message", None)
    return " ".join(str(describe() if callable(describe) else error).split())
