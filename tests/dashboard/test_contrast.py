"""Colours of the dashboard can be told apart: the contrasts of WCAG 2.2, level AA."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import matador.dashboard

STYLE = Path(matador.dashboard.__file__).with_name("static") / "style.css"
TEXTS = [
    *(
        ("text", "page"),
        ("text", "card"),
        ("soft", "page"),
        ("soft", "card"),
        ("soft", "idle-soft"),
    ),
    *(("good", "good-soft"), ("retry", "retry-soft"), ("bad", "bad-soft"), ("idle", "idle-soft")),
    *(("sent", "idle-soft"), ("accent", "page"), ("accent", "card"), ("on-accent", "accent")),
    *(("bad", "card"), ("bad", "page")),
]
SHAPES = [("field", "card"), ("field", "page"), ("fill-bad", "card"), ("accent", "page")]


def colours() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE.read_text(), re.DOTALL)
    found = [dict(re.findall(r"--([\w-]+): (#\w{6})", one)) for one in (light, dark)]
    return {"light": found[0], "dark": {**found[0], **found[1]}}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrasts(scheme: str) -> None:
    known = colours()[scheme]

    def contrast(pair: tuple[str, str]) -> float:
        low, high = sorted(luminance(known[name]) for name in pair)
        return (high + 0.05) / (low + 0.05)

    assert [pair for pair in TEXTS if contrast(pair) < 4.5] == []
    assert [pair for pair in SHAPES if contrast(pair) < 3] == []
