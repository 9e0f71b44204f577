"""Dead letters: by cause, by field, one by one; redrive, purge, edit. Never all at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from matador.dashboard.desk import Desk, desk_of, who
from matador.dashboard.guard import field, form_of, read_number
from matador.dashboard.letter_index import Entry, IndexFilter
from matador.dashboard.moves import Move
from matador.dashboard.pages.errors import not_found, said
from matador.errors import ConfigurationError, MatadorError
from matador.events.dead_letters import Letter
from matador.events.field_filters import FieldFilters

PAGE = 50
_MOST_GROUPS = 100
_SCAN_SECONDS = 1.0
_NAMES = {
    "group": "signature",
    "queue": "queue",
    "kind": "kind",
    "event": "event_key",
    "subscriber": "subscriber",
    "error": "error",
}


@dataclass(frozen=True, slots=True)
class Search:
    """What a page of dead letters is asked for: what the index knows, and payload fields."""

    chosen: IndexFilter
    fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Callable[[str], str], desk: Desk) -> Search:
        """The search of a query or a form.

        Raises:
            ConfigurationError: a filter cannot be read, or its field is masked.
        """
        known = {theirs: given(ours).strip() for ours, theirs in _NAMES.items()}
        fields = tuple(one.strip() for one in given("field").split(",") if one.strip())
        made = cls(IndexFilter(**known), fields)
        if fields:
            desk.masking.check_search(made.filters().names)
        return made

    def filters(self) -> FieldFilters:
        """The filters on payload fields."""
        return FieldFilters(self.fields)

    @property
    def query(self) -> str:
        """The same as the query of a URL."""
        return urlencode({name: value for name, value in self.values.items() if value})

    @property
    def values(self) -> dict[str, str]:
        """The values of the form's fields."""
        chosen = asdict(self.chosen)
        return {
            **{ours: chosen[theirs] for ours, theirs in _NAMES.items()},
            "field": ", ".join(self.fields),
        }

    @property
    def is_empty(self) -> bool:
        """Does it select everything?"""
        return self == Search(IndexFilter())

    def __str__(self) -> str:
        given = [f"{name} {value!r}" for name, value in self.values.items() if value]
        return "with " + ", ".join(given) if given else "all"


@dataclass(frozen=True, slots=True)
class Scan:
    """Letters that were found by reading payloads, and where to go on."""

    entries: list[Entry]
    looked_at: int
    more: str | None
    doubts: list[str]


async def dead_letters(request: Request) -> Response:
    """The causes, and a page of letters."""
    desk = desk_of(request)
    monitor = desk.monitor
    if not monitor.browses_letters:
        return desk.renderer.page(request, "dead_letters_cannot.html", snapshot=monitor.snapshot)
    if monitor.takes_to_browse:
        counted = sum(desk.index.count_of(*one) for one in desk.app.dead_letters.queues())
        stale = not desk.index.complete or counted != monitor.snapshot.dead
        if stale or "look" in request.query_params:
            await monitor.read_letters(whole=True)
    try:
        search = Search.of(lambda name: request.query_params.get(name, ""), desk)
        scan = (
            await _scan(desk, search, request.query_params.get("from")) if search.fields else None
        )
    except ConfigurationError as error:
        return said(request, str(error), HTTPStatus.BAD_REQUEST)
    before = read_number(request.query_params.get("before", ""))
    values = await letters_values(desk, search, before, scan)
    return desk.renderer.page(request, "dead_letters.html", **values)


