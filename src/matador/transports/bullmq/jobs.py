"""Jobs as the server returns them, turned into deliveries, stored messages or job records.

Reading never fails. What cannot be read of a job is left out, and the delivery says what it was; an
invalid number counts as the nearest valid one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

import msgspec

from matador.model import job as names
from matador.model.job import JobRecord, JobStatus
from matador.model.message import (
    ERROR_TYPE_HEADER,
    REASON_HEADER,
    Delivery,
    MessageState,
    Receipt,
    StoredMessage,
)
from matador.transports.bullmq import wire
from matador.transports.bullmq.native import backoff_text, kept, other_headers, priority_of
from matador.transports.bullmq.scripts import REMOVE, Keep
from matador.transports.bullmq.topology import JobSet
from matador.transports.bullmq.wire import our_priority
from matador.transports.kit.jobs import CANCELED_TYPE, DEFAULT_NAME, split_body

LATEST = 253_402_300_799_000
"""The latest possible time in ms, in the year 9999."""

_MOST = 2**31 - 1
_MOST_TRACES = 10

_decode = msgspec.json.Decoder().decode
_decode_traces = msgspec.json.Decoder(list[str]).decode


class JobHold(NamedTuple):
    """The handle of a delivery: the job, and the token of its lock.

    ``failed``: it is a failed job. ``due``: when it would have been due, in ms, if taken early.
    ``keep``: whether it is kept when it is done. ``attempts``: how many failed so far.
    ``native``: what else is needed of one from a job queue.
    """

    queue: str
    id: str
    token: str
    failed: bool = False
    due: int = 0
    keep: Keep = REMOVE
    attempts: int = 0
    native: NativeHold | None = None


class NativeHold(NamedTuple):
    """What settling a job of a job queue needs: whether it is kept when it has failed, how many
    attempts it has, and where it failed so far, as BullMQ keeps it."""

    keep_failed: Keep
    max_attempts: int
    stacktrace: bytes


def hold_of(receipt: Receipt) -> JobHold | None:
    """The handle of a delivery; None for that of another transport."""
    handle = receipt.handle
    return handle if isinstance(handle, JobHold) else None


def number(text: bytes | None, most: int = _MOST) -> int:
    """A count or a time; 0 if it is missing, not a number, or negative."""
    if text is None or text == b"0":
        return 0
    try:
        return min(max(0, int(text or b"0")), most)
    except ValueError:
        return 0


class BullJob:
    """The fields of a job."""

    __slots__ = ("_fields", "content", "id", "options", "problem")

    def __init__(self, id_: str, fields: Sequence[bytes] | Mapping[bytes, bytes]) -> None:
        self.id = id_
        if not isinstance(fields, Mapping):  # scripts return names and values in turn
            fields = dict(zip(fields[::2], fields[1::2], strict=True))
        self._fields = fields
        self.problem: str | None = None
        self.options = self._object(b"opts")
        self.content = self._content()
        self._look()

    def _content(self) -> wire.JobContent:
        return wire.read(self._fields.get(b"data", b""), self._text(b"name"))

    def _look(self) -> None:
        fields = self._fields
        if b"parent" in fields:
            self._object(b"parent")
        if b":" not in fields.get(b"parentKey", b":"):
            self._odd("parentKey: not the key of a job")
        if self.content.problem is not None:
            self._odd(self.content.problem)
        if b"data" not in fields:
            self._odd("data: missing")
        if b"defa" in fields:  # a child failed, or it stalled too often under another worker
            self._odd(f"failed by BullMQ before it ran: {self._text(b'defa')}")
        if b"matador-problem" in fields:
            self._odd(self._text(b"matador-problem"))

    def _odd(self, problem: str) -> None:
        self.problem = problem if self.problem is None else f"{self.problem}; {problem}"

    def _text(self, field: bytes) -> str:
        value = self._fields.get(field, b"")
        try:
            return value.decode()
        except UnicodeDecodeError:
            self._odd(f"{field.decode()}: not UTF-8")
            return value.decode(errors="replace")

    def _object(self, field: bytes) -> dict[str, Any]:
        try:
            found = _decode(self._fields.get(field, b"{}"))
        except wire.UNREADABLE:
            self._odd(f"{field.decode()}: not JSON")
            return {}
        if not isinstance(found, dict):
            self._odd(f"{field.decode()}: not a JSON object")
            return {}
        return cast("dict[str, Any]", found)

    @property
    def scheduler(self) -> str | None:
        """The id of the scheduler whose job it is."""
        found = self._fields.get(b"rjk")
        return None if found is None else found.decode(errors="replace")

    @property
    def data(self) -> bytes:
        """The data as they are stored."""
        return self._fields.get(b"data", b"{}")

    @property
    def priority(self) -> int | None:
        """The priority of the message, or that of a job from another program."""
        if self.content.id:
            return self.content.priority
        return our_priority(number(self._fields.get(b"priority")))

    @property
    def attempts(self) -> int:
        """How many attempts failed, under any worker."""
        return number(self._fields.get(b"atm"))

    @property
    def attempts_elsewhere(self) -> int:
        """How many attempts of workers in other languages the message itself does not count."""
        return max(0, self.attempts - number(self._fields.get(b"matador-counted")))

    def _without_properties(self) -> None:
        """Keep nothing but the body, if it was dead-lettered in that form."""
        if self._fields.get(b"matador-bare"):
            self.content = wire.JobContent(self.content.body, {}, self.content.id)
            self.problem = None

    def headers(self, failed: bool) -> dict[str, str | int]:
        """The headers; those of a failed job say why it failed."""
        headers = dict(self.content.headers)
        if failed:
            headers[REASON_HEADER] = self._fields.get(b"failedReason", b"").decode(errors="replace")
        return headers

    def count(self, failed: bool) -> int:
        """How often it was delivered, this time included."""
        # A job stalls when its worker dies; one that is released or retried does not.
        if failed:
            return number(self._fields.get(b"matador-taken"))
        return number(self._fields.get(b"stc"), _MOST - 1) + 1

    def delivery(self, jobs: JobSet, token: str, due: int = 0) -> Delivery:
        """The job as a delivery."""
        failed = jobs.kind is not None
        if failed:
            self._without_properties()
        count = self.count(failed)
        keep = self._keep()
        receipt = Receipt(
            jobs.name,
            JobHold(jobs.queue, self.id, token, failed, due, keep, self.attempts, self._native()),
            count,
            count > 1,
            self.priority,
            self.content.ordering_key,
            self.attempts_elsewhere,
        )
        return Delivery(
            self.content.body,
            self.headers(failed),
            receipt,
            self.problem,
            self.content.properties,
            self.content.id,
        )

    def _keep(self) -> Keep:
        return keep_asked(self.options.get("removeOnComplete", REMOVE))

    def _native(self) -> NativeHold | None:
        return None

    def stored(self, jobs: JobSet, state: MessageState) -> StoredMessage:
        """The job for browsing."""
        failed = jobs.kind is not None
        if failed:
            self._without_properties()
        sent = number(self._fields.get(b"timestamp"), LATEST)
        delay = number(self._fields.get(b"delay"), LATEST)
        count = self.count(failed)
        delayed = state == "delayed"
        return StoredMessage(
            position=position_of(sent, self.id),
            id=self.content.id or self.id,
            queue=jobs.name,
            body=self.content.body,
            headers=self.headers(failed),
            state=state,
            stored_at=_time(sent),
            due_at=_time(sent + delay) if delayed else None,
            delivery_count=count if failed or state == "in-flight" else count - 1,
            priority=self.priority,
            ordering_key=self.content.ordering_key,
            properties=self.content.properties,
        )


class NativeJob(BullJob):
    """The fields of a job of a job queue, also of one that another program has added."""

    __slots__ = ()

    def _content(self) -> wire.JobContent:
        fields = self._fields
        headers: dict[str, str | int] = {
            **other_headers(self.options),
            names.ID: self.id,
            names.NAME: self._text(b"name") or DEFAULT_NAME,
            names.MAX_ATTEMPTS: self.max_attempts,
            names.CREATED_AT: number(fields.get(b"timestamp"), LATEST),
            names.ATTEMPTS: self.attempts,
        }
        backoff = backoff_text(self.options.get("backoff"))
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
        return priority_of(number(self._fields.get(b"priority")))

    @property
    def attempts_elsewhere(self) -> int:
        """None: the message counts all attempts."""
        return 0

    def headers(self, failed: bool) -> dict[str, str | int]:
        """Return the headers; those of a failed job say how to keep it, for a redrive."""
        headers = super().headers(failed)
        if failed:
            headers[names.FAILED_AT] = number(self._fields.get(b"finishedOn"), LATEST)
            if b"matador-error-type" in self._fields:
                headers[ERROR_TYPE_HEADER] = self._text(b"matador-error-type")
            for name, option in (
                (names.KEEP_COMPLETED, "removeOnComplete"),
                (names.KEEP_FAILED, "removeOnFail"),
            ):
                headers[name] = kept(keep_asked(self.options.get(option))).text
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


def job_of(jobs: JobSet, id_: str, fields: Sequence[bytes] | Mapping[bytes, bytes]) -> BullJob:
    """A job of a queue, as that queue writes them."""
    return NativeJob(id_, fields) if jobs.native else BullJob(id_, fields)


def trace_with(stacktrace: bytes, error: str) -> str:
    """The stacktrace of a job after one more failure, as BullMQ keeps it: a list of texts."""
    try:
        before = _decode_traces(stacktrace) if stacktrace else []
    except wire.UNREADABLE:
        before = []
    return msgspec.json.encode([*before, error][-_MOST_TRACES:]).decode()


_LIMITS = frozenset(("count", "age", "limit"))


def _is_limit(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def keep_asked(asked: object) -> Keep:
    """``removeOnComplete`` or ``removeOnFail`` of a job. An invalid value keeps the job."""
    if isinstance(asked, bool):
        return asked
    if isinstance(asked, int):
        return min(max(-1, asked), _MOST)
    if isinstance(asked, dict):
        limits = cast("dict[str, Any]", asked)
        if not (limits.keys() <= _LIMITS and all(map(_is_limit, limits.values()))):
            limits = {
                name: value
                for name, value in limits.items()
                if name in _LIMITS and _is_limit(value)
            }
        if "count" in limits or "age" in limits:
            return limits
    return False


def position_of(sent: int, id_: str) -> str:
    """The position of a job: when it was sent, and its id."""
    return f"{sent}-{id_}"


def parts_of(position: str) -> tuple[int, str]:
    """When a job was sent, and its id."""
    sent, _, id_ = position.partition("-")
    return (int(sent) if sent.isdecimal() else 0), id_


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(min(milliseconds, LATEST) / 1000, UTC)
