"""Reports: the page and the tables with usual, no, one, many and hostile findings; the numbers."""

from __future__ import annotations

import io
import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields
from pyspark.sql import SparkSession
from rich.console import Console
from tests.spark.findings_samples import HOSTILE, NOW, sample
from tests.spark.journal_files import files
from tests.spark.rows import EVENTS, delivered, ingest, random_day, sent

from matador.charts.markup import Html, element, printable
from matador.charts.svg import (
    NARROW,
    PHONE,
    ChartSeries,
    duration,
    lines,
    share_bar,
    stacked_bars,
)
from matador.observe.journal.records import LAST_MOMENT, DeliveryRecord, SentRecord
from matador.spark.lake import Lake
from matador.spark.report import Report
from matador.spark.report.findings import Findings
from matador.spark.report.html import page
from matador.spark.runtime.arrow import pa, parquet

VOID = {"meta", "img", "br", "link", "input"}
SAMPLES = {
    "usual": sample(),
    "nothing": Findings("lake", NOW),
    "one": sample(1, 1, 1),
    "many": sample(50, 72, 50),
    "hostile": sample(3, 20, 3, text=HOSTILE),
}


class Checked(HTMLParser):
    """Reads a page: every tag must be closed; notes the tags, the attributes and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes.update(name for name, _ in attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(findings: Findings, width: int = 220) -> str:
    file = io.StringIO()
    Report(findings).show(Console(file=file, width=width, markup=False, highlight=False))
    return file.getvalue()


# -- the page ----------------------------------------------------------------------------------


@pytest.mark.parametrize("findings", SAMPLES.values(), ids=SAMPLES)
def test_a_page_is_whole_and_needs_nothing_else(findings: Findings, tmp_path: Path) -> None:
    path = Report(findings).html(tmp_path / "report.html")
    text = path.read_text("utf-8")
    found = Checked(text)
    assert not found.tags.keys() & {"script", "img", "link", "iframe", "object", "base", "form"}
    assert not {name for name in found.attributes if name.startswith("on")}
    assert not found.attributes & {"src", "href", "srcset", "action"}
    assert not re.search(r"url\(|@import|@font-face", text)
    assert "default-src 'none'" in text
    assert "nan" not in re.findall(r'"(nan|inf|-inf)"', text)
    assert "prefers-color-scheme: dark" in text


def test_hostile_text_stays_text() -> None:
    text = page(SAMPLES["hostile"])
    assert Checked(text).tags == Checked(page(sample(3, 20, 3))).tags
    assert "<script>alert(1)</script>" in Checked(text).text
    assert not re.search("[\x00\x1b\u202e]", text)


def test_a_page_says_what_there_is() -> None:
    text = Checked(page(SAMPLES["usual"])).text
    for expected in ("reserve-stock", "TimeoutError", "no answer from <ip>", "0198-1", "26,386"):
        assert expected in text
    assert "does not add up" in text
    assert "everything adds up" in Checked(page(SAMPLES["nothing"])).text
    assert "The 50 busiest are shown, 13 are not." in Checked(page(SAMPLES["many"])).text


def test_a_page_fits_a_phone() -> None:
    text = page(SAMPLES["many"])
    style = text[text.index("<style>") : text.index("</style>")]
    assert 'name="viewport" content="width=device-width, initial-scale=1"' in text
    # Each of the four charts is drawn for the screen of a phone, with text of its own size ...
    small = re.findall(r'<div class="small"><svg viewBox="0 0 (\d+) ', text)
    assert small == [str(PHONE)] * 4
    # ... nothing in the page is wider than that by itself ...
    everywhere = re.sub(r"@media \(min-width: 9\d\dpx\) \{.*", "", style)
    widths = [int(one) for one in re.findall(r"[^-]min-width: (\d+)px;", everywhere)]
    assert max(widths) <= 320
    # ... and a card has a label to every value of its row.
    cells = re.findall(r"<td[^>]*>", text)
    assert cells
    assert all("data-label=" in one for one in cells)


def test_elements_escape_what_is_not_html() -> None:
    assert element("p", "<b>", Html("<i></i>"), 3, None, title='"') == (
        '<p title="&quot;">&lt;b&gt;<i></i>3</p>'
    )
    assert printable("a\x1b[0m\u202eb\n\tc") == "a\ufffd[0m\ufffdb\n\tc"


# -- charts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        *([], [0], [None], [5], [1e12, 1e-9], [3, None, 4, 0], [1e308, 1, 1e-300], [1e308, 1e308]),
        *([math.inf, 2], [math.nan], [-5, 7], [-1e308], [5e-324]),
    ],
)
def test_charts_take_any_numbers(values: list[float | None]) -> None:
    times = [datetime(2026, 11, 15, 12, minute, tzinfo=UTC) for minute in range(len(values))]
    series = [ChartSeries("a", values, "s0"), ChartSeries("b", values, "s1")]
    for chart in (
        stacked_bars(times, 60, series),
        lines(times, 60, series),
        share_bar(series) if values else Html(""),
    ):
        Checked(chart)
        assert "nan" not in chart
        assert "inf" not in chart


def test_nothing_is_drawn_outside() -> None:
    times = [datetime(2026, 11, 15, 12, minute, tzinfo=UTC) for minute in range(60)]
    values = [float(minute**4) for minute in range(60)]
    for chart in (
        stacked_bars(times, 60, [ChartSeries("a", values, "s0")], NARROW),
        lines(times, 60, [ChartSeries("a", values, "s0")]),
    ):
        for name, most in (("x", NARROW), ("y", 240)):
            found = [float(number) for number in re.findall(rf' {name}="([^"]+)"', chart)]
            assert found
            assert all(0 <= number <= most for number in found)


def test_durations_are_for_people() -> None:
    found = [duration(one) for one in (None, 0.0, 0.25, 12.34, 1234.5, 90_000, 5.4e6, 2e8)]
    assert found == [
        "–",
        "0 ms",
        "0.25 ms",
        "12.3 ms",
        "1.23 s",
        "1 min 30 s",
        "1 h 30 min",
        "2 d 7 h",
    ]


# -- the tables --------------------------------------------------------------------------------


@pytest.mark.parametrize("findings", SAMPLES.values(), ids=SAMPLES)
def test_tables_are_printed_without_terminal_escapes(findings: Findings) -> None:
    assert not re.search("[\x00\x1b\u202e]", shown(findings))


def test_tables_say_what_there_is() -> None:
    text = shown(SAMPLES["usual"])
    for title in ("Health", "Slowest", "Failing", "Growing", "Dead letters", "Reconciliation"):
        assert title in text
    assert "no events yet" in shown(SAMPLES["nothing"])
    assert "and 43 more" in shown(SAMPLES["many"])


@pytest.mark.parametrize("width", [60, 80, 100])
def test_nothing_is_cut_off_on_a_narrow_terminal(width: int) -> None:
    findings = SAMPLES["usual"]
    text = shown(findings, width)
    assert "…" not in text
    for group in findings.groups:
        assert group.signature in text
    assert ("run p50" in text, "run p95" in text) == (False, True)


def test_rankings() -> None:
    one = sample().subscribers[0]
    slow, dead = replace(one, duration_p95=1e6), replace(one, dead_letters=one.count)
    grown, idle = replace(one, sent_early=1, sent_late=9), replace(one, duration_p95=None, count=0)
    findings = replace(sample(), subscribers=(one, slow, dead, grown, idle))
    assert findings.slowest[0] == slow
    assert idle not in findings.slowest
    assert findings.failing[0] == dead
    assert findings.growing[0] == grown
    assert (idle.success_rate, idle.retry_rate, idle.dead_letter_rate) == (0, 0, 0)
    assert replace(one, sent_early=0).growth is None


# -- the numbers -------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(tmp_path / "lake", spark=spark)


def test_findings_are_those_of_plain_python(lake: Lake) -> None:
    records = random_day(1500)
    ingest(lake, records)
    findings = lake.report().findings
    sent_ones = [one for one in records if isinstance(one, SentRecord)]
    attempts = [one for one in records if isinstance(one, DeliveryRecord)]
    outcomes = Counter(one.outcome for one in attempts)

    assert findings.step == 300
    assert findings.total("sent") == 1500
    assert findings.total("handled") == outcomes["success"]
    assert findings.total("retried") == outcomes["retry"]
    assert findings.total("dead_lettered") == outcomes["dead-letter"]
    assert findings.total("discarded") == outcomes["discard"]
    starts = [one.start.timestamp() for one in findings.moments]
    assert [b - a for a, b in pairwise(starts)] == [300] * (len(starts) - 1)
    assert sum((Counter(one.by_event) for one in findings.moments), Counter[str]()) == Counter(
        one.event_key for one in sent_ones
    )
    for one in findings.subscribers:
        key = (one.event_key, one.subscriber)
        mine = [a for a in attempts if (a.event_key, a.subscriber) == key]
        assert key in EVENTS
        assert one.count == len(mine)
        assert one.dead_letters == sum(a.outcome == "dead-letter" for a in mine)
        assert one.sent == sum((s.event_key, s.subscriber) == key for s in sent_ones)
        assert one.sent_early + one.sent_late == one.sent
        times = sorted(a.duration_ms for a in mine if a.ran)
        rank = sum(time <= (one.duration_p95 or 0) for time in times) / len(times)
        assert abs(rank - 0.95) < 0.02
    assert len(findings.groups) == 3
    assert sum(group.count for group in findings.groups) == outcomes["dead-letter"]
    assert all(group.new for group in findings.groups)
    assert findings.reconciliation.adds_up


def test_a_short_time_is_shown_in_seconds(lake: Lake) -> None:
    ingest(lake, [sent(str(n), after=n / 2) for n in range(10)] + [delivered("0", after=7)])
    findings = lake.report().findings
    assert findings.step == 1
    assert [one.sent for one in findings.moments] == [2, 2, 2, 2, 2, 0, 0, 0]
    assert findings.moments[-1].handled == 1
    assert findings.moments[-1].duration == (10.0, 10.0, 10.0)
    assert findings.moments[0].duration == (None, None, None)


def test_a_lake_whose_rows_have_expired_has_a_report(lake: Lake, tmp_path: Path) -> None:
    ingest(lake, [sent(str(n), after=n / 2) for n in range(10)])
    lake.expire(timedelta(0))
    report = lake.report()
    assert sum(one.sent for one in report.findings.moments) == 10  # the aggregates keep them
    assert report.findings.step == 60
    Checked(report.html(tmp_path / "expired.html").read_text("utf-8"))


def test_an_empty_lake_has_a_report(lake: Lake, tmp_path: Path) -> None:
    report = lake.report()
    assert report.findings.moments == ()
    Checked(report.html(tmp_path / "empty.html").read_text("utf-8"))


def test_numbers_that_cannot_be_break_no_report(lake: Lake, tmp_path: Path) -> None:
    huge = replace_fields(delivered("0"), duration_ms=1e308)
    first = [sent(str(n), after=n) for n in range(3)] + [delivered(str(n)) for n in (1, 2)]
    far = [
        replace_fields(sent("old"), created_at=0, recorded_at=0),
        replace_fields(sent("late"), created_at=LAST_MOMENT, recorded_at=LAST_MOMENT),
        replace_fields(delivered("late"), started_at=LAST_MOMENT, recorded_at=LAST_MOMENT),
    ]
    ingest(lake, [*first, huge], far)
    assert lake.quarantine().count() == 1
    # One that an earlier version has let in.
    path = next(path for path in files(lake.path, "deliveries") if "2026-11-15" in str(path))
    table = parquet.read_table(path, partitioning=None)
    at = table.schema.get_field_index("duration_ms")
    spoilt = pa.array([1e308, 5.0], pa.float64())
    parquet.write_table(table.set_column(at, table.schema.field(at), spoilt), path)
    shutil.rmtree(lake.path / "health")

    report = lake.report()

    assert report.findings.total("handled") == 3
    assert lake.health().count() > 0
    Checked(report.html(tmp_path / "absurd.html").read_text("utf-8"))
    assert "ship" in shown(report.findings)
