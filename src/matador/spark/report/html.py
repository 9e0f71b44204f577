"""A report as one page of HTML that needs nothing else: no network, no script, no font."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from matador.spark.aggregates.reconcile import Line, Reconciliation
from matador.spark.report.charts import NARROW, Series, duration, lines, share_bar, stacked_bars
from matador.spark.report.findings import DeadLetterGroup, Findings, SubscriberHealth
from matador.spark.report.markup import Child, Html, element, joined

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_FEW = 5
_LONGEST = 4000


def page(findings: Findings) -> str:
    """The whole page."""
    head = joined(
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{findings.lake}: events report"),
        element("style", Html(Path(__file__).with_name("style.css").read_text("utf-8"))),
    )
    sections = [
        _volume(findings),
        element("div", _events(findings), _growing(findings), class_="pair"),
        _times(findings),
        _subscribers(findings),
        _groups(findings),
        _accounts(findings.reconciliation),
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
    adds_up = findings.reconciliation.adds_up
    return element(
        "header",
        element("h1", "Events in ", findings.lake),
        element("span", period, class_="soft"),
        element(
            "span",
            "everything adds up" if adds_up else "does not add up",
            class_=f"badge {'good' if adds_up else 'bad'}",
        ),
        element("span", f"made {_when(findings.made_at)} UTC", class_="soft"),
    )


def _tiles(findings: Findings) -> Html:
    handled, dead = findings.total("handled"), findings.total("dead_lettered")
    retried, discarded = findings.total("retried"), findings.total("discarded")
    attempts = handled + dead + retried + discarded
    waiting = findings.reconciliation.total("waiting")
    slowest = max((one.duration_p95 or 0 for one in findings.subscribers), default=0)

    def rate(part: int) -> str:
        return f"{part / attempts:.1%}" if attempts else "–"

    tiles = [
        ("sent", f"{findings.total('sent'):,}", ""),
        ("handled", f"{handled:,}", ""),
        ("of attempts succeed", rate(handled), ""),
        ("of attempts are retried", rate(retried), ""),
        ("dead-lettered", f"{dead:,}", "bad" if dead else ""),
        ("waiting, or not yet seen", f"{waiting:,}", ""),
        ("p95 of the slowest", duration(slowest or None), ""),
    ]
    return element(
        "div",
        *[
            element("div", element("b", number), element("span", what), class_=f"tile {style}")
            for what, number, style in tiles
        ],
        class_="tiles",
    )


# -- charts --------------------------------------------------------------------------------------


def _volume(findings: Findings) -> Html:
    moments = findings.moments
    series = [
        Series("handled", [one.handled for one in moments], "good"),
        Series("retried", [one.retried for one in moments], "retry"),
        Series("dead-lettered", [one.dead_lettered for one in moments], "bad"),
        Series("discarded", [one.discarded for one in moments], "idle"),
    ]
    note = f"What came of every attempt, by the time it began; a bar is {_length(findings.step)}."
    times = [one.start for one in moments]
    return _section(
        "Volume", note, _legend(series), _scroll(stacked_bars(times, findings.step, series), times)
    )


def _events(findings: Findings) -> Html:
    moments = findings.moments
    totals: dict[str, int] = {}
    for one in moments:
        for name, count in one.by_event.items():
            totals[name] = totals.get(name, 0) + count
    names = sorted(totals, key=lambda name: (name == "others", -totals[name]))
    series = [
        Series(name, [one.by_event.get(name, 0) for one in moments], f"s{min(at, 7)}")
        for at, name in enumerate(names)
    ]
    times = [one.start for one in moments]
    chart = stacked_bars(times, findings.step, series, NARROW)
    note = "Messages sent, by event."
    return _section("Events", note, _legend(series), _scroll(chart, times))


def _times(findings: Findings) -> Html:
    moments = findings.moments
    times = [one.start for one in moments]

    def chart(values: Sequence[tuple[float | None, float | None, float | None]]) -> Html:
        series = [
            Series(name, [one[at] for one in values], style)
            for at, (name, style) in enumerate((("p50", "good"), ("p95", "retry"), ("p99", "bad")))
        ]
        return joined(_legend(series), _scroll(lines(times, findings.step, series), times))

    running = "How long callbacks ran, of all subscribers."
    waiting = "From when a message was due to when its attempt began."
    return element(
        "div",
        _section("Running time", running, chart([one.duration for one in moments])),
        _section("Waiting time", waiting, chart([one.wait for one in moments])),
        class_="pair",
    )


def _growing(findings: Findings) -> Html:
    rows = [
        [
            _name(one.event_key, one.subscriber),
            _number(f"{one.sent_early:,}"),
            _number(f"{one.sent_late:,}"),
            _number("new" if one.growth is None else f"× {one.growth:.2f}"),
        ]
        for one in findings.growing[:_FEW]
    ]
    table = _table(["subscriber", "earlier half >", "later half >", "growth >"], rows)
    note = "More in the later half of the period than in the earlier."
    return _section("Growing", note, table)


# -- subscribers ---------------------------------------------------------------------------------


def _subscribers(findings: Findings) -> Html:
    ranked = sorted(findings.subscribers, key=lambda one: (-one.dead_letter_rate, -one.count))
    columns = ["subscriber", "outcomes", "attempts >", "success >", "retry >", "dead >"]
    columns += ["run p50 >", "p95 >", "p99 >", "wait p95 >"]
    more = findings.more_subscribers
    note = "Those with the most dead letters first."
    if more:
        note += f" The {len(ranked)} busiest are shown, {more:,} are not."
    series = [Series(name, [0], style) for name, style in _OUTCOMES]
    table = _table(columns, [_subscriber(one) for one in ranked])
    return _section("Subscribers", note, _legend(series) if ranked else None, table)


_OUTCOMES = (
    ("handled", "good"),
    ("retried", "retry"),
    ("dead-lettered", "bad"),
    ("discarded", "idle"),
)


def _subscriber(one: SubscriberHealth) -> list[Html]:
    counts = (one.successes, one.retries, one.dead_letters, one.discards)
    parts = [
        Series(name, [count], style) for (name, style), count in zip(_OUTCOMES, counts, strict=True)
    ]
    return [
        _name(one.event_key, one.subscriber),
        element("td", share_bar(parts), class_="wide"),
        _number(f"{one.count:,}"),
        _number(f"{one.success_rate:.1%}" if one.count else "–"),
        _number(f"{one.retry_rate:.1%}" if one.count else "–"),
        _number(f"{one.dead_letter_rate:.1%}" if one.count else "–", bad=one.dead_letters > 0),
        _number(duration(one.duration_p50)),
        _number(duration(one.duration_p95)),
        _number(duration(one.duration_p99)),
        _number(duration(one.wait_p95)),
    ]


# -- dead letters --------------------------------------------------------------------------------


def _groups(findings: Findings) -> Html:
    total = sum(one.count for one in findings.groups)
    note = "Dead letters that died of the same thing; numbers, ids and quoted values aside."
    if findings.more_groups:
        note += f" {findings.more_groups:,} smaller groups are not shown."
    groups = [_group(one, total) for one in findings.groups]
    return _section("Dead letters", note, *(groups or [_nothing("No dead letters.")]))


def _group(one: DeadLetterGroup, total: int) -> Html:
    share = 100 * one.count / total if total else 0
    where = f"{_few(one.events)} · {_few(one.subscribers)} · queue {_few(one.queues)}"
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
        element(
            "p",
            where,
            f" · first {_when(one.first_seen)}, last {_when(one.last_seen)}",
            class_="soft",
        ),
        element("div", element("i", style=f"width:{share:.1f}%"), class_="meter"),
        element(
            "details",
            element("summary", "an example, ", element("code", one.example_id)),
            element("pre", one.example[:_LONGEST]),
        ),
    )


# -- accounts ------------------------------------------------------------------------------------


def _accounts(found: Reconciliation) -> Html:
    columns = ["subscriber", "sent >", "handled >", "dead-lettered >", "discarded >", "waiting >"]
    columns += ["replays >", "dead, sent again >", "handled twice >", "never sent >", "adds up"]
    queues = [
        [
            element("td", check.queue, class_="name"),
            _number(f"{check.waiting:,}"),
            _number("not asked" if check.depth is None else f"{check.depth:,}"),
            _number(f"{check.missing:,}", bad=check.missing > 0),
        ]
        for check in found.queues
    ]
    odd = "\n".join(
        f"{one.problem:14}{one.id}  {one.event_key} → {one.subscriber}" for one in found.odd
    )
    return _section(
        "Reconciliation",
        "Sent = handled + dead-lettered + discarded + waiting.",
        _table(columns, [_account(line) for line in found.lines]),
        _table(["queue", "should wait >", "at the broker >", "missing >"], queues)
        if queues
        else None,
        element("details", element("summary", "ids to look at"), element("pre", odd))
        if odd
        else None,
    )


def _account(line: Line) -> list[Html]:
    verdict = element("span", "yes" if line.adds_up else "no")
    return [
        _name(line.event_key, line.subscriber),
        _number(f"{line.sent:,}"),
        _number(f"{line.handled:,}"),
        _number(f"{line.dead_lettered:,}"),
        _number(f"{line.discarded:,}"),
        _number(f"{line.waiting:,}"),
        _number(f"{line.replayed:,}"),
        _number(f"{line.sent_again:,}"),
        _number(f"{line.handled_twice:,}"),
        _number(f"{line.not_sent:,}", bad=line.not_sent > 0),
        element("td", verdict, class_=None if line.adds_up else "bad"),
    ]


def _quarantine(findings: Findings) -> Html | None:
    if not findings.quarantined:
        return None
    rows = [
        [element("td", kind, class_="name"), _number(f"{count:,}")]
        for kind, count in findings.quarantined
    ]
    note = "What could not be read, is unknown, or does not fit its type."
    return _section("Quarantine", note, _table(["kind", "rows >"], rows))


# -- pieces of a page ----------------------------------------------------------------------------


def _section(title: str, note: str, *content: Child) -> Html:
    return element("section", element("h2", title), element("p", note, class_="note"), *content)


def _legend(series: Iterable[Series]) -> Html:
    def dot(style: str) -> Html:
        circle = element("circle", cx=5, cy=5, r=5, class_=style)
        return element("svg", circle, viewBox="0 0 10 10")

    return element(
        "div", *[element("span", dot(one.style), one.name) for one in series], class_="legend"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[Html]]) -> Html:
    if not rows:
        return _nothing("Nothing here.")
    heads = [
        element("th", name.removesuffix(" >"), class_="n" if name.endswith(" >") else None)
        for name in columns
    ]
    body = [element("tr", *row) for row in rows]
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *body))
    return element("div", table, class_="scroll")


def _scroll(chart: Html, times: Sequence[datetime]) -> Html:
    return element("div", chart, class_="scroll") if times else _nothing("No data yet.")


def _nothing(text: str) -> Html:
    return element("p", text, class_="empty")


def _name(event_key: str, subscriber: str) -> Html:
    return element("td", subscriber, element("small", event_key), class_="name")


def _number(text: str, *, bad: bool = False) -> Html:
    return element("td", text, class_="n bad" if bad else "n")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _later(moment: datetime, step: int) -> datetime:
    """So many seconds later, or the end of all times: a record may hold the year 9999."""
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
