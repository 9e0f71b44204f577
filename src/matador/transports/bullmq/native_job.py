"""Jobs of job queues as the server returns them: deliveries, stored messages, and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from matador.model import job as names
from matador.model.job import JobRecord, JobStatus
from matador.model.message import ERROR_TYPE_HEADER
from matador.transports.bullmq import native, wire
from matador.transports.bullmq.jobs import LATEST, BullJob, NativeHold, keep_asked, number
from matador.transports.bullmq.scripts import Keep
from matador.transports.bullmq.topology import JobSet
from matador.transports.kit.jobs import CANCELED_TYPE, DEFAULT_NAME, split_body

_MOST_TRACES = 10

_traces = msgspec.json.Decoder(list[str]).decode


def job_of(jobs: JobSet, id_: str, fields: Sequence[bytes] | Mapping[bytes, bytes]) -> BullJob:
    """A job of a queue, as that queue writes them."""
    return NativeJob(id_, fields) if jobs.native else BullJob(id_, fields)


class NativeJob(BullJob):
    """The fields of a job of a job queue, whoever has added it."""

    __slots__ = ()

    def _content(self) -> wire.JobContent:
        fields = self._fields
        headers: dict[str, str | int] = {
            **native.other_headers(self.options),
            names.ID: self.id,
            names.NAME: self._text(b"name") or DEFAULT_NAME,
            names.MAX_ATTEMPTS: self.max_attempts,
            names.CREATED_AT: number(fields.get(b"timestamp"), LATEST),
            names.ATTEMPTS: self.attempts,
        }
        backoff = native.backoff_text(self.options.get("backoff"))
        if backoff is not None:
            headers[names.BACKOFF] = backoff
        if b"failedReason" in fields:
            headers[names.ERROR] = self._text(b"failedReason")
        return wire.JobContent(fields.get(b"data", b"null"), headers, self.id)

    @property
    def max_attempts(self) -> int:
        """How many attempts it has; BullMQ's default is one."""
        found = self.options.get("attempts")
        return max(1, found) if type(found) is int else 1

    @property
    def priority(self) -> int | None:
        return native.priority_of(number(self._fields.get(b"priority")))

    @property
    def attempts_elsewhere(self) -> int:
        """None: the message counts all attempts."""
        return 0

    def headers(self, failed: bool) -> dict[str, str | int]:
        """See ``Job``. A failed one also says how it was to be kept, for a redrive."""
        headers = super().headers(failed)
        if failed:
            headers[names.FAILED_AT] = number(self._fields.get(b"finishedOn"), LATEST)
            if b"matador-error-type" in self._fields:
                headers[ERROR_TYPE_HEADER] = self._text(b"matador-error-type")
            for name, option in (
                (names.KEEP_COMPLETED, "removeOnComplete"),
                (names.KEEP_FAILED, "removeOnFail"),
            ):
                headers[name] = native.kept(keep_asked(self.options.get(option))).text
        return headers

    def _keep(self) -> Keep:
        return keep_asked(self.options.get("removeOnComplete"))  # BullMQ keeps by default

    @property
    def keep_failed(self) -> Keep:
        """Whether it is kept when it has failed."""
        return keep_asked(self.options.get("removeOnFail"))

    def _native(self) -> NativeHold:
        stacktrace = self._fields.get(b"stacktrace", b"")
        return NativeHold(self.keep_failed, self.max_attempts, stacktrace)

    def canceled(self, reason: str) -> dict[str, str]:
        """The fields of the job once it has failed because it was canceled."""
        stacktrace = self._fields.get(b"stacktrace", b"")
        text = reason.encode(errors="replace").decode()
        return {
            "stc": "0",
            "matador-error-type": CANCELED_TYPE,
            "stacktrace": trace_with(stacktrace, f"{CANCELED_TYPE}: {text}"),
            "matador-kind": "undeliverable",
            "matador-taken": "0",
            "matador-bare": "",
        }

    def record(self, queue: str, status: JobStatus, due: int) -> JobRecord:
        """The job as it is stored. ``due``: when it will run, in ms, if it is delayed."""
        fields = self._fields
        data, metadata = split_body(fields.get(b"data", b"null"))
        finished = status in ("completed", "failed")
        stalled = number(fields.get(b"stc"))
        return JobRecord(
            id=self.id,
            name=self._text(b"name") or DEFAULT_NAME,
            queue=queue,
            status=status,
            data=data,
            metadata=metadata,
            attempts=self.attempts + stalled,
            max_attempts=self.max_attempts,
            created_at=self._seconds(b"timestamp") or 0.0,
            processed_at=self._seconds(b"processedOn"),
            finished_at=self._seconds(b"finishedOn") if finished else None,
            due_at=due / 1000 if status == "delayed" else None,
            error=self._text(b"failedReason") if b"failedReason" in fields else None,
            priority=self.priority,
            progress=fields.get(b"progress"),
            result=fields.get(b"returnvalue") if status == "completed" else None,
        )

    def _seconds(self, field: bytes) -> float | None:
        found = self._fields.get(field)
        return None if found is None else number(found, LATEST) / 1000


def trace_with(stacktrace: bytes, error: str) -> str:
    """The stacktrace of a job after one more failure, as BullMQ keeps it: a list of texts."""
    try:
        before = _traces(stacktrace) if stacktrace else []
    except wire.UNREADABLE:
        before = []
    return msgspec.json.encode([*before, error][-_MOST_TRACES:]).decode()
