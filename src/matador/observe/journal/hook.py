"""``Journal``: records everything that applications, job queues and workers send and handle."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from matador.codec.as_json import as_json
from matador.errors import ConfigurationError
from matador.events.hooks import (
    DecodeFailure,
    EnqueueSuccess,
    Hooks,
    WorkerError,
    WorkerSuccess,
)
from matador.events.plain import TRACEPARENT, Plain
from matador.events.short_forms import Success, TellStored, TellSuccesses
from matador.model.envelope import Envelope
from matador.model.options import Seconds, seconds, whole_number
from matador.model.text import error_text, storable_text
from matador.observe.journal.plain_values import attempt_record, sent_message_record
from matador.observe.journal.records import (
    DeliveryRecord,
    MalformedRecord,
    Record,
    SentRecord,
    encode_record,
    malformed_record,
    micros,
    replay_id,
    sent_record,
)
from matador.observe.journal.ship_process import ShippingProcess
from matador.observe.journal.writer import JournalWriter
from matador.policy.retry import SendToDeadLetters
from matador.runtime.recorder import AttemptedMessage, SentMessage
from matador.storage.paths import local_path
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.journal")

_LEFT_OUT = "the journal could not encode a record; it is left out"
_A_MOMENT = 0.001  # seconds; by then, the transport's thread is busy and does not need this one


class Journal(Hooks):
    """Records every message sent and every delivery outcome in a folder, for the data pipeline.

    An application takes it as a hook, a job queue or a worker as its ``journal``. One journal may
    serve all of them in a process. A thread writes the records, so that nobody waits for the disk.
    A segment appears when it reaches ``rotate_size`` bytes or is ``rotate_age`` seconds old.
    Several processes may share a folder. If the disk is full, the application continues, and the
    journal records how many records were lost.

    With ``ship_to``, such as ``s3://bucket/journal``, a process copies finished segments there,
    for an ingest to read. ``storage_options`` are those of the store; what is not given comes from
    the environment. ``delete_shipped`` removes local segments whose copies are confirmed.

    Example:
        >>> from matador.observe import Journal
        >>> journal = Journal("journal/")
        >>> app = Matador("sqlite:///shop.db", schema=schema, hooks=[journal])
        >>> emails = Queue("emails", provider="sqlite:///jobs.db", journal=journal)
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
                "Journal: storage_options and delete_shipped need ship_to, which says where "
                "segments are shipped"
            )
        self._clock: Clock = clock or SystemClock()
        self._kept: deque[tuple[Callable[..., Record], tuple[object, ...]]] = deque()
        self._awaited: asyncio.AbstractEventLoop | None = None
        self._last_payload: tuple[Any, msgspec.Raw] | None = None
        self._users = 0

    def __repr__(self) -> str:
        return f"Journal({str(self._folder)!r})"

    @property
    def folder(self) -> Path:
        """The folder of the segments."""
        return self._folder

    @property
    def dropped(self) -> int:
        """How many records were lost because the disk was full or too slow."""
        return self._writer.dropped

    async def flush(self) -> None:
        """Wait until everything recorded so far is durable and visible to readers."""
        self._hand_over()
        await asyncio.to_thread(self._writer.flush)

    # -- hooks ------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Open the journal. Applications, queues and workers of one process may share it."""
        self._users += 1  # whoever could not start it stops it all the same
        if not self._writer.running:
            self._writer.start()
            if self._shipping is not None:
                self._shipping.start()
            atexit.register(self._finish)  # a queue that nobody closes loses no record

    async def on_stop(self) -> None:
        """Finish the segment, if nobody else uses the journal."""
        self._users -= 1
        self._hand_over()
        if self._users == 0:
            atexit.unregister(self._finish)
            await asyncio.to_thread(self._end)

    def on_enqueue_success(self, event: EnqueueSuccess) -> None:
        """An envelope was stored."""
        envelope = event.envelope
        before = envelope.before
        raw = msgspec.UNSET if before is None else msgspec.Raw(as_json(before))
        # The payload is encoded now, because its owner may change it after the send.
        data = self._payload(envelope.data)
        self._keep(sent_record, envelope, data, raw, event.queue, event.transport, self._now())

    def on_worker_success(self, event: WorkerSuccess) -> None:
        """A message was handled."""
        self._keep(_handled, event, None, None, self._now(), self._writer.name)

    def on_worker_error(self, event: WorkerError) -> None:
        """A message failed, or was refused."""
        kind, text = type(event.error).__name__, error_text(event.error)
        self._keep(_handled, event, kind, text, self._now(), self._writer.name)

    def on_decode_error(self, event: DecodeFailure) -> None:
        """A message could not be decoded."""
        body = event.delivery.body
        self._keep(_malformed, event, body, self._now(), self._writer.name)

    def short_stored(
        self, queue: str, event_key: str, subscriber: str, transport: str
    ) -> TellStored:
        """See ``TakesFacts``."""

        def record(sent: Envelope[Any] | Plain) -> None:
            try:
                if type(sent) is Plain:  # as most often
                    data = sent.json or self._payload(sent.payload)
                    self._keep(_sent, sent, data, queue, transport, self._now())
                else:
                    envelope = sent.envelope if isinstance(sent, Plain) else sent
                    self.on_enqueue_success(EnqueueSuccess(envelope, queue, transport))
            except Exception:
                log.exception(_LEFT_OUT)

        return record

    def short_success(
        self, queue: str, event_key: str, subscriber: str, transport: str
    ) -> TellSuccesses:
        """See ``TakesFacts``."""
        names = event_key, subscriber, queue, transport

        def record(successes: Sequence[Success]) -> None:
            now, worker = self._now(), self._writer.name
            self._kept.extend([(_succeeded, (names, one, now, worker)) for one in successes])
            self._await_more()

        return record

    # -- other ways in ----------------------------------------------------------------------------

    def record_sent(self, message: SentMessage) -> None:
        """Record a job, a call or a message that was stored. See ``Recorder``."""
        self._keep(sent_message_record, message, self._now())

    def record_attempt(self, attempt: AttemptedMessage) -> None:
        """Record an attempt to handle a job, a call or a message. See ``Recorder``."""
        self._keep(attempt_record, attempt, self._now(), self._writer.name)

    # -- internals --------------------------------------------------------------------------------

    def _payload(self, data: Any) -> msgspec.Raw:
        """The payload as JSON, encoded once for all subscribers."""
        last = self._last_payload
        if last is not None and last[0] is data:
            return last[1]
        raw = msgspec.Raw(as_json(data))
        self._last_payload = (data, raw)
        return raw

    def _keep(self, make: Callable[..., Record], *facts: object) -> None:
        """Keep the arguments of a record, which is created a moment later, while the application
        waits for its broker."""
        self._kept.append((make, facts))
        self._await_more()

    def _await_more(self) -> None:
        awaited = self._awaited
        if awaited is None or awaited.is_closed():
            self._awaited = asyncio.get_running_loop()
            self._awaited.call_later(_A_MOMENT, self._hand_over)

    def _hand_over(self) -> None:
        # In this order: what another thread keeps meanwhile is taken here, or awaited anew.
        self._awaited = None
        kept: list[tuple[Callable[..., Record], tuple[object, ...]]] = []
        with contextlib.suppress(IndexError):  # another thread may take some, too
            while True:
                kept.append(self._kept.popleft())
        if kept:
            try:
                lines = [encode_record(make(*facts)) for make, facts in kept]
            except Exception:  # noqa: BLE001 - _written finds the record and logs the error
                lines = [line for one in kept for line in _written(*one)]
            lines.append(b"")
            joined, count = b"\n".join(lines), len(lines) - 1
            if joined.count(b"\n") != count:  # JSON that a payload contains as it is
                joined = b"\n".join(map(_on_one_line, lines))
            self._writer.put(joined, count)

    def _finish(self) -> None:
        self._hand_over()
        self._end()

    def _end(self) -> None:
        self._writer.stop()
        if self._shipping is not None:
            self._shipping.stop()

    def _now(self) -> int:
        return round(self._clock.time() * 1_000_000)


