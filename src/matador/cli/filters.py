"""Which dead letters are meant: the options that say so, and what is checked of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from matador.cli.expressions import Where
from matador.cli.output import CommandError, UsageError, warn
from matador.errors import QueueNotFoundError
from matador.events.app import Matador
from matador.events.dead_letters import Selection
from matador.model.options import suggestion
from matador.model.topology import DEAD_LETTER_KINDS, DeadLetterKind

Queue = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="QUEUE", help="Of this work queue.")
]
Kind = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="unhandled or undeliverable.")
]
Event = Annotated[str | None, typer.Option("--event", metavar="KEY", help="Of this event.")]
Subscriber = Annotated[
    str | None, typer.Option("--subscriber", metavar="NAME", help="Of this subscriber.")
]
Error = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="With this text in their reason or errors."),
]
WhereText = Annotated[
    str | None,
    typer.Option("--where", metavar="CONDITION", help="With this payload, such as 'amount > 100'."),
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="This one, or one that begins so; may be repeated."),
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Undecodable = Annotated[
    bool, typer.Option("--undecodable", help="Only those that are not envelopes.")
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="At most this many.")
]


def select(
    app: Matador,
    *,
    queue: str | None = None,
    kind: str | None = None,
    event: str | None = None,
    subscriber: str | None = None,
    error: str | None = None,
    where: str | None = None,
    ids: Sequence[str] | None = None,
    undecodable: bool | None = None,
) -> Selection:
    """The selection that options describe.

    Raises:
        UsageError: an unknown queue or kind, or a condition that cannot be read.
    """
    try:
        name = None if queue is None else app.topology.queue(queue).name
    except QueueNotFoundError as unknown:
        raise UsageError(str(unknown)) from None
    if any(not one for one in ids or ()):
        raise UsageError("--id is empty")
    return Selection(
        queue=name,
        kind=None if kind is None else _kind(kind),
        event=event,
        subscriber=subscriber,
        error=error,
        where=None if where is None else Where(where),
        ids=tuple(ids or ()),
        undecodable=undecodable,
    )


def _kind(given: str) -> DeadLetterKind:
    for kind in DEAD_LETTER_KINDS:
        if given == kind:
            return kind
    known = ", ".join(DEAD_LETTER_KINDS)
    raise UsageError(
        f"--kind {given!r} is not one of {known}{suggestion(given, DEAD_LETTER_KINDS)}"
    )


def check_chosen(selection: Selection, everything: bool, verb: str) -> None:
    """Check that it was said which ones.

    Raises:
        UsageError: it was not.
    """
    chosen = selection != Selection(undecodable=selection.undecodable)
    if not chosen and not everything and selection.undecodable is not True:
        raise UsageError(
            f"which ones? Give --id, a filter such as --event, or {verb} them with --all"
        )


def meant_ids(wanted: Sequence[str], found: Iterable[str]) -> set[str]:
    """The ids that are meant by ids, or beginnings of them, among those found.

    Raises:
        CommandError: there is none.
        UsageError: there are several for one beginning.
    """
    known = set(found)
    meant: set[str] = set()
    for one in wanted:
        begin = [one] if one in known else sorted(id_ for id_ in known if id_.startswith(one))
        if not begin:
            raise CommandError(f"there is no dead letter with the id {one!r}")
        if len(begin) > 1:
            listed = ", ".join(begin[:5]) + (", …" if len(begin) > 5 else "")
            raise UsageError(f"{one!r} begins several ids: {listed}")
        meant.update(begin)
    return meant


def doubt(condition: Any) -> None:
    """Say which fields of a condition nothing has; to be called after the look."""
    if isinstance(condition, Where):
        for doubt in condition.doubts():
            warn(f"--where: {doubt}")
