"""Makes any text fit to be stored: in a docket, in a header, as the reason of a dead letter."""

from __future__ import annotations

LONGEST_TEXT = 4000
"""Characters kept of an error or a reason."""

SHORT_TEXT = 200
"""Characters kept where a broker has refused the whole text."""


def storable_text(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text as every broker can store it: valid UTF-8, no NUL, at most ``longest`` characters.

    What cannot be encoded (lone surrogates) becomes ``?``; a cut text ends with ``…``.

    Example:
        >>> storable_text("caf\\udcff")
        'caf?'
    """
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    return (
        text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
    )


def lone_surrogate(text: str) -> str | None:
    """``has a lone surrogate (U+D800) at 3``, if half of a character stands alone there.

    Such a text is not Unicode and has no UTF-8 form. It comes from names of files and arguments
    that Python could not decode, and from texts that were cut in the middle of a character.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"has a lone surrogate (U+{ord(text[error.start]):04X}) at {error.start}"
    return None
