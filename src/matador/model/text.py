"""Makes text storable in dockets, headers and reasons of dead letters."""

from __future__ import annotations

LONGEST_TEXT = 4000
"""The maximum length of an error or a reason, in characters."""

SHORT_TEXT = 200
"""The maximum length if a broker has refused the full text."""

BOM = b"\xef\xbb\xbf"
"""The byte-order mark with which some programs begin JSON. It is not part of it."""


def storable_text(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text in a form every broker can store: UTF-8, no NUL, at most ``longest`` characters.

    Lone surrogates, which cannot be encoded, become ``?``; a cut text ends with ``…``.

    Example:
        >>> storable_text("caf\\udcff")
        'caf?'
    """
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    return (
        text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
    )


def error_text(error: BaseException, longest: int = LONGEST_TEXT) -> str:
    """The storable message of an error, or its name if it has none."""
    text = _said(error) or ""
    return storable_text(text or type(error).__name__, longest)


def loggable(error: BaseException | None) -> BaseException | None:
    """An error whose traceback a log line may show; None if its text cannot be made.

    Some formatters fail on such an error, and a log line must not affect how a message is settled.
    """
    return None if error is None or _said(error) is None else error


def _said(error: BaseException) -> str | None:
    """The text of an error; None if its ``__str__`` raises anything.

    This includes ``CancelledError``, which would look like a cancellation of the task. It cannot be
    one, because this function awaits nothing.
    """
    try:
        if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
            return error.args[0]  # ``str`` quotes it, and what is quoted is no part of a signature
        return str(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - see above
        return None


def lone_surrogate(text: str) -> str | None:
    """``has a lone surrogate (U+D800) at 3`` if the text contains half of a character, or None.

    Such a text cannot be encoded as UTF-8. It comes from file names and arguments that Python could
    not decode, or from text that was cut in the middle of a character.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"has a lone surrogate (U+{ord(text[error.start]):04X}) at {error.start}"
    return None
