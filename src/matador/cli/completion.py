"""What the shell offers on Tab: events, subscribers and queues of the application.

A process of its own imports the application, so that it can neither hang the shell nor print to it.
If the process fails or takes too long, the shell offers nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["events", "subscribers", "queues"]
Names: TypeAlias = dict[Kind, dict[str, str]]
"""Names, each with its description."""

_TIME_LIMIT = 5.0  # seconds
_BREAKS = (":", "=")  # bash takes these for words of their own
# Names that mean nothing to a shell, so that a completed name never runs a command.
_HARMLESS = re.compile(r"[A-Za-z0-9_.,/@%+-]+")


def names_of(*kinds: Kind, several: bool = False) -> Callable[..., list[tuple[str, str]]]:
    """Completes a name of the application in the same command line; ``several``: with commas."""

    def offer(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
        # An option that lacks its value keeps Typer from assigning arguments: APP is the first one.
        app = ctx.params.get("app") or ctx.params.get("file") or next(iter(ctx.args), None)
        if not isinstance(app, str):
            return []
        before, comma, _ = incomplete.rpartition(",") if several else ("", "", incomplete)
        found, listed = _ask(app), before.split(",")
        return [
            (f"{before}{comma}{name}", about)
            for kind in kinds
            for name, about in found.get(kind, {}).items()
            if name not in listed and _HARMLESS.fullmatch(name)
        ]

    return offer


def _ask(reference: str) -> Names:
    """The names that another process finds in an application; none if it does not answer."""
    asked = subprocess.Popen(
        [sys.executable, "-m", "matador.cli.completion", reference],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # A group of its own, so that processes that the application starts end with it.
        start_new_session=True,
    )
    try:
        answer, _ = asked.communicate(timeout=_TIME_LIMIT)
        return json.loads(answer) if asked.returncode == 0 else {}
    except (subprocess.TimeoutExpired, ValueError):
        return {}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(asked.pid, signal.SIGKILL)
        asked.communicate()


def _answer(reference: str) -> None:
    """Print the names of an application as JSON, and nothing that the application itself prints."""
    answers = os.dup(sys.stdout.fileno())  # processes that the application starts do not inherit it
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    with os.fdopen(answers, "w") as stream:
        json.dump(_names(reference), stream)


def _names(reference: str) -> Names:
    from matador.cli.receivers import contents_of, find
    from matador.observe.sources import sources

    found = find(reference).receivers
    contents = contents_of(found.values())
    return {
        "events": {
            one.key: " ".join(one.description.split())
            for one in contents.messages.values()
            if one.kind == "event"
        },
        "subscribers": {one.name: " ".join(one.description.split()) for one in contents.receivers},
        "queues": {queue.name: "" for one in sources(found) for queue in one.topology.queues},
    }


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


if __name__ == "__main__":
    _answer(sys.argv[1])
