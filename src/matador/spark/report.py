"""``Report``: the findings of a lake, printed as tables or written as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from matador.spark.findings import Findings
from matador.spark.report_html import page
from matador.spark.report_tables import tables


@dataclass(frozen=True, slots=True)
class Report:
    """A report of a lake.

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
        """Write it as one page that needs nothing else; where it is."""
        target = Path(path)
        target.write_text(page(self.findings), encoding="utf-8")
        return target
