"""Live pages by server-sent events: the changing part of a page, rendered again after each poll."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from matador.dashboard.desk import Desk, desk_of
from matador.dashboard.guard import session_of
from matador.dashboard.pages import dead_letters, jobs, lake, overview, queues
from matador.dashboard.sessions import Session
from matador.errors import MatadorError

log = logging.getLogger("matador.dashboard")

MOST_STREAMS = 100
_UNREAD = 30.0  # seconds after which a browser that does not read is disconnected
_STILL_THERE = 15.0  # seconds after which a keep-alive is sent

Values = Callable[[Desk, dict[str, str]], Awaitable[dict[str, Any]]]


async def _dead_letter_groups(desk: Desk, params: dict[str, str]) -> dict[str, Any]:
    search = dead_letters.Search.of(lambda name: params.get(name, ""), desk)
    return await dead_letters.letters_values(desk, search, None, None)


PARTS: Final[dict[str, Values]] = {
    **overview.LIVE,
    "queues": queues.queues_values,
    "queue": queues.queue_values,
    "dead_letters": _dead_letter_groups,
    "move": dead_letters.move_values,
    "jobs": jobs.jobs_values,
    "lake": lake.lake_values,
    "replay": lake.replay_values,
}
"""The parts of pages that change by themselves; each has a template ``NAME_live.html``."""


async def live(request: Request) -> Response:
    """The live part of a page, sent repeatedly until the browser disconnects."""
    desk = desk_of(request)
    params = dict(request.query_params)
    name = params.pop("page", "")
    if name not in PARTS:
        return PlainTextResponse("There is no such page.\n", HTTPStatus.NOT_FOUND)
    if desk.streams >= MOST_STREAMS:
        return PlainTextResponse("Too many pages are open.\n", HTTPStatus.SERVICE_UNAVAILABLE)
    return _EventStream(desk, _parts(desk, request, session_of(request), name, params))


class _EventStream(StreamingResponse):
    """Ends when its reader stops reading, to free the slot."""

    def __init__(self, desk: Desk, parts: AsyncGenerator[bytes]) -> None:
        super().__init__(parts, media_type="text/event-stream")
        self._desk, self._stream = desk, parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient(message: Message) -> None:
            try:
                async with asyncio.timeout(_UNREAD):
                    await send(message)
            except TimeoutError as error:
                raise _NobodyReads from error

        self._desk.streams += 1  # at once, so that concurrent requests see the count
        try:
            await super().__call__(scope, receive, patient)
        except* _NobodyReads:
            log.info("a live page was ended: its browser does not read it")
        finally:
            self._desk.streams -= 1
            await self._stream.aclose()


class _NobodyReads(Exception):
    """The browser did not read the data in time."""


async def _parts(
    desk: Desk, request: Request, session: Session, name: str, params: dict[str, str]
) -> AsyncGenerator[bytes]:
    last = b""
    yield b"retry: 3000\n\n"
    while not desk.ending and desk.sessions.find(session.id) is not None:
        await desk.monitor.changed(_STILL_THERE)
        try:
            text = await rendered(desk, session, name, params)
        except MatadorError:
            return  # the subject is gone; the page stays as it is
        digest = hashlib.sha256(text.encode()).digest()
        if digest != last:
            last = digest
            lines = "".join(f"data: {line}\n" for line in text.splitlines())
            yield f"event: part\n{lines}\n".encode()
        else:
            yield b": still there\n\n"
        if await request.is_disconnected():
            return


async def rendered(desk: Desk, session: Session, name: str, params: dict[str, str]) -> str:
    """The live part of a page, as HTML."""
    values = await PARTS[name](desk, params)
    return desk.renderer.text(
        f"{name}_live.html",
        csrf=session.csrf,
        role=session.role,
        operator=session.role == "operator",
        **values,
    )
