"""Records the jobs that were added, and what came of each attempt, with whatever recorder is given.

Nothing here makes an add or an attempt fail: what a recorder raises is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from matador.errors import MatadorError
from matador.jobs.wire import ReceivedJob
from matador.model import job as names
from matador.model.message import Delivery, Headers, Message
from matador.policy.retry import Outcome
from matador.runtime.recorder import AttemptedMessage, Recorder, SentMessage
from matador.runtime.settle import Handler
from matador.runtime.traces import Traces, failure_of
from matador.transports.kit.jobs import DEFAULT_NAME, split_body, whole

log = logging.getLogger("matador.jobs")

Then: TypeAlias = Callable[[], Awaitable[None]]
"""What is done once a settlement is safe."""

Add: TypeAlias = Callable[[Sequence[Message]], Awaitable[Sequence[MatadorError | None]]]
"""Adds jobs."""

PRIORITY = "priority"
"""The recorded option for the priority of a job, which is no header."""

_FACTS = frozenset((names.ID, names.NAME, names.CREATED_AT, names.DUE_AT))


class JobRecording:
    """The recorder of one queue or worker, from ``start`` to ``stop``.

    Args:
        recorder: takes the records.
        queue: the name of the queue, as users know it.
    """

    def __init__(self, recorder: Recorder, queue: str) -> None:
        self._recorder = recorder
        self._queue = queue
        self.traces = Traces(recorder, "job")
        self._transport = ""
        self._started = False

    def start(self, transport: str) -> None:
        """Begin to record jobs on the transport of that name. Idempotent."""
        self._transport = transport
        if not self._started:
            self._started = True
            try:
                self._recorder.on_start()
            except Exception:
                log.exception("queue %s: the journal could not be opened", self._queue)

    async def stop(self) -> None:
        """Record nothing more. Idempotent."""
        if self._started:
            self._started = False
            try:
                await self._recorder.on_stop()
            except Exception:
                log.exception("queue %s: the journal could not be closed", self._queue)

    @property
    def transport(self) -> str:
        """The name of the transport, once it has started."""
        return self._transport

    def handling(self, handler: Handler) -> Handler:
        """A handler that does the same, with a span around each attempt if anybody makes some."""
        return self.traces.handling(handler, self._transport, _facts)

    def adding(self, add: Add) -> Add:
        """A function that adds jobs and records those that were stored, even if nobody waits for
        it any more."""

        async def recorded(messages: Sequence[Message]) -> Sequence[MatadorError | None]:
            outcomes = await add(messages)
            self.added(one for one, error in zip(messages, outcomes, strict=False) if error is None)
            return outcomes

        return recorded

    def added(self, messages: Iterable[Message]) -> None:
        """Record jobs that were stored."""
        try:
            for message in messages:
                self._recorder.record_sent(self._sent(message))
        except Exception:
            log.exception("queue %s: added jobs were not recorded", self._queue)

    def then(
        self,
        tell: Then | None,
        delivery: Delivery,
        job: ReceivedJob,
        outcome: Outcome,
        *,
        duration: float = 0.0,
        error: BaseException | None = None,
        text: str | None = None,
        reason: str | None = None,
        ran: bool = True,
        known: bool = True,
    ) -> Then:
        """What records an attempt, and then tells others of it."""
        if isinstance(error, Exception) and (failed := failure_of.get()) is not None:
            failed.append(error)
        attempt = AttemptedMessage(
            way="job",
            id=job.id,
            name=job.name,
            receiver=self._queue,
            queue=delivery.receipt.queue,
            transport=self._transport,
            created_at=job.created_at,
            attempt=job.attempts + 1,
            outcome=outcome,
            started_at=job.received_at,
            duration=duration,
            due_at=job.due_at,
            deliveries=delivery.receipt.delivery_count,
            ran=ran,
            known=known,
            error_type=None if error is None else type(error).__name__,
            error=text,
            reason=reason or (text if outcome == "dead-letter" else None),
            metadata=job.metadata,
        )

        async def record() -> None:
            try:
                self._recorder.record_attempt(attempt)
            except Exception:
                log.exception("queue %s: an attempt was not recorded", self._queue)
            if tell is not None:
                await tell()

        return record

    def _sent(self, message: Message) -> SentMessage:
        headers = message.headers
        data, metadata = split_body(message.body)
        due = whole(headers, names.DUE_AT)
        return SentMessage(
            way="job",
            id=message.id,
            name=str(headers.get(names.NAME, DEFAULT_NAME)),
            receiver=self._queue,
            queue=message.queue,
            transport=self._transport,
            created_at=whole(headers, names.CREATED_AT) / 1000,
            data=data,
            due_at=due / 1000 if due else None,
            metadata=metadata,
            options=_options(headers, message.priority),
        )


def _facts(delivery: Delivery) -> tuple[str, str, Mapping[str, Any]]:
    """The name of a job, its id and its metadata, for its span."""
    name = str(delivery.headers.get(names.NAME, DEFAULT_NAME))
    id_ = str(delivery.headers.get(names.ID) or delivery.id)
    try:
        _, metadata = split_body(delivery.body)
        found: object = msgspec.json.decode(metadata) if metadata else None
    except (ValueError, RecursionError):
        found = None
    return name, id_, cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _options(headers: Headers, priority: int | None) -> dict[str, str | int]:
    """The headers that a job needs if it is added again, and its priority."""
    found = {name: value for name, value in headers.items() if name not in _FACTS}
    return found if priority is None else {**found, PRIORITY: priority}
