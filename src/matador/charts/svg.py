"""Charts as SVG: no script, no font, no library.

Colors are classes (``s0`` … for series), so that the style sheet decides, in light and dark mode.
Hovering over a bar or a point shows its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from matador.charts.markup import Html, element, joined

STYLE_SHEET = Path(__file__).with_name("charts.css")
"""How charts look. A page with charts has these rules, and defines the colors."""

WIDE, NARROW, PHONE = 1120, 540, 340
"""Widths of a chart: the whole page, half of it, and the screen of a phone."""

HEIGHT = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 10, 10, 26
_WIDEST_BAR = 64
_Label: TypeAlias = Callable[[float], str]
_STEPS = (1, 2, 2.5, 5, 10)
_MOST = 1e18  # larger values are drawn as this, because axes have no room for more


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One value for each moment, or None. ``style`` is the class that colors it."""

    name: str
    values: Sequence[float | None]
    style: str


def stacked_bars(
    times: Sequence[datetime], step: int, series: Sequence[ChartSeries], width: int = WIDE
) -> Html:
    """Bars over time, with the series stacked. ``step``: the seconds a bar covers."""
    series = [_drawable(one) for one in series]
    totals = [sum(one.values[at] or 0 for one in series) for at in range(len(times))]
    plot = _Plot(times, step, width, _Scale(0, max(totals, default=0)))
    bar = min(plot.slot * 0.84, _WIDEST_BAR)
    bars: list[Html] = []
    for at, total in enumerate(totals):
        if not total:
            continue
        x = plot.x(at + 0.5) - bar / 2
        parts = [plot.title(at, series, "{:,.0f}".format)]
        below = 0.0
        for one in series:
            if value := one.values[at]:
                y = plot.y(below + value)
                height = max(plot.y(below) - y, 0.5)
                below += value
                parts.append(element("rect", x=x, y=y, width=bar, height=height, class_=one.style))
        bars.append(element("g", *parts))
    return plot.chart(_count, bars, series)


def lines(
    times: Sequence[datetime], step: int, series: Sequence[ChartSeries], width: int = NARROW
) -> Html:
    """Lines over time of durations in milliseconds; moments without a value are gaps."""
    series = [_drawable(one) for one in series]
    values = [value for one in series for value in one.values if value is not None]
    scale = _Scale(min(values, default=0), max(values, default=0), maybe_log=True)
    plot = _Plot(times, step, width, scale)
    drawn: list[Html] = []
    for one in series:
        for known, run in groupby(enumerate(one.values), lambda pair: pair[1] is not None):
            points = [(plot.x(at + 0.5), plot.y(value or 0)) for at, value in run if known]
            if len(points) > 1:
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                drawn.append(element("polyline", points=path, class_=f"line {one.style}"))
            elif points:
                x, y = points[0]
                drawn.append(element("circle", cx=x, cy=y, r=3, class_=f"dot {one.style}"))
    area = {"y": _TOP, "width": plot.slot, "height": HEIGHT - _TOP - _BOTTOM, "class_": "hover"}
    drawn += [
        element("rect", plot.title(at, series, duration), x=plot.x(at), **area)
        for at in range(len(times))
        if any(one.values[at] for one in series)
    ]
    return plot.chart(_time, drawn, series)


def share_bar(parts: Sequence[ChartSeries]) -> Html:
    """One bar over the whole width, divided by the first value of each series."""
    parts = [_drawable(one) for one in parts]
    total = sum(one.values[0] or 0 for one in parts)
    x = 0.0
    drawn: list[Html] = []
    names: list[str] = []
    for one in parts:
        if value := one.values[0]:
            width = 100 * value / total
            names.append(f"{one.name}: {value:,.0f} ({value / total:.1%})")
            title = element("title", names[-1])
            drawn.append(element("rect", title, x=x, y=0, width=width, height=10, class_=one.style))
            x += width
    form = {"viewBox": "0 0 100 10", "preserveAspectRatio": "none", "class_": "share"}
    return element("svg", *drawn, **form, role="img", aria_label=", ".join(names) or "nothing")


def in_every_width(
    draw: Callable[..., Html],
    times: Sequence[datetime],
    step: int,
    series: Sequence[ChartSeries],
    widest: int,
) -> Html:
    """A chart in every width it is shown in; the style sheet picks one."""
    widths = {"large": WIDE, "medium": NARROW} if widest == WIDE else {"large medium": NARROW}
    return joined(
        *(
            element("div", draw(times, step, series, width), class_=name)
            for name, width in {**widths, "small": PHONE}.items()
        )
    )


def legend(series: Iterable[ChartSeries]) -> Html:
    """The names of the series, with their colors."""

    def dot(style: str) -> Html:
        circle = element("circle", cx=5, cy=5, r=5, class_=style)
        return element("svg", circle, viewBox="0 0 10 10", aria_hidden="true")

    names = [element("span", dot(one.style), one.name) for one in series]
    return element("div", *names, class_="legend")


