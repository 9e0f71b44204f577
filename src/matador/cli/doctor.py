"""``matador doctor``: checks everything an application needs, and says what to fix."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace

import typer
from rich.text import Text

from matador.cli.checks import (
    Check,
    as_checks,
    check_broker,
    check_fit,
    check_machine,
    check_schema,
)
from matador.cli.commands import App, AsJson, Verbose
from matador.cli.connection import load, missing_file, run_within
from matador.cli.output import FAILED, CommandError, UsageError, mark, plural, say, say_json, table
from matador.events.app import Matador
from matador.transports.base import LocalStorage
from matador.transports.credentials import without_secrets

_FINE = {"ok": True, "warning": None, "problem": False}
_PATIENCE = 30.0


def doctor(app: App, *, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Check the application, its broker and this machine, and say what to fix.

    ✓ is fine, ! is a warning, ✗ is a problem. Exits with 1 if there is a problem. Creates nothing.
    """
    checks = list(check_machine())
    try:
        target = load(app, verbose, level=logging.CRITICAL).app
    except UsageError:
        raise
    except CommandError as error:
        if verbose:
            raise
        checks.append(
            Check("application", "problem", str(error), "run with --verbose for the traceback")
        )
    else:
        checks.append(Check("application", "ok", f"{app} loads"))
        checks += [*check_schema(target), *check_fit(target)]
        checks += run_within(_check_transport(target), _PATIENCE, "the check")
    _show(checks, as_json)
    if any(one.status == "problem" for one in checks):
        raise typer.Exit(FAILED)


async def _check_transport(app: Matador) -> list[Check]:
    transport = app.transport
    if transport.capabilities.in_process:
        text = "messages live inside each process and are lost when it ends"
        return [Check("transport", "warning", text, "use another transport in production")]
    checks: list[Check] = []
    if isinstance(transport, LocalStorage):
        checks += as_checks(await asyncio.to_thread(transport.examine_storage))
        if missing_file(app) is not None or any(one.status == "problem" for one in checks):
            return checks
    checks += [check async for check in check_broker(app)]
    return checks


def _show(checks: list[Check], as_json: bool) -> None:
    checks = [
        replace(one, text=without_secrets(one.text), fix=without_secrets(one.fix)) for one in checks
    ]
    numbers = Counter(one.status for one in checks)
    if as_json:
        listed = [
            {
                "name": one.name,
                "status": one.status,
                "text": one.text,
                "fix": one.fix or None,
            }
            for one in checks
        ]
        say_json({"ok": not numbers["problem"], "checks": listed})
        return
    made = table("", "", "")
    made.show_header = False
    for one in checks:
        said = Text(one.text)
        if one.fix:
            said.append(f"\n→ {one.fix}", "dim")
        made.add_row(mark(_FINE[one.status]), one.name, said)
    say(made)
    found = [
        plural(numbers[status], status) for status in ("problem", "warning") if numbers[status]
    ]
    say(Text(", ".join(found) if found else "everything is fine", "bold"))