async def letters_values(
    desk: Desk, search: Search, before: int | None, scan: Scan | None
) -> dict[str, Any]:
    """What the page of dead letters shows."""
    index = desk.index

    def look() -> dict[str, Any]:
        more = None
        if scan is None:
            entries = index.page(search.chosen, before, PAGE + 1)
            if len(entries) > PAGE:
                entries = entries[:PAGE]
                more = entries[-1].number
        else:
            entries = scan.entries
        return {
            "groups": index.groups(search.chosen, _MOST_GROUPS) if before is None else [],
            "entries": entries,
            "more": more,
            "matching": index.count(search.chosen),
            "choices": {
                name: index.values_of(_NAMES[name])
                for name in ("queue", "kind", "event", "subscriber")
            },
        }

    return {
        **await asyncio.to_thread(look),
        "scan": scan,
        "search": search,
        "first_page": before is None,
        "total": desk.monitor.snapshot.dead,
        "reading": index.reading,
        "complete": index.complete,
        "problem": desk.monitor.snapshot.problem or desk.monitor.index_problem,
        "unreadable": index.unreadable,
        "takes": desk.monitor.takes_to_browse,
        "transport": desk.app.transport.name,
        "moves": [one for one in desk.moves.recent if not one.is_over],
    }


async def _scan(desk: Desk, search: Search, start: str | None) -> Scan:
    """Read payloads for a moment, from a position on, until a page of matches is found."""
    filters = search.filters()
    found: list[Letter] = []
    looked_at = 0
    until = time.monotonic() + _SCAN_SECONDS
    more = None
    office = desk.app.dead_letters
    first, _, after = (start or "0:").partition(":")
    begin = read_number(first) or 0
    for at, (queue, kind) in enumerate(office.queues()):
        if at < begin:
            continue
        position = (after or None) if at == begin else None
        async for letter in office.browse_queue(queue, kind, after=position):
            looked_at += 1
            if search.chosen.fits(letter) and filters(letter.payload):
                found.append(letter)
            if len(found) == PAGE or (looked_at % 100 == 0 and time.monotonic() > until):
                more = f"{at}:{letter.stored.position}"
                break
        if more is not None:
            break
    await desk.index.add(found)
    numbers = [number for one in found if (number := desk.index.number_of(one)) is not None]
    return Scan(desk.index.entries(numbers), looked_at, more, filters.doubts())


# -- one letter ------------------------------------------------------------------------------------


async def edit(request: Request) -> Response:
    """A form to change the payload of one letter."""
    desk = desk_of(request)
    entry, letter = await _one(desk, request.path_params["number"])
    if entry is None or letter is None:
        return not_found(request, "This dead letter is gone.")
    payload: dict[str, Any] | None = letter.payload
    if payload is None:
        return said(request, "Its payload cannot be decoded, so it cannot be edited.")
    shown = desk.masking.shown(payload)
    return desk.renderer.page(
        request,
        "edit.html",
        entry=entry,
        text=json.dumps(shown, indent=2, ensure_ascii=False, default=str),
        masked=shown != payload,
        problem=None,
    )


async def edited(request: Request) -> Response:
    """Redrive one letter with the payload of the form."""
    desk = desk_of(request)
    entry, letter = await _one(desk, request.path_params["number"])
    if entry is None or letter is None:
        return not_found(request, "This dead letter is gone.")
    text = field(form_of(request), "payload")

    def again(problem: str) -> Response:
        return desk.renderer.page(
            request,
            "edit.html",
            HTTPStatus.BAD_REQUEST,
            entry=entry,
            text=text,
            masked=bool(desk.masking),
            problem=problem,
        )

    try:
        given: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        return again(f"This is not JSON: {error}")
    if not isinstance(given, dict):
        return again("A payload is a JSON object.")
    data: Any = desk.masking.restored(given, letter.payload)
    if desk.masking and desk.masking.is_left(data):
        return again("A masked value was moved, so its value is not known any more.")
    before, after = desk.masking.shown(letter.payload), desk.masking.shown(data)
    changes = _changes(before, after)
    hidden = sorted(
        name
        for name in data
        if desk.masking.covers(name) and data[name] != letter.payload.get(name)
    )
    await desk.record(
        request,
        "edit and redrive",
        id=entry.id,
        queue=entry.stored_in,
        changes=changes,
        masked_changes=hidden,
    )
    office = desk.app.dead_letters
    moved = await office.redrive_edited(office.place(letter), data, expected=letter.payload)
    desk.monitor.look_soon()
    if moved.failed:
        await desk.record(request, "edit refused", id=entry.id, error=moved.failed[0][1])
        return again(moved.failed[0][1])
    if moved.held:
        await desk.record(request, "edit refused", id=entry.id, error="held by another process")
        return again("Another process holds this dead letter. Try again in a moment.")
    desk.index.forget([entry.number])
    return said(request, "Redriven with the new payload. The change is in the audit log.")


