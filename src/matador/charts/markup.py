"""HTML that is safe by construction: all text is escaped, except ``Html``.

Error messages, event keys and ids are foreign data, and may contain tags, quotes, terminal escapes
or characters that reverse the direction of text.
"""

from __future__ import annotations

import html
import re
from typing import TypeAlias

# Control characters except tabs and line ends, those that change the direction of text, and halves
# of characters, which cannot be sent.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()

    def __html__(self) -> str:
        """Marks it as safe for templates."""
        return self


Child: TypeAlias = "str | int | None"
"""The content of an element: text (escaped), ``Html`` (unchanged), a number, or nothing."""


def printable(text: str) -> str:
    """Text without invisible characters and those that affect others; safe on a terminal."""
    return _UNSEEN.sub("\ufffd", text)


def escaped(child: Child) -> str:
    """A child as HTML."""
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    return html.escape(printable(str(child)), quote=True)


def element(name: str, *children: Child, **attributes: str | float | None) -> Html:
    """An element. Attributes: ``class_`` for class, ``stroke_width`` for stroke-width.

    Example:
        >>> element("p", "1 < 2", class_="note")
        '<p class="note">1 &lt; 2</p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_attribute(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{''.join(map(escaped, children))}</{name}>")


def joined(*children: Child) -> Html:
    """Children, concatenated."""
    return Html("".join(map(escaped, children)))


def _attribute(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def titled(name: str, way: str) -> str:
    """The name of what was sent; if it is not an event, with its kind: ``welcome (job)``."""
    return name if way == "event" else f"{name} ({way})"