def duration(milliseconds: float | None) -> str:
    """A duration for people, such as ``1.23 s`` or ``1 min 43 s``; a dash for None."""
    if milliseconds is None:
        return "–"
    if milliseconds < 1000:
        return f"{milliseconds:.3g} ms"
    seconds = round(milliseconds / 1000)
    for unit, size, smaller, part in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{milliseconds / 1000:.3g} s"


def _drawable(series: ChartSeries) -> ChartSeries:
    """A series without values that a chart cannot show: a record may contain any number."""
    values = [
        None if value is None or math.isnan(value) else min(max(value, 0), _MOST)
        for value in series.values
    ]
    return ChartSeries(series.name, values, series.style)


class _Scale:
    """Maps values to heights, linear or logarithmic."""

    def __init__(self, lowest: float, highest: float, *, maybe_log: bool = False) -> None:
        self._log = maybe_log and lowest >= 0 and highest > 50 * max(lowest, 0.01)
        if self._log:
            self._bottom = 10 ** math.floor(math.log10(max(lowest, 0.01)))
            self._top = 10 ** math.ceil(math.log10(max(highest, 0.1)))
            powers = round(math.log10(self._top / self._bottom))
            self._ticks = [self._bottom * 10**power for power in range(powers + 1)]
        else:
            step = _nice(highest / 4)
            self._bottom, self._top = 0.0, max(step, math.ceil(highest / step) * step)
            self._ticks = [step * tick for tick in range(round(self._top / step) + 1)]

    def y(self, value: float) -> float:
        if self._log:
            above = math.log10(max(value, self._bottom) / self._bottom)
            share = above / math.log10(self._top / self._bottom)
        else:
            share = value / self._top
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)

    def grid(self, label: _Label, width: int) -> Iterator[Html]:
        for tick in self._ticks:
            y = self.y(tick)
            yield element("line", x1=_LEFT, x2=width - _RIGHT, y1=y, y2=y, class_="grid")
            yield element("text", label(tick), x=_LEFT - 8, y=y + 4, text_anchor="end")


class _Plot:
    """Maps moments and values to points of a chart, and draws its axes."""

    def __init__(self, times: Sequence[datetime], step: int, width: int, scale: _Scale) -> None:
        self._times = times
        self._step = step
        self._width = width
        self._scale = scale
        self.slot = (width - _LEFT - _RIGHT) / max(len(times), 1)
        self.y = scale.y

    def x(self, at: float) -> float:
        return _LEFT + at * self.slot

    def title(self, at: int, series: Sequence[ChartSeries], label: _Label) -> Html:
        """The text that is shown for a moment."""
        form = "%Y-%m-%d %H:%M:%S" if self._step < 60 else "%Y-%m-%d %H:%M"
        values = [(one.name, one.values[at]) for one in series]
        known = [f"{name}: {label(value)}" for name, value in values if value]
        return element("title", "\n".join([self._times[at].strftime(f"{form} %Z"), *known]))

    def chart(self, label: _Label, content: Iterable[Html], series: Sequence[ChartSeries]) -> Html:
        box = f"0 0 {self._width} {HEIGHT}"
        drawn = (*self._scale.grid(label, self._width), *self._time_axis(), *content)
        names = f"Chart: {', '.join(one.name for one in series)}"
        return element("svg", *drawn, viewBox=box, class_="chart", role="img", aria_label=names)

    def _time_axis(self) -> Iterator[Html]:
        times = self._times
        days = bool(times) and (times[-1] - times[0]).total_seconds() > 36 * 3600
        form = "%b %-d %H:%M" if days else "%H:%M"
        form = "%H:%M:%S" if self._step < 60 else "%b %-d" if self._step >= 86_400 else form
        for at in range(0, len(times), max(1, math.ceil(len(times) * 90 / self._width))):
            x = min(max(self.x(at + 0.5), _LEFT + 20), self._width - _RIGHT - 28)
            yield element("text", times[at].strftime(form), x=x, y=HEIGHT - 8, text_anchor="middle")
        zone = times[-1].strftime("%Z") if times else ""
        yield element("text", zone, x=_LEFT - 8, y=HEIGHT - 8, text_anchor="end")


def _nice(step: float) -> float:
    """The next round number: 1, 2, 2.5 or 5 times a power of ten; at least 1."""
    if step <= 1:
        return 1
    power = 10 ** math.floor(math.log10(step))
    return next(one * power for one in _STEPS if one * power >= step * 0.999)


def _time(milliseconds: float) -> str:
    """A duration at an axis, where there is little room."""
    return f"{milliseconds:g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.10g} s"


def _count(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
