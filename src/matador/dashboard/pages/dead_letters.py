"""Dead letters: by cause, by field, one by one; redrive, purge, edit, export. Never all at once."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from csv import writer
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from matador.dashboard.desk import Desk, desk_of, user_of
from matador.dashboard.guard import field, form_of, read_number
from matador.dashboard.letter_index import BATCH, IndexedLetter, IndexFilter
from matador.dashboard.moves import BulkMove
from matador.dashboard.pages.errors import not_found, said
from matador.dashboard.render import plural
from matador.dashboard.sources import WatchedQueue
from matador.errors import ConfigurationError, MatadorError, QueueNotFoundError
from matador.events.field_filters import FieldFilters
from matador.model.topology import DeadLetterKind
from matador.runtime.dead_letters import Letter

PAGE = 50
_MOST_GROUPS = 100
_SCAN_SECONDS = 1.0
_NAMES = {
    "group": "signature",
    "queue": "queue",
    "kind": "kind",
    "name": "name",
    "receiver": "receiver",
    "error": "error",
}
_FORMATS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}
_EXPORTED = (
    *("id", "correlation_id", "queue", "kind", "name", "receiver", "error_type", "error"),
    *("died_at", "attempts", "signature"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Search:
    """The search of a page of dead letters: criteria of the index, and payload fields."""

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
        """Whether it selects everything."""
        return self == Search(IndexFilter())

    def __str__(self) -> str:
        given = [f"{name} {value!r}" for name, value in self.values.items() if value]
        return "with " + ", ".join(given) if given else "all"


@dataclass(frozen=True, slots=True)
class Scan:
    """Letters that were found by reading payloads, and the position to continue from."""

    entries: list[IndexedLetter]
    looked_at: int
    more: str | None
    doubts: list[str]


async def dead_letters(request: Request) -> Response:
    """The causes, and a page of letters."""
    desk = desk_of(request)
    await _read_by_taking(desk, always="look" in request.query_params)
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


async def export(request: Request) -> Response:
    """Dead letters as a file: CSV, or a JSON object in each line. Payloads are not in it."""
    desk = desk_of(request)
    form = request.query_params.get("format", "")
    if form not in _FORMATS:
        return said(request, "Choose csv or jsonl.", HTTPStatus.BAD_REQUEST)
    await _read_by_taking(desk, always=False)
    search = Search.of(lambda name: request.query_params.get(name, ""), desk)
    if search.fields:
        text = "What was searched by payload cannot be exported; leave the field out."
        return said(request, text, HTTPStatus.BAD_REQUEST)
    await desk.record(request, "export dead letters", what=str(search), format=form)
    headers = {"content-disposition": f'attachment; filename="dead-letters.{form}"'}
    lines = _exported(desk, search.chosen, csv=form == "csv")
    return StreamingResponse(lines, media_type=_FORMATS[form], headers=headers)


async def _exported(desk: Desk, chosen: IndexFilter, *, csv: bool) -> AsyncGenerator[bytes]:
    if csv:
        yield _csv_line(_EXPORTED)
    before = None
    while entries := await asyncio.to_thread(desk.index.page, chosen, before, BATCH):
        for one in entries:
            died = None if one.died_at is None else datetime.fromtimestamp(one.died_at, UTC)
            values = {name: getattr(one, name, None) for name in _EXPORTED}
            values["died_at"] = died and died.isoformat(timespec="milliseconds")
            yield _csv_line(values.values()) if csv else json.dumps(values).encode() + b"\n"
        before = entries[-1].number


def _csv_line(values: Iterable[Any]) -> bytes:
    """A row. A foreign value that a spreadsheet would treat as a formula gets an apostrophe."""
    cells = ("" if one is None else str(one) for one in values)
    line = io.StringIO()
    writer(line).writerow(f"'{one}" if one.startswith(_FORMULA) else one for one in cells)
    return line.getvalue().encode()


async def _read_by_taking(desk: Desk, *, always: bool) -> None:
    """Read the queues whose letters must be taken in order to be shown, if their number differs."""
    monitor, index = desk.monitor, desk.index
    queues = monitor.readable(taking=True)
    known = sum(index.count_of(queue, kind) for queue in queues for kind in queue.kinds)
    views = {view.watched: view.dead for view in monitor.snapshot.queues}
    counted = sum(views.get(queue, 0) for queue in queues)
    unread = any(queue.name not in index.read for queue in queues)
    if always or unread or known != counted:
        await monitor.read_letters(whole=True, taking=True)


async def letters_values(
    desk: Desk, search: Search, before: int | None, scan: Scan | None
) -> dict[str, Any]:
    """The values of the page of dead letters."""
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
                for name in ("queue", "kind", "name", "receiver")
            },
        }

    blind = {one.transport.name for one in desk.sources.all if not one.browses_letters}
    return {
        **await asyncio.to_thread(look),
        "scan": scan,
        "search": search,
        "first_page": before is None,
        "reading": index.reading,
        "complete": desk.monitor.is_everything_read,
        "snapshot": desk.monitor.snapshot,
        "problem": desk.monitor.index_problem,
        "unreadable": index.unreadable,
        "takes": sorted({one.source.transport.name for one in desk.monitor.readable(taking=True)}),
        "cannot": [f"{name} cannot show dead letters." for name in sorted(blind)],
        "moves": [one for one in desk.moves.recent if one.state in ("counting", "running")],
    }


async def _scan(desk: Desk, search: Search, start: str | None) -> Scan:
    """Read payloads from a position on, for a limited time, until a page of matches is found."""
    filters = search.filters()
    found: list[tuple[WatchedQueue, Letter]] = []
    looked_at = 0
    until = time.monotonic() + _SCAN_SECONDS
    more = None
    first, _, after = (start or "0:").partition(":")
    begin = read_number(first) or 0
    monitor = desk.monitor
    queues = [*monitor.readable(taking=False), *monitor.readable(taking=True)]
    places: list[tuple[WatchedQueue, DeadLetterKind]]
    places = [(one, kind) for one in queues for kind in one.kinds]
    for at, (queue, kind) in enumerate(places):
        if at < begin:
            continue
        position = (after or None) if at == begin else None
        with contextlib.suppress(QueueNotFoundError):  # it was never created, so it has none
            async for letter in queue.source.letters.browse_queue(
                queue.queue, kind, after=position
            ):
                looked_at += 1
                if search.chosen.fits(letter, queue.name) and filters(letter.payload):
                    found.append((queue, letter))
                if len(found) == PAGE or (looked_at % 100 == 0 and time.monotonic() > until):
                    more = f"{at}:{letter.stored.position}"
                    break
        if more is not None:
            break
    await desk.index.add(found)
    numbers = [number for one in found if (number := desk.index.number_of(*one)) is not None]
    return Scan(desk.index.entries(numbers), looked_at, more, filters.doubts())


# -- one letter ------------------------------------------------------------------------------------


async def edit(request: Request) -> Response:
    """A form to change the payload of one letter."""
    desk = desk_of(request)
    entry, letter = await _one(desk, request.path_params["number"])
    if entry is None or letter is None:
        return not_found(request, "This dead letter is gone.")
    payload = letter.payload
    if letter.problem is not None:
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
    data: Any = desk.masking.restored(given, letter.payload)
    if desk.masking and desk.masking.is_left(data):
        return again("A masked value was moved, so its value is not known any more.")
    before, after = desk.masking.shown(letter.payload), desk.masking.shown(data)
    changes = _changes(before, after)
    names = list(cast("dict[str, Any]", data)) if isinstance(data, dict) else []
    hidden = sorted(
        name
        for name in names
        if desk.masking.covers(name) and data[name] != _member(letter.payload, name)
    )
    queue = desk.sources.queue(entry.queue)
    assert queue is not None, "the index has letters of watched queues only"
    try:
        queue.source.check_edit(queue.full_name, letter, data)
    except MatadorError as error:
        return again(str(error))
    await desk.record(
        request,
        "edit and redrive",
        id=entry.id,
        queue=entry.stored_in,
        changes=changes,
        masked_changes=hidden,
    )
    office = queue.source.letters
    moved = await office.redrive_edited(office.place(letter), data, expected=letter.payload)
    desk.monitor.look_soon()
    if moved.failed:
        await desk.record(request, "edit refused", id=entry.id, error=moved.failed[0][1])
        return again(moved.failed[0][1])
    if moved.held:
        await desk.record(request, "edit refused", id=entry.id, error="held by another process")
        return again("Another process holds this dead letter. Try again in a moment.")
    desk.index.forget([entry.number])
    done = "Redriven with the new payload. The change is in the audit log."
    return said(request, done, link="/dead-letters", label="Back to the dead letters")


async def _one(desk: Desk, number: str) -> tuple[IndexedLetter | None, Letter | None]:
    wanted = read_number(number)
    found = [] if wanted is None else desk.index.entries([wanted])
    if not found:
        return None, None
    return found[0], await desk.index.letter(found[0])


def _changes(before: Any, after: Any) -> dict[str, Any]:
    """The fields that differ, with both values; None for a missing one."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return {"payload": [before, after]}
    both = cast("dict[str, Any]", {**before, **after})
    names = [name for name in both if _member(before, name) != _member(after, name)]
    return {name: [_member(before, name), _member(after, name)] for name in names}


