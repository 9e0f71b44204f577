"""Neutralises control characters, so that text from messages cannot control the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from matador.transports.credentials import without_secrets

_UNSEEN = "\N{REPLACEMENT CHARACTER}"
# Characters that could move the cursor, change colors or titles, or reverse the text, each mapped
# to one visible character, so that the positions of styles stay right.
_PICTURES = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\N{SYMBOL FOR DELETE}",
    **dict.fromkeys(range(0x80, 0xA0), _UNSEEN),  # C1: some terminals treat them as escapes
    **dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F)), _UNSEEN),  # bidirectional
    **dict.fromkeys(range(0x2066, 0x206A), _UNSEEN),
    **dict.fromkeys((0x2028, 0x2029, 0xFEFF), _UNSEEN),  # line and paragraph separators
    **dict.fromkeys(range(0xD800, 0xE000), _UNSEEN),  # lone surrogates cannot be encoded
    **dict.fromkeys(range(0xE0000, 0xE0080), _UNSEEN),  # tags: invisible letters
}
_ONE_LINE = {**_PICTURES, ord("\n"): "\N{SYMBOL FOR LINE FEED}", ord("\t"): " "}


class SafeConsole(Console):
    """A console that prints no control characters: messages come from anybody."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        if isinstance(renderable, Text):
            renderable = _without_controls(renderable)
        return super().render(renderable, options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(text.translate(_PICTURES), **options)


def _without_controls(text: Text) -> Text:
    plain = text.plain
    cleaned = plain.translate(_PICTURES)
    if cleaned == plain:
        return text
    copy = text.copy()
    copy.plain = cleaned
    return copy


def one_line(text: str) -> str:
    """The text as one line, for a table cell: line breaks become visible symbols.

    Example:
        >>> one_line("charged\\nerror: none")
        'charged␊error: none'
    """
    return text.translate(_ONE_LINE)


def tidy(text: str) -> str:
    """The text without passwords, and with further lines indented, so that none looks like ours."""
    return without_secrets(text).replace("\n", "\n    ")
