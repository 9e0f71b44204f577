"""Charts as SVG: no script, no font, no library.

Colours are classes (``s0`` … for series), so that the style sheet decides, in light and dark mode.
Hovering over a bar or a point shows its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from matador.spark.report.markup import Html, element, joined

WIDE, NARROW, PHONE = 1120, 540, 340
"""Widths of a chart: the whole page, half of it, and the screen of a phone."""

HEIGHT = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 10, 10, 26
_WIDEST_BAR = 64
_Label: TypeAlias = Callable[[float], str]
_STEPS = (1, 2, 2.5, 5, 10)
_MOST = 1e18  # larger values are drawn as this: no axis has room for more


@dataclass(frozen=True, slots=True)
class Series:
    """One value for each moment, or None. ``style`` is the class that colours it."""

    name: str
    values: Sequence[float | None]
    style: str


def stacked_bars(
    times: Sequence[datetime], step: int, series: Sequence[Series], width: int = WIDE
) -> Html:
    """Bars over time, with the series stacked. ``step``: the seconds a bar covers."""
    series = [_drawable(one) for one in series]
    totals = [sum(one.values[at] or 0 for one in series) for at in range(len(times))]
    scale = _Scale(0, max(totals, default=0))
    slot = _slot(len(times), width)
    bar = min(slot * 0.84, _WIDEST_BAR)
    bars: list[Html] = []
    for at, moment in enumerate(times):
        if not totals[at]:
            continue
        below = 0.0
        parts: list[Html] = []
        for one in series:
            value = one.values[at] or 0
            if value:
                top, bottom = scale.y(below + value), scale.y(below)
                parts.append(
                    element(
                        "rect",
                        x=_LEFT + (at + 0.5) * slot - bar / 2,
                        y=top,
                        width=bar,
                        height=max(bottom - top, 0.5),
                        class_=one.style,
                    )
                )
                below += value
        lines = [f"{one.name}: {one.values[at] or 0:,.0f}" for one in series if one.values[at]]
        bars.append(
            element("g", element("title", "\n".join([_moment(moment, step), *lines])), *parts)
        )
    axes = joined(scale.grid(_count, width), _time_axis(times, step, width))
    return _chart(joined(axes, *bars), width)


def lines(
    times: Sequence[datetime], step: int, series: Sequence[Series], width: int = NARROW
) -> Html:
    """Lines over time of durations in milliseconds; moments without a value are gaps."""
    series = [_drawable(one) for one in series]
    values = [value for one in series for value in one.values if value is not None]
    scale = _Scale(min(values, default=0), max(values, default=0), maybe_log=True)
    slot = _slot(len(times), width)
    drawn: list[Html] = []
    for one in series:
        for run in _runs(one.values):
            points = [(_LEFT + (at + 0.5) * slot, scale.y(one.values[at] or 0)) for at in run]
            if len(points) > 1:
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                drawn.append(element("polyline", points=path, class_=f"line {one.style}"))
            else:
                x, y = points[0]
                drawn.append(element("circle", cx=x, cy=y, r=3, class_=f"dot {one.style}"))
    for at, moment in enumerate(times):
        known = [f"{one.name}: {duration(one.values[at])}" for one in series if one.values[at]]
        if known:
            title = element("title", "\n".join([_moment(moment, step), *known]))
            x = _LEFT + at * slot
            height = HEIGHT - _TOP - _BOTTOM
            area = element("rect", title, x=x, y=_TOP, width=slot, height=height, class_="hover")
            drawn.append(area)
    return _chart(
        joined(scale.grid(duration, width), _time_axis(times, step, width), *drawn), width
    )


def share_bar(parts: Sequence[Series]) -> Html:
    """One bar over the whole width, divided by the first value of each series."""
    parts = [_drawable(one) for one in parts]
    total = sum(one.values[0] or 0 for one in parts)
    x = 0.0
    drawn: list[Html] = []
    for one in parts:
        value = one.values[0] or 0
        if value and total:
            width = 100 * value / total
            title = element("title", f"{one.name}: {value:,.0f} ({value / total:.1%})")
            drawn.append(element("rect", title, x=x, y=0, width=width, height=10, class_=one.style))
            x += width
    return element(
        "svg", *drawn, viewBox="0 0 100 10", preserveAspectRatio="none", class_="share", role="img"
    )


def duration(milliseconds: float | None) -> str:
    """A duration for people.

    Example:
        >>> duration(1234.5), duration(0.25), duration(5_400_000)
        ('1.23 s', '0.25 ms', '1.5 h')
    """
    if milliseconds is None:
        return "–"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds >= size:
            return f"{milliseconds / size:.3g} {unit}"
    return f"{milliseconds:.3g} ms"


def _drawable(series: Series) -> Series:
    """A series without values that no chart can show: a record may hold any number."""
    values = [
        None if value is None or math.isnan(value) else min(max(value, 0), _MOST)
        for value in series.values
    ]
    return Series(series.name, values, series.style)


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

    def grid(self, label: _Label, width: int) -> Html:
        drawn: list[Html] = []
        for tick in self._ticks:
            y = self.y(tick)
            drawn.append(element("line", x1=_LEFT, x2=width - _RIGHT, y1=y, y2=y, class_="grid"))
            text = element("text", label(tick), x=_LEFT - 8, y=y + 4, text_anchor="end")
            drawn.append(text)
        return joined(*drawn)


def _time_axis(times: Sequence[datetime], step: int, width: int) -> Html:
    if not times:
        return Html("")
    slot = _slot(len(times), width)
    every = max(1, math.ceil(len(times) * 90 / width))
    days = (times[-1] - times[0]).total_seconds() > 36 * 3600
    form = "%b %-d" if step >= 86_400 else "%b %-d %H:%M" if days else "%H:%M"
    if step < 60:
        form = "%H:%M:%S"
    return joined(
        *[
            element(
                "text",
                times[at].strftime(form),
                x=min(max(_LEFT + (at + 0.5) * slot, _LEFT + 20), width - _RIGHT - 28),
                y=HEIGHT - 8,
                text_anchor="middle",
            )
            for at in range(0, len(times), every)
        ]
    )


def _chart(content: Html, width: int) -> Html:
    return element("svg", content, viewBox=f"0 0 {width} {HEIGHT}", class_="chart", role="img")


def _slot(count: int, width: int) -> float:
    return (width - _LEFT - _RIGHT) / max(count, 1)


def _runs(values: Sequence[float | None]) -> list[list[int]]:
    """The indexes of the values, in runs without gaps."""
    runs: list[list[int]] = []
    for at, value in enumerate(values):
        if value is not None:
            if runs and runs[-1][-1] == at - 1:
                runs[-1].append(at)
            else:
                runs.append([at])
    return runs


def _nice(step: float) -> float:
    """The next round number: 1, 2, 2.5 or 5 times a power of ten; at least 1."""
    if step <= 1:
        return 1
    power = 10 ** math.floor(math.log10(step))
    return next(one * power for one in _STEPS if one * power >= step * 0.999)


def _count(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _moment(moment: datetime, step: int) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S" if step < 60 else "%Y-%m-%d %H:%M")