def _member(value: Any, name: str) -> Any:
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


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
        # The cause as text, because a purge removes all other data about the group.
        cause = await asyncio.to_thread(desk.index.cause, search.chosen.signature)
        what = "all dead letters" if search.is_empty else f"dead letters {search}"
        what += f": {cause}" if cause else ""

        async def choose(found: Callable[[int], None]) -> list[int]:
            if not search.fields:
                # Letters that cannot be decoded would fail again at once, so they must be selected
                # explicitly.
                only = verb == "redrive" and not search.chosen.signature
                chosen = search.chosen
                return await asyncio.to_thread(desk.index.numbers, chosen, decodable=only)
            return await _scan_all(desk, search, found)
    else:
        given = (read_number(one) for one in form.get("letter", []))
        numbers = [one for one in given if one is not None]
        if not numbers:
            return said(request, "Select at least one dead letter.", HTTPStatus.BAD_REQUEST)
        what = plural(len(numbers), "selected dead letter")

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
    """The progress of a move."""
    desk = desk_of(request)
    move = desk.moves.find(request.path_params["id"])
    if move is None:
        return not_found(request, "There is no such move any more.")
    return desk.renderer.page(request, "move.html", move=move)


async def confirm_move(request: Request) -> Response:
    """Start a move."""
    desk, form = desk_of(request), form_of(request)
    move = desk.moves.find(request.path_params["id"])
    if move is None:
        return not_found(request, "There is no such move any more.")
    if move.verb == "purge" and field(form, "sure") != "purge":
        return said(request, "Type the word purge to confirm.", HTTPStatus.BAD_REQUEST)
    if not desk.moves.confirm(move, user_of(request)):
        return said(request, "This was confirmed or canceled before.", HTTPStatus.CONFLICT)
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
    """The values of the live part of a move."""
    move: BulkMove | None = desk.moves.find(params.get("id", ""))
    if move is None:
        raise MatadorError("there is no such move")
    return {"move": move}
