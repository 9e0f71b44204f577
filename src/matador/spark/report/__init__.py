"""Reports about a lake: printed as tables, or written as an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from matador.charts.markup import printable, titled
from matador.charts.svg import duration
from matador.spark.report.findings import Findings, SubscriberHealth
from matador.spark.report.html import page
from matador.storage.files import private_file
from matador.storage.paths import local_path

_FEW = 5
_MANY = 20
_LONGEST = 100
_HEALTH: dict[str, Callable[[SubscriberHealth], str]] = {
    "attempts": lambda one: f"{one.count:,}",
    "success": lambda one: f"{one.success_rate:.1%}",
    "retry": lambda one: f"{one.retry_rate:.1%}",
    "dead": lambda one: f"{one.dead_letter_rate:.1%}",
    "run p50": lambda one: duration(one.duration_p50),
    "run p95": lambda one: duration(one.duration_p95),
    "run p99": lambda one: duration(one.duration_p99),
    "wait p95": lambda one: duration(one.wait_p95),
}
_LEFT_OUT = ((110, "run p50"), (100, "run p99"), (80, "attempts"), (70, "retry"))
"""The columns that are left out on narrower screens."""
_WIDE = 100  # columns; below, numbers that are all zero are left out


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
        for number, table in enumerate(tables(self.findings, chosen.width)):
            if number:
                chosen.print()
            chosen.print(table)

    def html(self, path: str | Path) -> Path:
        """Write it as one self-contained page; returns the path.

        A new file is readable by its owner alone.
        """
        target = local_path(path, "report")
        with private_file(target) as file:
            file.write(page(self.findings).encode("utf-8", "replace"))
        return target


def tables(findings: Findings, width: int) -> Iterator[RenderableType]:
    """The tables to print, in order. A screen of few columns gets fewer numbers."""
    if not findings.moments:
        yield Text(f"The lake {printable(findings.lake)} has no events yet.")
        return
    yield _summary(findings)
    yield _health("Health", findings.subscribers[:_MANY], findings, width)
    yield _health("Slowest", findings.slowest[:_FEW], findings, width)
    if findings.failing:
        yield _health("Failing", findings.failing[:_FEW], findings, width)
    if findings.growing:
        yield _growing(findings.growing[:_FEW])
    if findings.groups:
        yield _groups(findings)
    yield _reconciliation(findings, width)
    if findings.quarantined:
        rows = [(kind, f"{count:,}") for kind, count in findings.quarantined]
        yield _table("Quarantine", "kind", "rows >", rows=rows)


def _summary(findings: Findings) -> Text:
    first, last = findings.moments[0].start, findings.moments[-1].start
    parts = [
        f"{findings.total(name):,} {name.replace('_', '-')}"
        for name in ("sent", "handled", "retried", "dead_lettered", "discarded")
    ]
    return Text(f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC: {', '.join(parts)}")


def _health(title: str, ones: Iterable[SubscriberHealth], findings: Findings, width: int) -> Table:
    left_out = {name for limit, name in _LEFT_OUT if width < limit}
    shown = [name for name in _HEALTH if name not in left_out]
    rows = [
        (
            titled(one.event_key, one.way),
            one.subscriber,
            *(_HEALTH[name](one) for name in shown),
        )
        for one in ones
    ]
    hidden = len(findings.subscribers) - _MANY + findings.more_subscribers
    note = f"and {hidden:,} more" if title == "Health" and hidden > 0 else None
    return _table(
        title,
        *("event", "subscriber", *(f"{name} >" for name in shown)),
        rows=rows,
        note=note,
    )


def _growing(ones: Iterable[SubscriberHealth]) -> Table:
    rows = [
        (
            *(titled(one.event_key, one.way), one.subscriber),
            *(f"{one.sent_early:,}", f"{one.sent_late:,}"),
            "new" if one.growth is None else f"× {one.growth:.2f}",
        )
        for one in ones
    ]
    columns = ("event", "subscriber", "first half >", "second half >", "growth >")
    return _table("Growing", *columns, rows=rows)


def _groups(findings: Findings) -> Table:
    rows = [
        (
            *(one.signature, f"{one.count:,}", "new" if one.new else ""),
            *(one.error_type or "", one.text[:_LONGEST], ", ".join(one.subscribers[:3])),
            f"{one.last_seen:%Y-%m-%d %H:%M:%S}",
        )
        for one in findings.groups[:_MANY]
    ]
    hidden = len(findings.groups) - _MANY + findings.more_groups
    columns = ("signature", "count >", "", "error", "text", "subscribers", "last seen")
    note = f"and {hidden:,} more" if hidden > 0 else None
    return _table("Dead letters", *columns, rows=rows, note=note)


def _reconciliation(findings: Findings, width: int) -> Table:
    found = findings.reconciliation
    titles = {"sent": "sent", "handled": "handled", "dead_lettered": "dead"}
    titles |= {"discarded": "discarded", "waiting": "waiting", "not_sent": "not sent"}
    for name in ("discarded", "not_sent"):
        if width < _WIDE and not any(getattr(line, name) for line in found.lines):
            del titles[name]
    rows = [
        (
            *(titled(line.event_key, line.way), line.subscriber),
            *(f"{getattr(line, name):,}" for name in titles),
            "yes" if line.adds_up else "NO",
        )
        for line in found.lines[:_MANY]
    ]
    notes = [
        f"{check.queue}: {check.missing:,} of {check.waiting:,} that should wait do not"
        for check in found.queues
        if check.missing
    ]
    odd = [f"{one.problem}: {one.id}" for one in found.odd[:_FEW]]
    return _table(
        "Reconciliation",
        *("event", "subscriber", *(f"{title} >" for title in titles.values()), "adds up"),
        rows=rows,
        note="\n".join([*notes, *odd]) or None,
    )


def _table(
    title: str, *columns: str, rows: Iterable[tuple[str, ...]], note: str | None = None
) -> Table:
    made = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        caption=None if note is None else Text(printable(note)),
        caption_justify="left",
        box=None,
        pad_edge=False,
    )
    for name in columns:
        right = name.endswith(" >")
        made.add_column(
            name.removesuffix(" >"),
            justify="right" if right else "left",
            header_style="dim",
            no_wrap=right or name == "signature",  # to be copied
            overflow="fold",
        )
    for row in rows:
        made.add_row(*[Text(printable(cell)) for cell in row])
    return made
