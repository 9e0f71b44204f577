"""A report as one HTML page that needs nothing else: no network, no script, no font.

The page fits a phone: charts are drawn in up to three widths, of which the style sheet shows one,
and the rows of a table become cards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from matador.charts.markup import Child, Html, element, joined, titled
from matador.charts.svg import (
    NARROW,
    STYLE_SHEET,
    WIDE,
    ChartSeries,
    duration,
    in_every_width,
    legend,
    lines,
    share_bar,
    stacked_bars,
)
from matador.spark.aggregates.reconcile import Line, Reconciliation
from matador.spark.report.findings import OTHERS, DeadLetterGroup, Findings, SubscriberHealth

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_FEW = 5
_LONGEST = 4000
_OUTCOMES = {"handled": "good", "retried": "retry", "dead-lettered": "bad", "discarded": "idle"}


class _Cell(NamedTuple):
    """A cell of a table, and the class that styles it."""

    content: Child
    style: str | None = "n"


def page(findings: Findings) -> str:
    """The whole page."""
    own = Path(__file__).with_name("style.css")
    style = STYLE_SHEET.read_text("utf-8") + own.read_text("utf-8")
    head = joined(
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{findings.lake}: events report"),
        element("style", Html(style)),
    )
    sections = [
        _volume(findings),
        element("div", _events(findings), _growing(findings), class_="pair"),
        _times(findings),
        _subscribers(findings),
        _groups(findings),
        _reconciliation(findings.reconciliation),
        _quarantine(findings),
    ]
    body = element("main", _top(findings), _tiles(findings), *sections)
    document = element("html", element("head", head), element("body", body), lang="en")
    return f"<!doctype html>\n{document}\n"


# -- the top -------------------------------------------------------------------------------------


def _top(findings: Findings) -> Html:
    period = "no events yet"
    if findings.moments:
        end = _later(findings.moments[-1].start, findings.step)
        period = f"{_when(findings.moments[0].start)} to {_when(end)} UTC"
    good = findings.reconciliation.adds_up
    verdict = "everything adds up" if good else "does not add up"
    return element(
        "header",
        element("h1", "Events in ", findings.lake),
        element("span", period, class_="soft"),
        element("span", verdict, class_=f"badge {'good' if good else 'bad'}"),
        element("span", f"created {_when(findings.made_at)} UTC", class_="soft"),
    )


def _tiles(findings: Findings) -> Html:
    handled, dead = findings.total("handled"), findings.total("dead_lettered")
    retried = findings.total("retried")
    attempts = handled + dead + retried + findings.total("discarded")
    slowest = max((one.duration_p95 or 0 for one in findings.subscribers), default=0)
    tiles = [
        ("sent", f"{findings.total('sent'):,}", ""),
        ("handled", f"{handled:,}", ""),
        ("of attempts succeeded", _rate(handled, attempts), ""),
        ("of attempts are retried", _rate(retried, attempts), ""),
        ("dead-lettered", f"{dead:,}", "bad" if dead else ""),
        ("waiting, or not seen yet", f"{findings.reconciliation.total('waiting'):,}", ""),
        ("p95 of the slowest", duration(slowest or None), ""),
    ]
    shown = [
        element("div", element("b", number), element("span", what), class_=f"tile {style}")
        for what, number, style in tiles
    ]
    return element("div", *shown, class_="tiles")


# -- charts --------------------------------------------------------------------------------------


def _volume(findings: Findings) -> Html:
    series = [
        ChartSeries(name, [getattr(one, name.replace("-", "_")) for one in findings.moments], style)
        for name, style in _OUTCOMES.items()
    ]
    note = f"The outcome of every attempt, by start time; each bar covers {_length(findings.step)}."
    return _section("Volume", note, _chart(findings, stacked_bars, series, WIDE))


def _events(findings: Findings) -> Html:
    totals: Counter[str] = Counter()
    for one in findings.moments:
        totals.update(one.by_event)
    names = sorted(totals, key=lambda name: (name == OTHERS, -totals[name]))
    series = [
        ChartSeries(name, [one.by_event.get(name, 0) for one in findings.moments], f"s{min(at, 7)}")
        for at, name in enumerate(names)
    ]
    chart = _chart(findings, stacked_bars, series, NARROW)
    return _section("Events", "Messages sent, by event.", chart)


def _times(findings: Findings) -> Html:
    def section(title: str, note: str, values: Sequence[Sequence[float | None]]) -> Html:
        series = [
            ChartSeries(name, [one[at] for one in values], style)
            for at, (name, style) in enumerate((("p50", "good"), ("p95", "retry"), ("p99", "bad")))
        ]
        return _section(title, note, _chart(findings, lines, series, NARROW))

    ran = "How long callbacks ran, for all subscribers together."
    waited = "The time between a message being due and its attempt starting."
    return element(
        "div",
        section("Running time", ran, [one.duration for one in findings.moments]),
        section("Waiting time", waited, [one.wait for one in findings.moments]),
        class_="pair",
    )


def _chart(
    findings: Findings, draw: Callable[..., Html], series: Sequence[ChartSeries], widest: int
) -> Html:
    """A legend, and a chart in every width it is shown in; the style sheet picks one."""
    times = [one.start for one in findings.moments]
    drawn = in_every_width(draw, times, findings.step, series, widest)
    return joined(legend(series), drawn if times else _nothing("No data yet."))


# -- tables --------------------------------------------------------------------------------------


def _growing(findings: Findings) -> Html:
    rows = [
        [
            _name(one),
            _Cell(f"{one.sent_early:,}"),
            _Cell(f"{one.sent_late:,}"),
            _Cell("new" if one.growth is None else f"× {one.growth:.2f}"),
        ]
        for one in findings.growing[:_FEW]
    ]
    note = "Subscribers with more messages in the second half of the period than in the first."
    table = _table(["subscriber", "first half >", "second half >", "growth >"], rows)
    return _section("Growing", note, table)


def _subscribers(findings: Findings) -> Html:
    ranked = sorted(findings.subscribers, key=lambda one: (-one.dead_letter_rate, -one.count))
    columns = ["subscriber", "outcomes", "attempts >", "success >", "retry >", "dead >"]
    columns += ["run p50 >", "run p95 >", "run p99 >", "wait p95 >"]
    note = "Subscribers and job queues with the highest share of dead letters come first."
    if findings.more_subscribers:
        note += f" The {len(ranked)} busiest are shown, {findings.more_subscribers:,} are not."
    names = legend([ChartSeries(name, [0], style) for name, style in _OUTCOMES.items()])
    table = _table(columns, [_subscriber(one) for one in ranked])
    return _section("Subscribers", note, names if ranked else None, table)


def _subscriber(one: SubscriberHealth) -> list[_Cell]:
    counts = (one.successes, one.retries, one.dead_letters, one.discards)
    outcomes = zip(_OUTCOMES.items(), counts, strict=True)
    parts = [ChartSeries(name, [count], style) for (name, style), count in outcomes]
    times = (one.duration_p50, one.duration_p95, one.duration_p99, one.wait_p95)
    return [
        _name(one),
        _Cell(share_bar(parts), "wide"),
        _Cell(f"{one.count:,}"),
        *[_Cell(_rate(count, one.count)) for count in (one.successes, one.retries)],
        _Cell(_rate(one.dead_letters, one.count), _bad_if(one.dead_letters)),
        *[_Cell(duration(time)) for time in times],
    ]


def _groups(findings: Findings) -> Html:
    total = sum(one.count for one in findings.groups)
    note = "Grouped by error, regardless of numbers, ids and quoted values."
    if findings.more_groups:
        note += f" {findings.more_groups:,} smaller groups are not shown."
    groups = [_group(one, total) for one in findings.groups]
    return _section("Dead letters", note, *(groups or [_nothing("No dead letters.")]))


def _group(one: DeadLetterGroup, total: int) -> Html:
    share = 100 * one.count / total if total else 0
    where = f"{_few(one.events)} · {_few(one.subscribers)} · queue {_few(one.queues)}"
    seen = f" · first {_when(one.first_seen)}, last {_when(one.last_seen)}"
    return element(
        "article",
        element(
            "header",
            element("span", f"{one.count:,}", class_="count"),
            element("b", one.error_type or "refused"),
            element("span", "new", class_="badge new") if one.new else None,
            element("code", one.signature, class_="soft"),
        ),
        element("p", element("code", one.text or "(no message)")),
        element("p", where, seen, class_="soft"),
        element("div", element("i", style=f"width:{share:.1f}%"), class_="meter"),
        element(
            "details",
            element("summary", "example: ", element("code", one.example_id)),
            element("pre", one.example[:_LONGEST]),
        ),
    )


def _reconciliation(found: Reconciliation) -> Html:
    columns = ["subscriber", "sent >", "handled >", "dead-lettered >", "discarded >", "waiting >"]
    columns += ["replays >", "dead, sent again >", "handled twice >", "never sent >", "adds up"]
    queues = [
        [
            _Cell(check.queue, "name"),
            _Cell(f"{check.waiting:,}"),
            _Cell("not asked" if check.depth is None else f"{check.depth:,}"),
            _Cell(f"{check.missing:,}", _bad_if(check.missing)),
        ]
        for check in found.queues
    ]
    odd = [f"{one.problem:14}{one.id}  {one.event_key} → {one.subscriber}" for one in found.odd]
    headings = ["queue", "should wait >", "at the broker >", "missing >"]
    ids = element("details", element("summary", "ids to check"), element("pre", "\n".join(odd)))
    return _section(
        "Reconciliation",
        "Sent = handled + dead-lettered + discarded + waiting.",
        _table(columns, [_account(line) for line in found.lines]),
        _table(headings, queues) if queues else None,
        ids if odd else None,
    )


def _account(line: Line) -> list[_Cell]:
    counts = (line.sent, line.handled, line.dead_lettered, line.discarded, line.waiting)
    others = (line.replayed, line.sent_again, line.handled_twice)
    return [
        _name(line),
        *[_Cell(f"{count:,}") for count in (*counts, *others)],
        _Cell(f"{line.not_sent:,}", _bad_if(line.not_sent)),
        _Cell("yes", None) if line.adds_up else _Cell("no", "bad"),
    ]


def _quarantine(findings: Findings) -> Html | None:
    if not findings.quarantined:
        return None
    rows = [[_Cell(kind, "name"), _Cell(f"{count:,}")] for kind, count in findings.quarantined]
    note = "Messages and records that cannot be read, are unknown, or do not fit their type."
    return _section("Quarantine", note, _table(["kind", "rows >"], rows))


# -- pieces of a page ----------------------------------------------------------------------------


def _section(title: str, note: str, *content: Child) -> Html:
    return element("section", element("h2", title), element("p", note, class_="note"), *content)


def _table(columns: Sequence[str], rows: Sequence[Sequence[_Cell]]) -> Html:
    """A table; columns of numbers have a name that ends in ``>``."""
    if not rows:
        return _nothing("Nothing here.")
    names = [name.removesuffix(" >") for name in columns]
    heads = [
        element("th", name, class_="n" if name != column else None)
        for name, column in zip(names, columns, strict=True)
    ]

    def cells(row: Sequence[_Cell]) -> list[Html]:
        # Where a row is shown as a card, the style sheet puts the label before the value.
        return [
            element("td", cell.content, class_=cell.style, data_label=name)
            for name, cell in zip(names, row, strict=True)
        ]

    body = element("tbody", *[element("tr", *cells(row)) for row in rows])
    table = element("table", element("thead", element("tr", *heads)), body)
    return element("div", table, class_="scroll")


def _nothing(text: str) -> Html:
    return element("p", text, class_="empty")


def _name(one: SubscriberHealth | Line) -> _Cell:
    return _Cell(joined(one.subscriber, element("small", titled(one.event_key, one.way))), "name")


def _bad_if(count: int) -> str:
    return "n bad" if count else "n"


def _rate(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _later(moment: datetime, step: int) -> datetime:
    """The time ``step`` seconds later, at most the year 9999, which a record may contain."""
    try:
        return moment + timedelta(seconds=step)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def _when(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _length(seconds: int) -> str:
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}{'s' if seconds >= 2 * size else ''}"
    return f"{seconds} second{'s' if seconds > 1 else ''}"
