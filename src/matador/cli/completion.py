"""What the shell offers on Tab: names that the application declares. Nothing is imported or run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from typing import Any, Literal

from matador.cli.app_outline import outline

Offer = Callable[..., list[tuple[str, str]]]
_BREAKS = (":", "=")  # bash takes these for words of their own


def names_of(*kinds: Literal["events", "subscribers", "queues"], several: bool = False) -> Offer:
    """Completes a name of the application in the same command line; ``several``: with commas."""

    def offer(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
        # An option that lacks its value keeps Typer from assigning arguments: APP is the first one.
        app = ctx.params.get("app") or ctx.params.get("file") or next(iter(ctx.args), None)
        if not isinstance(app, str):
            return []
        before, comma, _ = incomplete.rpartition(",") if several else ("", "", incomplete)
        try:
            found = outline(app)
        except Exception:  # noqa: BLE001 - an error would end up in the command line
            return []
        listed = before.split(",")
        return [
            (f"{before}{comma}{name}", about)
            for kind in kinds
            for name, about in getattr(found, kind).items()
            if name not in listed
        ]

    return offer


def join_bash_words() -> None:
    """Undo how bash splits ``shop.py:app`` and ``--queue=events``, for Typer to see them whole."""
    try:
        words = shlex.split(os.environ["COMP_WORDS"])
        at = int(os.environ["COMP_CWORD"])
    except (KeyError, ValueError):  # a quote that is still open
        return
    joined, place = list[str](), at
    for number, word in enumerate(words):
        after_break = number > 0 and words[number - 1] in _BREAKS
        if joined and (word in _BREAKS or after_break):
            joined[-1] += word
            place -= 1 if number <= at else 0
        else:
            joined.append(word)
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = shlex.join(joined), str(place)
