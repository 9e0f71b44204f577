"""Jobs that were recorded once, and are added again: with their options, and ids that stay the same
however often it is tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from matador.jobs.recording import PRIORITY
from matador.model import job as names
from matador.model.message import Message
from matador.transports.kit.jobs import job_body, whole

_KEPT = (names.BACKOFF, names.CONCURRENCY_KEY, names.KEEP_COMPLETED, names.KEEP_FAILED)
_PROVIDER = "job.provider."


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be added again. ``data`` is JSON; ``options`` are those of its record, as text."""

    id: str
    name: str
    data: bytes
    metadata: Mapping[str, Any]
    options: Mapping[str, str]


def stored_message(queue: str, job: StoredJob, now: float) -> Message:
    """The message of a job that is added again now.

    It runs at once, belongs to no flow, and takes no unique key: it is another job.
    """
    options = job.options
    headers: dict[str, str | int] = {
        names.ID: job.id,
        names.NAME: job.name,
        names.MAX_ATTEMPTS: max(1, whole(options, names.MAX_ATTEMPTS, 1)),
        names.CREATED_AT: round(now * 1000),
    }
    headers.update({name: options[name] for name in _KEPT if name in options})
    for name, value in options.items():
        if name.startswith(_PROVIDER):
            headers[name] = int(value) if value.isdecimal() else value
    metadata = msgspec.json.encode(job.metadata) if job.metadata else None
    priority = options.get(PRIORITY)
    return Message(
        job.id,
        queue,
        job_body(job.data, metadata),
        headers,
        priority=None if priority is None else _number(priority),
    )


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