def _written(make: Callable[..., Record], facts: tuple[object, ...]) -> Iterator[bytes]:
    """A record as a line, or nothing if it cannot be encoded; then the others are still written."""
    try:
        yield encode_record(make(*facts))
    except Exception:
        log.exception(_LEFT_OUT)


def _on_one_line(line: bytes) -> bytes:
    return msgspec.json.format(line, indent=-1) if b"\n" in line else line


def _sent(sent: Plain, data: msgspec.Raw, queue: str, transport: str, now: int) -> SentRecord:
    """``sent_record`` for nearly every message, in less time."""
    docket, trace = sent.docket, sent.traceparent
    return SentRecord(
        sent.id,
        docket.event_key,
        docket.target_subscriber,
        queue,
        transport,
        micros(sent.created_at),
        docket.importance,
        data,
        now,
        metadata=None if trace is None else {TRACEPARENT: trace},
    )


def _succeeded(
    names: tuple[str, str, str, str], success: Success, now: int, worker: str
) -> DeliveryRecord:
    """``_handled`` for the outcome of nearly every message, in less time."""
    docket, started_at, duration, id_, deliveries = success
    event_key, subscriber, queue, transport = names
    created, due = micros(docket.created_at), docket.scheduled_for
    started = round(started_at * 1_000_000)
    since_created = started - created
    waited = since_created if due is None else started - micros(due)
    metadata = docket.metadata
    return DeliveryRecord(  # all by position, because names take longer
        id_,
        event_key,
        subscriber,
        queue,
        transport,
        docket.attempts,
        "success",
        started,
        round(duration * 1_000_000) / 1000,
        waited / 1000 if waited > 0 else 0.0,
        since_created / 1000 if since_created > 0 else 0.0,
        created,
        docket.importance,
        now,
        worker,
        deliveries,
        True,
        None,
        None,
        None,
        None,
        docket.correlation_id,
        replay_id(metadata) if metadata else None,
    )


def _handled(
    event: WorkerSuccess | WorkerError,
    error_type: str | None,
    error: str | None,
    now: int,
    worker: str,
) -> DeliveryRecord:
    envelope = event.envelope
    docket = envelope.docket
    created = micros(docket.created_at)
    due = created if docket.scheduled_for is None else micros(docket.scheduled_for)
    started = round(event.started_at * 1_000_000)
    waited, since_created = started - due, started - created
    decision = event.decision if isinstance(event, WorkerError) else None
    return DeliveryRecord(
        envelope.id,
        docket.event_key,
        docket.target_subscriber,
        event.queue,
        event.transport,
        docket.attempts,
        event.outcome,
        started,
        round(event.duration * 1_000_000) / 1000,
        waited / 1000 if waited > 0 else 0.0,
        since_created / 1000 if since_created > 0 else 0.0,
        created,
        docket.importance,
        now,
        worker,
        event.receipt.delivery_count,
        not isinstance(event, WorkerError) or event.ran,
        error_type,
        error,
        None if decision is None else storable_text(decision.reason),
        decision.kind if isinstance(decision, SendToDeadLetters) else None,
        docket.correlation_id,
        replay_id(docket.metadata) if docket.metadata else None,
    )


def _malformed(event: DecodeFailure, body: bytes, now: int, worker: str) -> MalformedRecord:
    return malformed_record(body, event.queue, event.transport, str(event.error), now, worker)
