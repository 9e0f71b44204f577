"""Conversions between jobs and their messages, shared by the transports that store jobs.

Other programs add jobs, too, so no content of a message makes these functions raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from matador.model import job as names
from matador.model.job import JobRecord, JobStatus, Keep
from matador.model.message import (
    ERROR_TYPE_HEADER,
    REASON_HEADER,
    TRACEBACK_HEADER,
    Headers,
)
from matador.model.text import BOM

CANCELED_TYPE = "matador.errors.JobCanceledError"
"""The type of the error of a job that was canceled while it ran."""

DEFAULT_NAME = "job"
"""The name of a job whose message has none."""

_MOST = 2**53
_OF_A_FAILURE = (
    *(names.ATTEMPTS, names.ERROR, names.FAILED_AT, names.RETRY_AT),
    *(REASON_HEADER, ERROR_TYPE_HEADER, TRACEBACK_HEADER),
)
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class _Body(msgspec.Struct):
    data: msgspec.Raw = msgspec.field(name="_jobData")
    metadata: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="_metadata")


_decode = msgspec.json.Decoder(_Body).decode


def job_body(data: bytes, metadata: bytes | None) -> bytes:
    """The body of a job from its data and its metadata, both JSON.

    Example:
        >>> job_body(b"1", None)
        b'{"_jobData":1}'
    """
    if metadata is None:
        return b'{"_jobData":%b}' % data
    return b'{"_jobData":%b,"_metadata":%b}' % (data, metadata)


def split_body(body: bytes) -> tuple[bytes, bytes | None]:
    """Data and metadata. A body without this wrapper, as other programs write it, is all data.

    Example:
        >>> split_body(b'{"to": "ada"}')
        (b'{"to": "ada"}', None)
    """
    body = body.removeprefix(BOM)
    try:
        found = _decode(body)
    except _UNREADABLE:
        return body, None
    metadata = bytes(found.metadata)
    return bytes(found.data), None if metadata == b"null" else metadata


def whole(headers: Headers, name: str, default: int = 0) -> int:
    """A header as a non-negative whole number; ``default`` if it is not one."""
    value = headers.get(name, default)
    if type(value) is int and 0 <= value <= _MOST:  # as we write it
        return value
    try:
        return min(max(0, int(value)), _MOST)
    except (ValueError, TypeError):
        return default


def provider_options(headers: Headers) -> Mapping[str, Any]:
    """The options in a header that only the provider understands; empty if they cannot be read."""
    given = headers.get(names.PROVIDER_OPTIONS)
    if given is None:
        return {}
    try:
        return _read_options(str(given))
    except _UNREADABLE:
        return {}


_read_options = msgspec.json.Decoder(dict[str, Any]).decode


def record_of(
    job_id: str,
    queue: str,
    headers: Headers,
    body: bytes,
    status: JobStatus,
    *,
    priority: int | None = None,
    stored_at: float = 0.0,
    due_at: float | None = None,
    processed_at: float | None = None,
    finished_at: float | None = None,
    progress: bytes | None = None,
    result: bytes | None = None,
) -> JobRecord:
    """The job in a message. ``stored_at`` is its creation time if the message has none."""
    data, metadata = split_body(body)
    created, failed = whole(headers, names.CREATED_AT), whole(headers, names.FAILED_AT)
    error = headers.get(names.ERROR, headers.get(REASON_HEADER))
    if status == "failed" and finished_at is None:
        finished_at = failed / 1000 if failed else stored_at
    return JobRecord(
        id=job_id,
        name=str(headers.get(names.NAME, DEFAULT_NAME)),
        queue=queue,
        status=status,
        data=data,
        metadata=metadata,
        attempts=whole(headers, names.ATTEMPTS),
        max_attempts=whole(headers, names.MAX_ATTEMPTS, 1),
        created_at=created / 1000 if created else stored_at,
        processed_at=processed_at,
        finished_at=finished_at,
        due_at=due_at,
        error=None if error is None else str(error),
        priority=priority,
        progress=progress,
        result=result,
    )


def keep_of(headers: Headers, status: JobStatus) -> Keep:
    """How long a job with this final status is kept."""
    if status == "completed":
        return Keep.read(headers.get(names.KEEP_COMPLETED), names.KEEP_AN_HOUR)
    return Keep.read(headers.get(names.KEEP_FAILED), names.KEEP_ALL)


def as_canceled(headers: Headers, attempts: int, reason: str, now: float) -> dict[str, str | int]:
    """The headers of an active job that fails because it was canceled during attempt ``attempts``.
    ``now``: seconds since the epoch."""
    return {
        **headers,
        names.ATTEMPTS: attempts,
        names.ERROR: reason,
        names.FAILED_AT: round(now * 1000),
        ERROR_TYPE_HEADER: CANCELED_TYPE,
    }


def as_new(headers: Headers) -> dict[str, str | int]:
    """The headers of a failed job without the outcome of its attempts."""
    return {name: value for name, value in headers.items() if name not in _OF_A_FAILURE}
