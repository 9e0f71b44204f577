"""``Journal``: records what is sent and attempted, for every way in."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from matador.codec.as_json import as_json
from matador.errors import ConfigurationError
from matador.model.options import Seconds, seconds, whole_number
from matador.observe.journal.records import (
    Record,
    encode_record,
    record_of_attempt,
    record_of_sent,
)
from matador.observe.journal.ship_process import ShippingProcess
from matador.observe.journal.writer import JournalWriter
from matador.runtime.facts import Attempt, Sent
from matador.runtime.hooks import Hooks
from matador.storage.paths import local_path
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.journal")

_LEFT_OUT = "the journal could not encode a record; it is left out"
_A_MOMENT = 0.001  # seconds; by then, the transport's thread is busy and does not need this one
_BLOCK = 1024 * 1024  # bytes handed to the writer at a time
_MANY = 1000  # records; beyond this, callers wait until they are passed to the writer

_Kept: TypeAlias = tuple[Callable[..., Record], tuple[object, ...]]
"""A function that makes a record, and its arguments."""


class Journal(Hooks):
    """Records every message sent and every delivery outcome in a folder, for the data pipeline.

    It is a hook of applications, job queues, workers, RPC, pub/sub and channels. One journal may
    serve all of them in a process. A thread writes the records, so that none of them waits for the
    disk, unless ``max_pending`` bytes are buffered: then senders and workers wait, too. A segment
    appears when it reaches ``rotate_size`` bytes or is ``rotate_age`` seconds old. Several
    processes may share a folder. If the disk is full or does not respond for ten seconds, the
    application continues, and the journal records how many records were lost.

    With ``ship_to``, such as ``s3://bucket/journal``, a process copies finished segments there,
    for an ingest to read. ``storage_options`` are those of the store; what is not given comes from
    the environment. ``delete_shipped`` removes local segments whose copies are confirmed.

    Example:
        >>> from matador.observe import Journal
        >>> journal = Journal("journal/")
        >>> app = Matador("sqlite:///shop.db", schema=schema, hooks=[journal])
        >>> emails = Queue("emails", provider="sqlite:///jobs.db", hooks=[journal])
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        rotate_size: int = 64 * 1024 * 1024,
        rotate_age: Seconds = 60.0,
        max_pending: int = 64 * 1024 * 1024,
        ship_to: str | Path | None = None,
        storage_options: Mapping[str, Any] | None = None,
        delete_shipped: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._folder = local_path(folder, "Journal: folder")
        self._writer = JournalWriter(
            self._folder,
            rotate_size=whole_number(rotate_size, "Journal: rotate_size", minimum=1),
            rotate_age=seconds(rotate_age, "Journal: rotate_age", minimum=0.01),
            max_pending=whole_number(max_pending, "Journal: max_pending", minimum=1),
        )
        self._shipping = None
        if ship_to is not None:
            self._shipping = ShippingProcess(
                self._folder, os.fspath(ship_to), storage_options, delete=delete_shipped
            )
        elif storage_options or delete_shipped:
            raise ConfigurationError(
                "Journal: storage_options and delete_shipped need ship_to, which names the target "
                "segments are shipped"
            )
        self._clock: Clock = clock or SystemClock()
        self._kept: deque[_Kept] = deque()
        self._awaited: asyncio.AbstractEventLoop | None = None
        self._users = 0

    def __repr__(self) -> str:
        return f"Journal({str(self._folder)!r})"

    @property
    def folder(self) -> Path:
        """The folder of the segments."""
        return self._folder

    @property
    def dropped(self) -> int:
        """How many records were lost because the disk was full or did not respond."""
        return self._writer.dropped

    async def flush(self) -> None:
        """Wait until everything recorded so far is durable and visible to readers."""
        await self._hand_over_all_but(0)
        await asyncio.to_thread(self._writer.flush)

    # -- hooks ------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Open the journal. Applications, queues and workers of one process may share it."""
        self._users += 1  # if it cannot be opened, on_stop is called nevertheless
        if not self._writer.running:
            self._writer.start()
            if self._shipping is not None:
                self._shipping.start()
            atexit.register(self._finish)  # a queue that is never closed loses no record

    async def on_stop(self) -> None:
        """Finish the segment, if this was the last user of the journal."""
        self._users -= 1
        await self._hand_over_all_but(0)
        if self._users == 0:
            atexit.unregister(self._finish)
            await asyncio.to_thread(self._end)

    def on_sent(self, batch: Sequence[Sent]) -> Awaitable[None] | None:
        """Buffer the facts. Payloads are encoded now, because the caller may change them."""
        now = self._now()
        payload: Any = None
        encoded = b""
        for sent in batch:
            try:
                data = sent.data
                if data is None:
                    if not encoded or sent.payload is not payload:  # once for all subscribers
                        payload, encoded = sent.payload, as_json(sent.payload)
                    data = encoded
                before = None if sent.before is None else as_json(sent.before)
                self._kept.append((record_of_sent, (sent, data, before, now)))
            except Exception:
                log.exception(_LEFT_OUT)
        return self._await_more()

    def on_attempted(self, batch: Sequence[Attempt]) -> Awaitable[None] | None:
        """Buffer the facts."""
        now, worker = self._now(), self._writer.name
        self._kept.extend([(record_of_attempt, (attempt, now, worker)) for attempt in batch])
        return self._await_more()

    # -- internals --------------------------------------------------------------------------------

    def _await_more(self) -> Awaitable[None] | None:
        """Schedule the encoding of records for when the application waits for its broker.

        Returns an awaitable if many records are buffered, so that the caller slows down to the
        writer's speed.
        """
        self._soon()
        return None if len(self._kept) <= _MANY else self._hand_over_all_but(_MANY)

    def _soon(self) -> None:
        awaited = self._awaited
        if awaited is None or awaited.is_closed():
            self._awaited = asyncio.get_running_loop()
            self._awaited.call_later(_A_MOMENT, self._hand_over)

    def _hand_over(self) -> None:
        # In this order, so that facts buffered by another thread meanwhile are taken here or
        # scheduled again.
        self._awaited = None
        if not self._writer.is_full:
            self._put_block()
        if self._kept:
            self._soon()

    async def _hand_over_all_but(self, few: int) -> None:
        while len(self._kept) > few:
            if self._writer.is_full:
                await asyncio.sleep(_A_MOMENT)
            else:
                self._put_block()
                await asyncio.sleep(0)

    def _put_block(self) -> None:
        kept, size = self._kept, 0
        lines: list[bytes] = []
        while size < _BLOCK and kept:
            try:
                make, facts = kept.popleft()
            except IndexError:  # another thread has taken the last one
                break
            try:
                line = encode_record(make(*facts))
            except Exception:
                log.exception(_LEFT_OUT)
                continue
            size += len(line)
            lines.append(line)
        if lines:
            count = len(lines)
            lines.append(b"")
            block = b"\n".join(lines)
            if block.count(b"\n") != count:  # a payload with line breaks
                block = b"\n".join(map(_on_one_line, lines))
            self._writer.put(block, count)

    def _finish(self) -> None:
        while self._kept:
            if self._writer.is_full:
                time.sleep(_A_MOMENT)
            else:
                self._put_block()
        self._end()

    def _end(self) -> None:
        self._writer.stop()
        if self._shipping is not None:
            self._shipping.stop()

    def _now(self) -> int:
        return round(self._clock.time() * 1_000_000)


def _on_one_line(line: bytes) -> bytes:
    return msgspec.json.format(line, indent=-1) if b"\n" in line else line