async def _one(desk: Desk, number: str) -> tuple[Entry | None, Letter | None]:
    wanted = read_number(number)
    found = [] if wanted is None else desk.index.entries([wanted])
    if not found:
        return None, None
    return found[0], await desk.index.letter(found[0])


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The fields that differ, with both values; None where there is none."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: [before.get(name), after.get(name)] for name in names}


# -- moving many -----------------------------------------------------------------------------------


async def begin_move(request: Request) -> Response:
    """Count what would be moved; the next page asks for confirmation."""
    desk, form = desk_of(request), form_of(request)
    verb = field(form, "verb")
    if verb not in ("redrive", "purge"):
        return said(request, "Choose to redrive or to purge.", HTTPStatus.BAD_REQUEST)
    if field(form, "scope") == "all":
        try:
            search = Search.of(lambda name: field(form, name), desk)
        except ConfigurationError as error:
            return said(request, str(error), HTTPStatus.BAD_REQUEST)
        what = f"dead letters: {search}"

        async def choose(found: Callable[[int], None]) -> list[int]:
            if not search.fields:
                # What cannot be decoded would come back at once, so it must be chosen itself.
                only = verb == "redrive" and not search.chosen.signature
                chosen = search.chosen
                return await asyncio.to_thread(desk.index.numbers, chosen, decodable=only)
            return await _scan_all(desk, search, found)
    else:
        given = (read_number(one) for one in form.get("letter", []))
        numbers = [one for one in given if one is not None]
        if not numbers:
            return said(request, "Select at least one dead letter.", HTTPStatus.BAD_REQUEST)
        what = f"{len(numbers):,} selected dead letters"

        async def choose(found: Callable[[int], None]) -> list[int]:
            return numbers

    move = desk.moves.begin(verb, what, choose)
    return RedirectResponse(f"/moves/{move.id}", HTTPStatus.SEE_OTHER)


async def _scan_all(desk: Desk, search: Search, found: Callable[[int], None]) -> list[int]:
    numbers: list[int] = []
    start: str | None = None
    while True:
        scan = await _scan(desk, search, start)
        numbers += [entry.number for entry in scan.entries]
        found(len(numbers))
        if scan.more is None:
            return numbers
        start = scan.more


async def show_move(request: Request) -> Response:
    """How far a move has come."""
    desk = desk_of(request)
    move = desk.moves.find(request.path_params["id"])
    if move is None:
        return not_found(request, "There is no such move any more.")
    return desk.renderer.page(request, "move.html", move=move)


async def confirm_move(request: Request) -> Response:
    """Carry a move out."""
    desk, form = desk_of(request), form_of(request)
    move = desk.moves.find(request.path_params["id"])
    if move is None:
        return not_found(request, "There is no such move any more.")
    if move.verb == "purge" and field(form, "sure") != "purge":
        return said(request, "Type the word purge to confirm.", HTTPStatus.BAD_REQUEST)
    if not desk.moves.confirm(move, who(request)):
        return said(request, "This was confirmed or cancelled before.", HTTPStatus.CONFLICT)
    return RedirectResponse(f"/moves/{move.id}", HTTPStatus.SEE_OTHER)


async def cancel_move(request: Request) -> Response:
    """Stop a move."""
    desk = desk_of(request)
    move = desk.moves.find(request.path_params["id"])
    if move is None:
        return not_found(request, "There is no such move any more.")
    await desk.record(request, "cancel", move=move.id)
    desk.moves.cancel(move)
    return RedirectResponse(f"/moves/{move.id}", HTTPStatus.SEE_OTHER)


async def move_values(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    """What the live part of a move shows."""
    move: Move | None = desk.moves.find(params.get("id", ""))
    if move is None:
        raise MatadorError("there is no such move")
    return {"move": move}
