"""Jobs of job queues as BullMQ's own: names, options and results are where BullMQ has them.

Header by header: ``job.name`` is the name, ``job.maxAttempts`` the option ``attempts``,
``job.backoff`` the option ``backoff``, ``job.keepCompleted`` and ``job.keepFailed`` are
``removeOnComplete`` and ``removeOnFail``, ``job.unique`` and ``job.uniqueFor`` are
``deduplication``. ``job.attempts`` and ``job.error`` are what BullMQ counts and keeps itself. The
data are the body, as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, cast

import msgspec
from bullmq.job import optsEncodeMap

from matador.errors import MessageTooLargeError, UnstorableError
from matador.model import job as names
from matador.model.job import KEEP_NONE
from matador.model.job import Keep as KeepFinished
from matador.model.message import (
    ERROR_TYPE_HEADER,
    REASON_HEADER,
    TRACEBACK_HEADER,
    Headers,
    Message,
)
from matador.transports.bullmq.scripts import LIMIT, Keep
from matador.transports.bullmq.wire import UNREADABLE, bull_priority, our_priority
from matador.transports.kit.jobs import DEFAULT_NAME, keep_of, provider_options, whole

_TRANSLATED = frozenset(
    {
        *(names.ID, names.NAME, names.MAX_ATTEMPTS, names.CREATED_AT, names.ATTEMPTS),
        *(names.BACKOFF, names.ERROR, names.FAILED_AT, names.KEEP_COMPLETED, names.KEEP_FAILED),
        *(names.UNIQUE, names.UNIQUE_FOR, names.PARENT),
        names.PROVIDER_OPTIONS,
        *(REASON_HEADER, ERROR_TYPE_HEADER, TRACEBACK_HEADER),
    }
)
_OTHERS = "matador"
"""The option that carries all other headers."""

_PARENTS = ("parent", "repeat", "repeatJobKey", "prevMillis", "timestamp")
_BACKOFF = {"type": "exponential", "delay": 1000}
_BACKOFF_TEXT = "exponential:1000"


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job to be added. Times are in milliseconds; ``priority`` is BullMQ's, 0 for none."""

    name: str
    data: bytes
    options: dict[str, Any]
    delay: int = 0
    priority: int = 0
    unique: str | None = None


def new_job(message: Message, largest: int, *, prioritized: bool) -> NewJob:
    """The job for a message of a job queue.

    ``prioritized``: the queue has jobs with priorities, so that those without one come last.

    Raises:
        UnstorableError: an option cannot be used here.
        MessageTooLargeError: it is too large for the server.
        ValueError, OverflowError: a delay that is too long for the server.
    """
    headers, body = message.headers, message.body
    if len(body) > largest:
        raise MessageTooLargeError(len(body), largest, what="job")
    options = template(headers)
    delay = milliseconds(message.delay)
    options["delay"] = delay
    if message.priority is not None or prioritized:
        options.setdefault("priority", job_priority(message.priority))
    unique = options.get("de")
    return NewJob(
        name=str(headers.get(names.NAME) or DEFAULT_NAME),
        data=body,
        options=options,
        delay=delay,
        priority=_number(options.get("priority")),
        unique=None if unique is None else unique["id"],
    )


def check_json(message: Message) -> None:
    """Workers on Node cannot take other data.

    Raises:
        UnstorableError: the body is not JSON.
    """
    try:
        _raw(message.body)
    except UNREADABLE as error:
        raise UnstorableError(
            f"job {message.id!r}: the data of a BullMQ job must be JSON ({error})"
        ) from error


_raw = msgspec.json.Decoder(msgspec.Raw).decode


