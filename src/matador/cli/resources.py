"""What commands about messages, dead letters, jobs and queues have in common.

A ``Resource`` lists and shows items of one kind. A ``Verb`` is what a command does to the items
that its user chose: it asks for confirmation first and reports what failed. Every resource and
every verb of the command line is in the tables here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
import typer
from rich.console import RenderableType
from rich.table import Table

from matador.cli import views
from matador.cli.commands import Common
from matador.cli.output import FAILED, CommandError, UsageError, complain, confirm, plural, warn
from matador.cli.views import MessageView
from matador.jobs import Job

T = TypeVar("T")

LISTED = 100
"""How many items are listed without ``--limit``."""

_FAILURES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """How items of one kind look: in a table, in full, and as JSON (``as_json(item, full)``)."""

    noun: str
    table: Callable[[Sequence[T]], Table]
    in_full: Callable[[T], RenderableType]
    as_json: Callable[[T, bool], dict[str, Any]]

    @property
    def key(self) -> str:
        """The name of the items in JSON."""
        return f"{self.noun.replace(' ', '_')}s"

    def list(
        self,
        common: Common,
        found: Sequence[T],
        limit: int | None,
        *,
        state: str = "",
        none: str = "",
        **about: object,
    ) -> None:
        """Print at most ``limit`` items; if there are more, ``found`` has at least one of them.

        Args:
            common: says how to print them.
            found: the items.
            limit: None: no limit.
            state: the state that all of them are in.
            none: what to add to the remark that there are none.
            about: more fields of the JSON object.
        """
        shown = found[:limit]
        more = len(found) > len(shown)
        noun = f"{state} {self.noun}".strip()
        if more:
            remark = f"the first {limit:,}; --limit shows more"
        else:
            remark = plural(len(shown), noun) if shown else f"no {noun}s{none}"
        value = {**about, self.key: [self.as_json(one, False) for one in shown], "more": more}
        common.show(value, *([self.table(shown)] if shown else []), remark=remark)

    def show(self, common: Common, found: Sequence[T]) -> None:
        """Print everything about items."""
        value = {self.key: [self.as_json(one, True) for one in found]}
        common.show(value, *map(self.in_full, found))


MESSAGES: Final[Resource[MessageView]] = Resource(
    "message", views.messages_table, views.message_in_full, views.message_json
)
DEAD_LETTERS: Final[Resource[MessageView]] = Resource(
    "dead letter", views.dead_letters_table, views.message_in_full, views.message_json
)
JOBS: Final[Resource[Job[Any]]] = Resource(
    "job", views.jobs_table, views.job_in_full, lambda job, full: msgspec.to_builtins(job)
)


@dataclass(frozen=True, slots=True)
class Verb:
    """A change to chosen items, such as ``cancel``, after which they are ``cancelled``."""

    name: str
    done: str

    def require_choice(self, chosen: bool, options: str) -> None:
        """Check that the user chose something.

        Raises:
            UsageError: the user did not. ``options``: how to choose.
        """
        if not chosen:
            raise UsageError(f"choose what to {self.name}: give {options}")

    def confirm(self, number: int, noun: str) -> None:
        """Ask for confirmation, with the number of items. See ``output.confirm``."""
        counted = plural(number, noun)
        confirm(f"{self.name} {counted}", f"{counted} would be {self.done}")

    def report(self, failed: Sequence[tuple[str, str]], held: int = 0, noun: str = "") -> None:
        """Print the items that could not be changed, given their ids and the reasons.

        ``held``: how many items another process holds.

        Raises:
            typer.Exit: there is such an item.
        """
        if held:
            warn(f"{plural(held, noun)} held by another process; run this again later")
        for id_, error in failed[:_FAILURES_SHOWN]:
            complain(f"{id_}: {error}")
        if len(failed) > _FAILURES_SHOWN:
            complain(f"and {len(failed) - _FAILURES_SHOWN:,} more could not be {self.done}")
        if failed or held:
            raise typer.Exit(FAILED)


CANCEL: Final = Verb("cancel", "cancelled")
REDRIVE: Final = Verb("redrive", "redriven")
PURGE: Final = Verb("purge", "purged")
RETRY: Final = Verb("retry", "retried")
REMOVE: Final = Verb("remove", "removed")


def failures_json(failed: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """The items that could not be changed, as ``--json`` prints them."""
    return [{"id": id_, "error": error} for id_, error in failed]


def show_paused(common: Common, queue: str, paused: bool) -> None:
    """Print whether a queue is paused."""
    text = f"{queue} is paused" if paused else f"{queue} is not paused"
    common.show({"queue": queue, "paused": paused}, text)


def matching_ids(wanted: Sequence[str], found: Iterable[str], noun: str) -> set[str]:
    """The ids, among those found, that equal or begin with those wanted.

    Raises:
        CommandError: one matches nothing.
        UsageError: one is empty, or the start of several.
    """
    known = set(found)
    matching: set[str] = set()
    for one in wanted:
        if not one:
            raise UsageError("--id is empty")
        begin = [one] if one in known else sorted(id_ for id_ in known if id_.startswith(one))
        if not begin:
            raise CommandError(f"there is no {noun} with the id {one!r}")
        if len(begin) > 1:
            listed = ", ".join(begin[:5]) + (", …" if len(begin) > 5 else "")
            raise UsageError(f"--id {one!r} is ambiguous: {listed}")
        matching.update(begin)
    return matching
