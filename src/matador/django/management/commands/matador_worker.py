"""``manage.py matador_worker``: ``matador worker`` for the application of the settings."""

from __future__ import annotations

import logging
import sys
from argparse import SUPPRESS
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from matador.cli.commands import Common
from matador.cli.connection import imported
from matador.cli.observing import LOG_FORMATS, Observing
from matador.cli.output import CommandError as CliError
from matador.cli.receivers import Found, to_run
from matador.cli.reload import Reloading, WorkersFailed
from matador.cli.worker import Working, reload, work
from matador.django import application
from matador.errors import MatadorError
from matador.observe.endpoint import LOOPBACK


class Command(BaseCommand):
    """Consumes queues and runs subscribers until Ctrl-C or SIGTERM."""

    help = "Consume the queues of settings.MATADOR_APP and run its subscribers, until Ctrl-C."

    def add_arguments(self, parser: Any) -> None:
        """The options of ``matador worker``."""
        parser.add_argument("--queues", help="Queues to consume, separated by commas.")
        parser.add_argument("--processes", type=int, default=1, help="Number of processes.")
        parser.add_argument("--concurrency", type=int, help="Messages of each queue at once.")
        parser.add_argument("--wait", type=float, help="Seconds to try the first connection.")
        parser.add_argument("--json", action="store_true", help="Print counts as JSON lines.")
        parser.add_argument("--process", type=int, help="Which process this is (internal).")
        parser.add_argument(
            "--metrics-port",
            type=_port,
            help="Serve /metrics, /health/live and /health/ready over HTTP. With --processes, "
            "process N gets the port PORT + N - 1.",
        )
        parser.add_argument(
            "--metrics-host", default=LOOPBACK, help="The address to serve them on."
        )
        parser.add_argument(
            "--log-format",
            choices=LOG_FORMATS,
            default="human",
            help="Log lines for people, or as JSON.",
        )
        parser.add_argument(
            "--reload", action="store_true", help="Restart when a source file changes."
        )
        parser.add_argument(
            "--reload-folder", action="append", type=Path, help="Watch this folder too."
        )
        for internal in ("--with-parent", "--verbose"):  # of processes that this one starts
            parser.add_argument(internal, action="store_true", help=SUPPRESS)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker."""
        common = Common(
            as_json=options["json"], verbose=options["verbose"] or options["verbosity"] > 1
        )
        observing = Observing(
            metrics_port=options["metrics_port"],
            metrics_host=options["metrics_host"],
            log_format=options["log_format"],
        )
        reloading = Reloading(
            reload=options["reload"],
            reload_folders=options["reload_folder"],
            with_parent=options["with_parent"],
        )
        working = Working(
            queues=options["queues"],
            concurrency=options["concurrency"],
            wait=options["wait"],
            process=options["process"],
        )
        line = [sys.executable, sys.argv[0], "matador_worker"]
        line += [f"--settings={options['settings']}"] if options.get("settings") else []
        processes = options["processes"]
        try:
            if reload(line, sys.argv[0], processes, working, reloading, observing, common):
                return
            app = imported(application, common.level(logging.INFO))
            found = Found("settings.MATADOR_APP", sys.modules[__name__], {"app": app}, named=True)
            work(to_run(found, working.queues), line, processes, working, observing, common)
        except (MatadorError, CliError) as error:
            raise CommandError(str(error)) from error
        except WorkersFailed as error:
            raise SystemExit(error.exit_code) from error


def _port(text: str) -> int:
    number = int(text)
    if not 0 < number < 1 << 16:
        raise ValueError
    return number