def template(headers: Headers) -> dict[str, Any]:
    """The options that headers ask for, with BullMQ's short names; none for one job only.

    Raises:
        UnstorableError: a provider option that cannot be used here.
    """
    options: dict[str, Any] = {
        "backoff": _backoff(headers.get(names.BACKOFF)),
        "removeOnComplete": _removal(keep_of(headers, "completed")),
        "removeOnFail": _removal(keep_of(headers, "failed")),
    }
    unique = headers.get(names.UNIQUE)
    if unique is not None:
        within = whole(headers, names.UNIQUE_FOR)
        options["de"] = {"id": str(unique), **({"ttl": within} if within else {})}
    others: dict[str, Any] = {}
    for header, value in headers.items():
        if header not in _TRANSLATED:
            others[header] = value
    for name, value in provider_options(headers).items():
        if name in _PARENTS:
            raise UnstorableError(f"provider option {name!r} cannot be given to a job here")
        options[optsEncodeMap.get(name, name)] = value
    if others:
        options[_OTHERS] = others
    unique = options.get("de")
    if unique is not None and not (isinstance(unique, dict) and isinstance(unique.get("id"), str)):  # pyright: ignore[reportUnknownMemberType]
        raise UnstorableError("provider option 'deduplication' must have an id that is text")
    for name in ("jobId", "delay"):  # what only this side decides
        options.pop(name, None)
    options["attempts"] = max(1, whole(headers, names.MAX_ATTEMPTS, 3))
    return options


def other_headers(options: Mapping[str, Any]) -> dict[str, str | int]:
    """The headers that travel in the options of a job."""
    found = options.get(_OTHERS)
    if not isinstance(found, dict):
        return {}
    return {
        name: value
        for name, value in cast("dict[str, Any]", found).items()
        if isinstance(value, str | int) and not isinstance(value, bool)
    }


def milliseconds(delay: float) -> int:
    """A delay in whole milliseconds, rounded up.

    Raises:
        ValueError, OverflowError: it is too long for the server.
    """
    found = max(0, ceil(delay * 1000))
    if found > LIMIT:
        raise OverflowError(f"a delay of {delay:g} s")
    return found


def job_priority(priority: int | None) -> int:
    """BullMQ's number for the priority of a job, where a higher one of ours comes first.

    Not BullMQ's very last: with that one the order of jobs is not exact.

    Example:
        >>> job_priority(9) < job_priority(0) < job_priority(None)
        True
    """
    return bull_priority(0 if priority is None else priority + 1)


LAST = job_priority(None)
"""BullMQ's number for jobs without a priority, in a queue that has some with one."""


def priority_of(number: int) -> int | None:
    """The priority for one of BullMQ's numbers."""
    found = our_priority(number)
    return None if not found else found - 1


def _removal(keep: KeepFinished) -> Keep:
    """``removeOnComplete`` or ``removeOnFail`` for what is to be kept."""
    if keep.nothing:
        return True
    found: dict[str, int] = {}
    if keep.age is not None:
        found["age"] = ceil(keep.age)
    if keep.count is not None:
        found["count"] = keep.count
    return found or False


def kept(removal: Keep) -> KeepFinished:
    """The other way round."""
    if isinstance(removal, dict):
        return KeepFinished(age=removal.get("age"), count=removal.get("count"))
    if isinstance(removal, bool):
        return KEEP_NONE if removal else KeepFinished()
    return KeepFinished(count=removal) if removal >= 0 else KeepFinished()


def _backoff(text: object) -> dict[str, Any]:
    if isinstance(text, str):
        text, _, jitter = text.partition("~")
        kind, *numbers = text.split(":")
        try:
            found = [round(float(number)) for number in numbers]
            more: dict[str, Any] = {"jitter": float(jitter)} if jitter else {}
        except (ValueError, OverflowError):
            found, more = [], {}
        if kind in ("fixed", "exponential") and found:
            if len(found) > 1:
                more["maxDelay"] = found[1]
            return {"type": kind, "delay": found[0], **more}
    return _BACKOFF


def backoff_text(backoff: object) -> str | None:
    """The header for the option ``backoff``; None: not one that is known here.

    Without that option BullMQ retries at once.
    """
    if backoff is None:
        return "fixed:0"
    if backoff == _BACKOFF:  # that of nearly all jobs
        return _BACKOFF_TEXT
    if not isinstance(backoff, dict):
        return f"fixed:{_number(backoff)}"
    found = cast("Mapping[str, object]", backoff)
    kind, longest = found.get("type"), _number(found.get("maxDelay"))
    if kind not in ("fixed", "exponential"):
        return None
    jitter = found.get("jitter")
    share = f"~{jitter:g}" if isinstance(jitter, int | float) and 0 < jitter <= 1 else ""
    return f"{kind}:{_number(found.get('delay'))}{f':{longest}' if longest else ''}{share}"


def _number(value: object) -> int:
    """A whole number of milliseconds, or a priority; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(min(max(0, value), LIMIT))
