"""Reports about a lake: printed as tables, or written as an HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from matador.observe.paths import local_path
from matador.spark.report.findings import Findings
from matador.spark.report.html import page
from matador.spark.report.terminal import tables
from matador.spark.runtime.files import private_file


@dataclass(frozen=True, slots=True)
class Report:
    """A report about a lake.

    Example:
        >>> lake.report().show()
        >>> lake.report().html("report.html")
    """

    findings: Findings

    def show(self, console: Console | None = None) -> None:
        """Print it as tables."""
        chosen = console or Console(highlight=False, markup=False, emoji=False)
        for table in tables(self.findings):
            chosen.print(table)

    def html(self, path: str | Path) -> Path:
        """Write it as one self-contained page; returns the path.

        A new file is readable by its owner alone.
        """
        target = local_path(path, "report")
        with private_file(target) as file:
            file.write(page(self.findings).encode("utf-8", "replace"))
        return target
