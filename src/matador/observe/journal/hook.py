"""``Journal``: the hook that records what an application sends and handles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from matador.codec.as_json import as_json
from matador.events.hooks import (
    DecodeFailure,
    EnqueueSuccess,
    Hooks,
    WorkerError,
    WorkerSuccess,
)
from matador.model.options import Seconds, seconds, whole_number
from matador.model.text import storable_text
from matador.observe.journal.convert import malformed_record, micros, replay_id, sent_record
from matador.observe.journal.records import (
    DeliveryRecord,
    MalformedRecord,
    Outcome,
    Record,
    encode_record,
)
from matador.observe.journal.writer import JournalWriter
from matador.observe.paths import local_path
from matador.policy.retry import SendToDeadLetters
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.journal")

_A_MOMENT = 0.001  # seconds: the broker's thread is at work by then, and does not need ours


class Journal(Hooks):
    """Records every envelope sent and every delivery outcome in a folder, for the data pipeline.

    Nothing waits for it: records are written by a thread, a moment later. Segments appear whole,
    by a rename, once they have ``rotate_size`` bytes or are ``rotate_age`` seconds old. Several
    processes may share a folder. If the disk is full the application goes on, and the journal says
    how many records were lost.

    Example:
        >>> from matador.observe import Journal
        >>> app = Matador("sqlite:///shop.db", schema=schema, hooks=[Journal("journal/")])
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        rotate_size: int = 64 * 1024 * 1024,
        rotate_age: Seconds = 60.0,
        max_pending: int = 64 * 1024 * 1024,
        clock: Clock | None = None,
    ) -> None:
        self._folder = local_path(folder, "Journal: folder")
        self._writer = JournalWriter(
            self._folder,
            rotate_size=whole_number(rotate_size, "Journal: rotate_size", minimum=1),
            rotate_age=seconds(rotate_age, "Journal: rotate_age", minimum=0.01),
            max_pending=whole_number(max_pending, "Journal: max_pending", minimum=1),
        )
        self._clock: Clock = clock or SystemClock()
        self._kept: list[tuple[Callable[..., Record], tuple[object, ...]]] = []
        self._last_payload: tuple[Any, msgspec.Raw] | None = None
        self._users = 0

    def __repr__(self) -> str:
        return f"Journal({str(self._folder)!r})"

    @property
    def folder(self) -> Path:
        """Where the segments are."""
        return self._folder

    @property
    def dropped(self) -> int:
        """How many records were lost, because the disk was full or too slow."""
        return self._writer.dropped

    async def flush(self) -> None:
        """Wait until everything recorded so far is durable and visible to readers."""
        self._hand_over()
        await asyncio.to_thread(self._writer.flush)

    # -- hooks ----------------------------------------------------------------

    def on_start(self) -> None:
        """Open the journal. Several applications of one process may share it."""
        if self._users == 0:
            self._writer.start()
        self._users += 1

    async def on_stop(self) -> None:
        """Finish the segment, with the last user."""
        self._users -= 1
        self._hand_over()
        if self._users == 0:
            await asyncio.to_thread(self._writer.stop)

    def on_enqueue_success(self, event: EnqueueSuccess) -> None:
        """An envelope was stored."""
        envelope = event.envelope
        before = envelope.before
        raw = msgspec.UNSET if before is None else msgspec.Raw(as_json(before))
        # The payload is written at once: its owner may change it as soon as the send is over.
        data = self._payload(envelope.data)
        self._keep(sent_record, envelope, data, raw, event.queue, event.transport, self._now())

    def on_worker_success(self, event: WorkerSuccess) -> None:
        """A message was handled."""
        self._delivery(event, "success")

    def on_worker_error(self, event: WorkerError) -> None:
        """A message failed, or was refused."""
        decision = event.decision
        kind = decision.kind if isinstance(decision, SendToDeadLetters) else None
        self._delivery(event, event.outcome, event.error, decision.reason, kind, event.ran)

    def on_decode_error(self, event: DecodeFailure) -> None:
        """Bytes that are not an envelope arrived."""
        body = event.delivery.body
        self._keep(_malformed, event, body, self._now(), self._writer.name)

    # -- inside ----------------------------------------------------------------

    def _delivery(
        self,
        event: WorkerSuccess | WorkerError,
        outcome: Outcome,
        error: BaseException | None = None,
        reason: str | None = None,
        kind: str | None = None,
        ran: bool = True,
    ) -> None:
        said = None if error is None else (type(error).__name__, _text(error))
        worker = self._writer.name
        self._keep(_handled, event, outcome, said, reason, kind, ran, self._now(), worker)

    def _payload(self, data: Any) -> msgspec.Raw:
        """The payload's JSON; that of a fan-out is made once."""
        last = self._last_payload
        if last is not None and last[0] is data:
            return last[1]
        raw = msgspec.Raw(as_json(data))
        self._last_payload = (data, raw)
        return raw

    def _keep(self, make: Callable[..., Record], *facts: object) -> None:
        """Keep facts that become a record a moment later, while the application waits for its
        broker; one hand-over for all of them."""
        if not self._kept:
            asyncio.get_running_loop().call_later(_A_MOMENT, self._hand_over)
        self._kept.append((make, facts))

    def _hand_over(self) -> None:
        if self._kept:
            kept, self._kept = self._kept, []
            try:
                lines = [encode_record(make(*facts)) for make, facts in kept]
            except Exception:  # noqa: BLE001 - found, and told of, one by one
                lines = [line for one in kept for line in _written(*one)]
            lines.append(b"")
            self._writer.put(b"\n".join(lines), len(lines) - 1)

    def _now(self) -> int:
        return round(self._clock.time() * 1_000_000)


def _written(make: Callable[..., Record], facts: tuple[object, ...]) -> Iterator[bytes]:
    """A record as a line; none if it cannot be written, which takes no other along."""
    try:
        yield encode_record(make(*facts))
    except Exception:
        log.exception("the journal could not write a record, and goes on without it")


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the classes of users decide what is raised
        text = ""
    return storable_text(text or type(error).__name__)


def _handled(
    event: WorkerSuccess | WorkerError,
    outcome: Outcome,
    said: tuple[str, str] | None,
    reason: str | None,
    kind: str | None,
    ran: bool,
    now: int,
    worker: str,
) -> DeliveryRecord:
    envelope = event.envelope
    docket = envelope.docket
    created = micros(docket.created_at)
    due = created if docket.scheduled_for is None else micros(docket.scheduled_for)
    started = round(event.started_at * 1_000_000)
    waited, since_created = started - due, started - created
    error_type, error = said or (None, None)
    return DeliveryRecord(
        envelope.id,
        docket.event_key,
        docket.target_subscriber,
        event.queue,
        event.transport,
        docket.attempts,
        outcome,
        started,
        round(event.duration * 1_000_000) / 1000,
        waited / 1000 if waited > 0 else 0.0,
        since_created / 1000 if since_created > 0 else 0.0,
        created,
        docket.importance,
        now,
        worker,
        event.receipt.delivery_count,
        ran,
        error_type,
        error,
        None if reason is None else storable_text(reason),
        kind,
        docket.correlation_id,
        replay_id(docket.metadata) if docket.metadata else None,
    )


def _malformed(event: DecodeFailure, body: bytes, now: int, worker: str) -> MalformedRecord:
    return malformed_record(body, event.queue, event.transport, str(event.error), now, worker)
