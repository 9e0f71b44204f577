"""``matador channels``: checks the settings of a queue service."""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from matador.cli.commands import Commands, Connecting, flag
from matador.cli.output import table, warn
from matador.transports.credentials import without_secrets

if TYPE_CHECKING:
    from matador.channels import Settings

channels = Commands("Check the settings of a queue service with channels.")

_File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="The TOML file. Without it, only environment variables count.",
        show_default=False,
    ),
]


@channels.add(
    "matador channels check matador.toml", "matador channels check matador.toml --connect"
)
def check(
    file: _File = None,
    *,
    connect: Annotated[bool, flag("Also connect to the broker.", "--connect")] = False,
    common: Connecting,
) -> None:
    """Check a settings file and the MATADOR_ variables, and show the settings in effect."""
    from matador.channels import RedisModeWarning, Settings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RedisModeWarning)
        settings = Settings.load(file)
    if connect:
        asyncio.run(_connect(settings, common.wait or 0.0))
    found = _as_json(settings)
    lines = table("setting", "value")
    for section, values in found.items():
        for name, value in values.items():
            lines.add_row(f"{section}.{name}", "" if value is None else str(value))
    remark = "the settings are valid" + (", and the broker answers" if connect else "")
    common.show(found, lines, remark=remark)
    for one in caught:
        warn(str(one.message))


async def _connect(settings: Settings, wait: float) -> None:
    from matador.channels import QueueService

    async with QueueService(settings, connect_timeout=wait):
        pass


def _as_json(settings: Settings) -> dict[str, dict[str, object]]:
    """The settings by section, without passwords."""
    found: dict[str, dict[str, object]] = {}
    for one in fields(settings):
        section = getattr(settings, one.name)
        found[one.name] = {field.name: getattr(section, field.name) for field in fields(section)}
    found["queue"]["url"] = without_secrets(settings.queue.url)
    return found
