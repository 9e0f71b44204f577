"""``manage.py matador_worker``: ``matador worker`` for the application of the settings."""

from __future__ import annotations

import logging
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from matador.cli.commands import Common
from matador.cli.connection import imported
from matador.cli.output import CommandError as CliError
from matador.cli.worker import WorkersFailed, work
from matador.django import application
from matador.errors import MatadorError


class Command(BaseCommand):
    """Consumes queues and runs subscribers until Ctrl-C or SIGTERM."""

    help = "Consume the queues of settings.MATADOR_APP and run its subscribers, until Ctrl-C."

    def add_arguments(self, parser: Any) -> None:
        """The options of ``matador worker``."""
        parser.add_argument("--queues", help="Queues to consume, separated by commas.")
        parser.add_argument("--processes", type=int, default=1, help="Number of processes.")
        parser.add_argument("--concurrency", type=int, help="Messages of each queue at once.")
        parser.add_argument("--json", action="store_true", help="Print counts as JSON lines.")
        parser.add_argument("--process", type=int, help="Which process this is (internal).")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker."""
        common = Common(as_json=options["json"], verbose=options["verbosity"] > 1)
        line = [sys.executable, sys.argv[0], "matador_worker"]
        line += [f"--settings={options['settings']}"] if options.get("settings") else []
        try:
            work(
                imported(application, common.level(logging.INFO)),
                line,
                options["queues"],
                options["processes"],
                options["concurrency"],
                options["process"],
                common,
            )
        except (MatadorError, CliError) as error:
            raise CommandError(str(error)) from error
        except WorkersFailed as error:
            raise SystemExit(error.exit_code) from error
