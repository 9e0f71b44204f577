"""The report of a lake, as the page that ``matador lake report --html`` writes."""

from __future__ import annotations

from matador.spark import Lake
from matador.spark.report.html import page


def report_page(lake: Lake) -> str:
    """The whole page, made now. Blocks."""
    return page(lake.report().findings)
