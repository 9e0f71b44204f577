"""Moves many dead letters: counted first, then confirmed, then carried out with progress."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Literal, TypeAlias

from matador.dashboard.audit import AuditLog
from matador.dashboard.letter_index import LetterIndex, batches
from matador.dashboard.sources import Sources
from matador.errors import MatadorError
from matador.runtime.dead_letters import BATCH

Verb: TypeAlias = Literal["redrive", "purge"]
State: TypeAlias = Literal["counting", "counted", "running", "done", "failed", "canceled"]

_MOST_KEPT = 100
_MOST_ERRORS = 20
_MOST_RECORDED = 20  # ids in the audit log

Choose: TypeAlias = Callable[[Callable[[int], None]], Awaitable[list[int]]]
"""Finds the numbers of letters, and reports how many it has found so far."""


@dataclass(slots=True)
class BulkMove:
    """A move of chosen letters and its progress."""

    id: str
    verb: Verb
    what: str
    state: State = "counting"
    numbers: list[int] = field(default_factory=list[int], repr=False)
    found: int = 0
    finished: int = 0
    done: int = 0
    gone: int = 0
    held: int = 0
    failed: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    problem: str | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def total(self) -> int:
        """How many letters were chosen."""
        return len(self.numbers)

    @property
    def past(self) -> str:
        """The result in the past tense."""
        return "redriven" if self.verb == "redrive" else "purged"

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state in ("done", "failed", "canceled")


class Moves:
    """The latest moves of this process. They run one at a time."""

    def __init__(
        self,
        sources: Sources,
        index: LetterIndex,
        audit: AuditLog,
        when_moved: Callable[[], None],
    ) -> None:
        self._sources = sources
        self._when_moved = when_moved
        self._index = index
        self._audit = audit
        self._moves: OrderedDict[str, BulkMove] = OrderedDict()
        self._turn = asyncio.Lock()

    def find(self, move_id: str) -> BulkMove | None:
        """The move with that id."""
        return self._moves.get(move_id)

    @property
    def recent(self) -> list[BulkMove]:
        """The moves, the latest first."""
        return list(reversed(self._moves.values()))

    def begin(self, verb: Verb, what: str, choose: Choose) -> BulkMove:
        """Start to count. Nothing is moved before ``confirm``."""
        move = BulkMove(secrets.token_urlsafe(9), verb, what)
        self._moves[move.id] = move
        for old in list(self._moves.values())[:-_MOST_KEPT]:
            if old.state not in ("counting", "running"):
                del self._moves[old.id]

        def found(number: int) -> None:
            move.found = number

        async def count() -> None:
            move.numbers = await choose(found)
            move.found = move.total
            move.state = "counted"

        self._run(move, count())
        return move

    def confirm(self, move: BulkMove, who: str) -> bool:
        """Start a move. False if it does not wait for confirmation."""
        if move.state != "counted":
            return False
        # On disk before anything is moved: after a purge, this is the only record of the letters.
        first = ", ".join(one.id for one in self._index.entries(move.numbers[:_MOST_RECORDED]))
        details = {"move": move.id, "what": move.what, "letters": move.total, "first": first}
        self._audit.add(who, move.verb, **details)
        move.state = "running"
        self._run(move, self._carry_out(move, who))
        return True

    def cancel(self, move: BulkMove) -> None:
        """Stop it. What was moved so far stays moved."""
        if move.task is not None and not move.task.done():
            move.task.cancel()
        elif not move.is_over:
            move.state = "canceled"

    async def stop(self) -> None:
        """Stop all of them."""
        tasks = [one.task for one in self._moves.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, move: BulkMove, work: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await work
            except asyncio.CancelledError:
                move.state = "canceled"
                raise
            except MatadorError as error:
                move.state, move.problem = "failed", str(error)
            except Exception as error:  # noqa: BLE001 - the error is shown to the user
                move.state, move.problem = "failed", f"unexpected {type(error).__name__}: {error}"

        move.task = asyncio.create_task(run())

    async def _carry_out(self, move: BulkMove, who: str) -> None:
        try:
            async with self._turn:
                for numbers in batches(move.numbers, BATCH):
                    await self._move_some(move, numbers)
            move.state = "done"
        finally:
            self._when_moved()
            state = move.state if move.state == "done" else "ended early"
            counts = {"done": move.done, "gone": move.gone, "held": move.held}
            self._audit.add(who, f"{move.verb} {state}", move=move.id, **counts, failed=move.failed)

    async def _move_some(self, move: BulkMove, chosen: Sequence[int]) -> None:
        entries = await asyncio.to_thread(self._index.entries, chosen)
        move.gone += len(chosen) - len(entries)
        for name, of_queue in groupby(sorted(entries, key=_queue_of), key=_queue_of):
            queue, letters = self._sources.queue(name), list(of_queue)
            assert queue is not None, "the index has letters of watched queues only"
            office = queue.source.letters
            mover = office.purge if move.verb == "purge" else office.redrive
            moved = await mover([one.place for one in letters])
            move.done += moved.done
            move.gone += moved.gone
            move.held += moved.held
            move.failed += len(moved.failed)
            move.errors += moved.failed[: _MOST_ERRORS - len(move.errors)]
            if not moved.held:  # otherwise it is unknown which ones; the next poll finds out
                kept = {id_ for id_, _ in moved.failed}
                gone = [one.number for one in letters if one.id not in kept]
                await asyncio.to_thread(self._index.forget, gone)
        move.finished += len(chosen)


_queue_of = attrgetter("queue")
