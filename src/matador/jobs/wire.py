"""Jobs as messages: how one is written to be added, and what a delivery says of the job in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import msgspec

from matador.jobs.options import Backoff, CheckedOptions, read_backoff
from matador.model import job as names
from matador.model.message import Delivery, Message
from matador.transports.clock import SystemClock
from matador.transports.kit.jobs import job_body, split_body, whole

MOST_ERROR = 2000
"""How many characters of an error travel with a job."""

_PROVIDER = "job.provider."
"""What the headers start with that carry ``provider_options``."""


_clock = SystemClock()


def new_id(now: float) -> str:
    """A UUID of version 7 for a job added now. Later ones sort after earlier ones, so that a store
    with an index of ids changes few of its pages.

    Example:
        >>> new_id(1_700_000_000.0)[:15]
        '018bcfe5-6800-7'
    """
    digits = f"{int(now * 1000):012x}"
    return f"{digits[:8]}-{digits[8:12]}-7{_clock.new_id()[15:]}"


class ReceivedJob(msgspec.Struct, frozen=True):
    """What a delivery says of its job. ``attempts`` includes those that a crash has ended.

    ``due_at`` is when this attempt could have begun; if nobody knows, it is ``received_at``.
    """

    id: str
    name: str
    data: bytes
    metadata: bytes | None
    attempts: int
    max_attempts: int
    created_at: float
    backoff: Backoff
    error: str | None
    received_at: float
    due_at: float


def new_message(
    queue: str,
    job_id: str,
    name: str,
    data: bytes,
    metadata: bytes | None,
    options: CheckedOptions,
    now: float,
) -> Message:
    """The message of a new job."""
    headers: dict[str, str | int] = {
        names.ID: job_id,
        names.NAME: name,
        names.MAX_ATTEMPTS: options.attempts,
        names.CREATED_AT: round(now * 1000),
    }
    if options.delay:
        headers[names.DUE_AT] = round((now + options.delay) * 1000)
    if options.backoff is not None:
        headers[names.BACKOFF] = options.backoff.text
    if options.keep_completed is not None:
        headers[names.KEEP_COMPLETED] = options.keep_completed.text
    if options.keep_failed is not None:
        headers[names.KEEP_FAILED] = options.keep_failed.text
    if options.concurrency_key is not None:
        headers[names.CONCURRENCY_KEY] = options.concurrency_key
    if options.unique is not None:
        headers[names.UNIQUE] = options.unique.key
        if options.unique.within is not None:
            headers[names.UNIQUE_FOR] = round(options.unique.within * 1000)
    for option, value in options.provider_options.items():
        headers[_PROVIDER + option] = value
    body = job_body(data, metadata)
    return Message(job_id, queue, body, headers, options.delay, options.priority)


def received(delivery: Delivery, now: float) -> ReceivedJob:
    """The job in a delivery. Never fails: what is missing has a default."""
    headers = delivery.headers
    data, metadata = split_body(delivery.body)
    receipt = delivery.receipt
    created = whole(headers, names.CREATED_AT)
    error = headers.get(names.ERROR)
    lost = max(0, receipt.delivery_count - 1)  # nobody said what came of these
    attempts = whole(headers, names.ATTEMPTS) + receipt.attempts_elsewhere + lost
    due = whole(headers, names.RETRY_AT if attempts else names.DUE_AT)
    if not attempts and not due:
        due = created
    return ReceivedJob(
        id=str(headers.get(names.ID) or f"unnamed-{uuid4()}"),
        name=str(headers.get(names.NAME, "job")),
        data=data,
        metadata=metadata,
        attempts=attempts,
        max_attempts=max(1, whole(headers, names.MAX_ATTEMPTS, 1)),
        created_at=created / 1000 if created else now,
        backoff=read_backoff(headers.get(names.BACKOFF)),
        error=None if error is None else str(error),
        received_at=now,
        due_at=due / 1000 if due else now,
    )


def successor(
    delivery: Delivery, job: ReceivedJob, error: str, now: float, *, delay: float | None
) -> Message:
    """The message of a job after a failed attempt: to wait again, or, without a delay, to be kept
    as failed."""
    headers: dict[str, Any] = {
        **delivery.headers,
        names.ID: job.id,
        names.ATTEMPTS: job.attempts + 1,
        names.ERROR: error,
    }
    if delay is None:
        headers[names.FAILED_AT] = round(now * 1000)
    else:
        headers[names.RETRY_AT] = round((now + delay) * 1000)
    receipt = delivery.receipt
    return Message(
        job.id,
        receipt.queue,
        delivery.body,
        headers,
        delay or 0.0,
        receipt.priority,
        receipt.ordering_key,
        delivery.properties,
    )


def provider_options(headers: Mapping[str, str | int]) -> dict[str, str | int]:
    """The ``provider_options`` that travel in headers."""
    start = len(_PROVIDER)
    return {name[start:]: value for name, value in headers.items() if name.startswith(_PROVIDER)}
