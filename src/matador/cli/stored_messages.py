"""Lists, shows and moves stored messages: what ``messages`` and ``dead-letters`` have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import typer

from matador.cli.commands import Common, Connecting
from matador.cli.interaction import confirm, counting_progress, working
from matador.cli.message_views import MessageView, Noun, as_json, as_table, in_full
from matador.cli.output import (
    FAILED,
    CommandError,
    UsageError,
    complain,
    note,
    plural,
    warn,
)
from matador.observe.sources import Source
from matador.runtime.dead_letters import Moved, Place, Progress

_LISTED = 100
_FAILURES_SHOWN = 20


def list_found(
    common: Connecting,
    seen: Sequence[Source],
    found: AsyncIterator[MessageView],
    limit: int | None,
    noun: Noun,
    *,
    filtered: bool,
) -> None:
    """List messages, one per line: at most ``limit``, by default 100 without ``--json``."""
    limit = limit if limit or common.as_json else _LISTED
    listed = asyncio.run(_collect(common, seen, found, limit and limit + 1))
    more = limit is not None and len(listed) > limit
    listed = listed[:limit]
    if more:
        remark = f"the first {limit:,}; --limit shows more"
    elif listed:
        remark = plural(len(listed), noun)
    else:
        remark = f"no {noun}s match" if filtered else f"no {noun}s"
    value = {_key(noun): [as_json(one, full=False) for one in listed], "more": more}
    common.show(value, *([as_table(listed)] if listed else []), remark=remark)


def show_found(
    common: Connecting,
    seen: Sequence[Source],
    found: AsyncIterator[MessageView],
    ids: Sequence[str],
    noun: Noun,
) -> None:
    """Show everything about the messages with these ids."""
    shown = asyncio.run(_collect(common, seen, found))
    chosen = _matching_ids(ids, (one.id for one in shown), noun)
    shown = [one for one in shown if one.id in chosen]
    value = {_key(noun): [as_json(one, full=True) for one in shown]}
    common.show(value, *map(in_full, shown))


Mover: TypeAlias = Callable[[Source, Sequence[Place], Progress], Awaitable[Moved]]


@dataclass(frozen=True, slots=True)
class Move:
    """Something to do with chosen messages, such as ``cancel``, of which they are ``cancelled``."""

    verb: str
    done: str
    noun: Noun
    choose: Callable[[], Awaitable[list[tuple[Source, Place]]]]
    carry_out: Mover


def check_chosen(chosen: bool, verb: str) -> None:
    """Check that the user chose something.

    Raises:
        UsageError: neither an id, a filter nor ``--all`` was given.
    """
    if not chosen:
        raise UsageError(f"choose what to {verb}: give --id, a filter such as --event, or --all")


def move_chosen(
    common: Connecting,
    seen: Sequence[Source],
    move: Move,
    ids: Sequence[str] | None,
    yes: bool,
) -> None:
    """Search, ask for confirmation, do it with a progress bar, and say what was done.

    Raises:
        typer.Exit: some of the messages were not moved.
    """
    asyncio.run(_move_chosen(common, seen, move, ids, yes))


async def _move_chosen(
    common: Connecting,
    seen: Sequence[Source],
    move: Move,
    ids: Sequence[str] | None,
    yes: bool,
) -> None:
    async with common.connected(seen):
        with working("searching…"):
            chosen = await move.choose()
        if ids:
            matching = _matching_ids(ids, (place.id for _, place in chosen), move.noun)
            chosen = [(source, place) for source, place in chosen if place.id in matching]
        if chosen and not yes:
            counted = plural(len(chosen), move.noun)
            confirm(f"{move.verb} {counted}", f"{counted} would be {move.done}")
        done = 0
        moved = Moved()
        with counting_progress(move.verb) as show_progress:

            def advance(number: int) -> None:
                nonlocal done
                done += number
                show_progress(done, len(chosen))

            for source in seen:
                places = [place for one, place in chosen if one is source]
                if places:
                    of_source = await move.carry_out(source, places, advance)
                    moved.done += of_source.done
                    moved.gone += of_source.gone
                    moved.held += of_source.held
                    moved.failed += of_source.failed
    _show_moved(common, move, moved, len(chosen))


def _show_moved(common: Common, move: Move, moved: Moved, chosen: int) -> None:
    noun, done = move.noun, move.done
    failed = [{"id": id_, "error": error} for id_, error in moved.failed]
    counts = {"chosen": chosen, done: moved.done, "gone": moved.gone, "held": moved.held}
    said = [f"{plural(moved.done, noun)} {done}"] if chosen else []
    common.show({**counts, "failed": failed}, *said, remark="" if chosen else f"no {noun}s match")
    if moved.gone:
        note(f"{plural(moved.gone, noun)} taken by another process in the meantime")
    warn_held(moved.held, noun)
    complain_about(moved.failed, done)
    if moved.failed or moved.held:
        raise typer.Exit(FAILED)


def warn_held(number: int, noun: Noun) -> None:
    """Print a warning about messages that another process holds."""
    if number:
        warn(f"{plural(number, noun)} held by another process; run this again later")


def complain_about(failed: Sequence[tuple[str, str]], done: str) -> None:
    """Print why messages could not be moved: the first ones, and the number of the others."""
    for id_, error in failed[:_FAILURES_SHOWN]:
        complain(f"{id_}: {error}")
    if len(failed) > _FAILURES_SHOWN:
        complain(f"and {len(failed) - _FAILURES_SHOWN:,} more could not be {done}")


async def _collect(
    common: Connecting,
    seen: Sequence[Source],
    found: AsyncIterator[MessageView],
    limit: int | None = None,
) -> list[MessageView]:
    collected: list[MessageView] = []
    async with common.connected(seen):
        async for message in found:
            collected.append(message)
            if len(collected) == limit:
                break
    return collected


def _matching_ids(wanted: Sequence[str], found: Iterable[str], noun: str) -> set[str]:
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


def _key(noun: Noun) -> str:
    return noun.replace(" ", "_") + "s"
