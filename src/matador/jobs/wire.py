"""Jobs as messages: encodes jobs to add, and decodes the job of a delivery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec

from matador.errors import ConfigurationError, InvalidJobError
from matador.jobs.job import Job, encode_json, metadata_from, metadata_json
from matador.jobs.options import (
    CheckedOptions,
    MakeId,
    check_delay,
    check_id,
    check_options,
    own_options,
    read_backoff,
)
from matador.model import job as names
from matador.model.job import KEEP_ALL, KEEP_NONE, JobCapabilities, JobStatus, Keep
from matador.model.message import Delivery, Message
from matador.model.text import error_text, storable_text
from matador.policy.backoff import Backoff
from matador.policy.retry import RetryLater
from matador.runtime.error_headers import error_headers, error_type
from matador.runtime.facts import Kind, Sent
from matador.runtime.way import Failure, Route, Work
from matador.transports.clock import Clock, SystemClock
from matador.transports.kit.jobs import DEFAULT_NAME, job_body, split_body, whole

MOST_ERROR = 2000
"""The maximum length of the error text stored with a job."""

PRIORITY = "priority"
"""The option of a ``Sent`` fact for the priority of a job, which is not a header."""

_FACTS = frozenset((names.ID, names.NAME, names.CREATED_AT, names.DUE_AT))

# -- new jobs --------------------------------------------------------------------------------------

# The capability that an option needs, and its value when it is left out.
_NEEDS: dict[str, tuple[str, Any]] = {
    "delay": ("delays", 0.0),
    "priority": ("priorities", None),
    "backoff": ("backoff", None),
    "concurrency_key": ("concurrency_per_key", None),
    "unique": ("unique", None),
    "provider_options": ("provider_options", {}),
    "keep_completed": ("keep", None),
    "keep_failed": ("keep", None),
}
_NAMES = {"keep_completed": "remove_on_complete", "keep_failed": "remove_on_fail"}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMaker:
    """Creates the jobs of one queue: validated, with the options that the provider supports.

    Attributes:
        queue, full_name: the short name of the queue, and its name in the provider.
        where: the queue, for errors.
        defaults: options for all jobs.
        make_id: makes ids; None: they are UUIDs.
        can, provider: the features of the provider, and its name.
        report: called for each option that the provider does not support.
        clock: the source of time.
    """

    queue: str
    full_name: str
    where: str
    defaults: Mapping[str, Any]
    make_id: MakeId | None
    can: JobCapabilities
    provider: str
    report: Callable[[str, Any, str], None]
    clock: Clock

    def make(
        self, name: str, data: Any, job_id: str | None, options: Mapping[str, Any]
    ) -> tuple[Message, Job[Any]]:
        """A job and its message.

        Raises:
            InvalidJobError: an argument is wrong.
        """
        where = f"{self.where} add"
        check_name(name, where, "await {job}.add(…)")
        now = self.clock.time()
        if job_id is None and self.make_id is None:
            job_id = new_id(now)
        else:
            given = self.make_id(name, data) if self.make_id and job_id is None else job_id
            job_id = check_id(given, where)
            if not self.can.unique_ids:
                self.report("job_id", job_id, self.provider)
        checked = _NO_OPTIONS
        if options or self.defaults:
            given = check_options({**self.defaults, **options}, where)
            if given.provider_options:
                own = own_options(given.provider_options, self.provider)
                given = replace(given, provider_options=own)
            checked = self._supported(_in_seconds(given, now, where))
        where = f"{where} {name!r}"
        encoded = encode_json(data, f"{where}: data")
        body = job_body(encoded, metadata_json(checked.metadata, where))
        limit = self.can.max_job_size
        if limit is not None and len(body) > limit:
            raise InvalidJobError(
                f"{where}: the job has {len(body):,} bytes, the provider takes {limit:,}"
            )
        delay = checked.delay
        assert not isinstance(delay, datetime)
        headers = _headers(job_id, name, checked, now)
        due = datetime.fromtimestamp(now + delay, UTC) if delay else None
        job: Job[Any] = Job(
            id=job_id,
            name=name,
            queue=self.queue,
            data=data,
            status="waiting" if due is None else "delayed",
            max_attempts=checked.attempts,
            created_at=datetime.fromtimestamp(now, UTC),
            scheduled_for=due,
            priority=checked.priority,
            metadata=dict(checked.metadata or {}),
        )
        message = Message(job_id, self.full_name, body, headers, delay, checked.priority)
        return message, job

    def _supported(self, options: CheckedOptions) -> CheckedOptions:
        """The options that the provider supports. The others are left out with a warning."""
        can, lacking = self.can, dict[str, Any]()
        for name, (ability, nothing) in _NEEDS.items():
            value = getattr(options, name)
            if value != nothing and not getattr(can, ability):
                lacking[name] = nothing
                if value != self._always(name):
                    self.report(_NAMES.get(name, name), value, self.provider)
        delay = options.delay
        assert not isinstance(delay, datetime)
        if can.max_delay is not None and can.delays and delay > can.max_delay:
            raise InvalidJobError(
                f"{self.where} add: the provider delays by at most {can.max_delay:g} s, "
                f"got {delay:g} s"
            )
        return replace(options, **lacking) if lacking else options

    def _always(self, option: str) -> Keep | None:
        """The fixed retention of a provider that has no option for it."""
        if option == "keep_completed":
            return KEEP_NONE
        return KEEP_ALL if option == "keep_failed" and self.can.dead_letters else None


_NO_OPTIONS = CheckedOptions()


def check_name(name: object, where: str, right: str) -> None:
    """Check the name of a job. ``right``: what to write instead of giving a declared job.

    Raises:
        InvalidJobError: it is not a name.
    """
    if isinstance(name, str) and name.strip():
        return
    hint = ""
    if callable(name):  # a declared job, or its function
        called = getattr(name, "__name__", None) or getattr(name, "name", "job").replace("-", "_")
        hint = f"; write {right.format(job=called)}"
    raise InvalidJobError(f"{where}: name must be a non-empty string, got {name!r}{hint}")


def _in_seconds(options: CheckedOptions, now: float, where: str) -> CheckedOptions:
    moment = options.delay
    if not isinstance(moment, datetime):
        return options
    try:
        delay = check_delay(moment.timestamp() - now, moment, f"{where}: delay")
    except ConfigurationError as error:
        raise InvalidJobError(str(error)) from None
    return replace(options, delay=max(0.0, delay))


def _headers(job_id: str, name: str, options: CheckedOptions, now: float) -> dict[str, str | int]:
    headers: dict[str, str | int] = {
        names.ID: job_id,
        names.NAME: name,
        names.MAX_ATTEMPTS: options.attempts,
        names.CREATED_AT: round(now * 1000),
    }
    if options.delay and not isinstance(options.delay, datetime):
        headers[names.DUE_AT] = round((now + options.delay) * 1000)
    if options.backoff is not None:
        headers[names.BACKOFF] = options.backoff.text
    if options.keep_completed is not None:
        headers[names.KEEP_COMPLETED] = options.keep_completed.text
    if options.keep_failed is not None:
        headers[names.KEEP_FAILED] = options.keep_failed.text
    if options.concurrency_key is not None:
        headers[names.CONCURRENCY_KEY] = options.concurrency_key
    if options.correlation_id is not None:
        headers[names.CORRELATION_ID] = options.correlation_id
    if options.unique is not None:
        headers[names.UNIQUE] = options.unique.key
        if options.unique.within is not None:
            headers[names.UNIQUE_FOR] = round(options.unique.within * 1000)
    if options.provider_options:
        given = encode_json(options.provider_options, "provider_options")
        headers[names.PROVIDER_OPTIONS] = given.decode()
    return headers


def sent_fact(message: Message, queue: str, transport: str) -> Sent:
    """The fact about a job that was stored. ``queue``: its short name."""
    headers = message.headers
    data, metadata = split_body(message.body)
    due = whole(headers, names.DUE_AT)
    options = {name: value for name, value in headers.items() if name not in _FACTS}
    if message.priority is not None:
        options[PRIORITY] = message.priority
    name = str(headers.get(names.NAME, DEFAULT_NAME))
    return Sent(
        Kind("job", name, queue, message.queue, transport),
        message.id,
        whole(headers, names.CREATED_AT) / 1000,
        data,
        due_at=due / 1000 if due else None,
        metadata=metadata_from(metadata),
        correlation_id=correlation_id_of(headers),
        options=options,
    )


def correlation_id_of(headers: Mapping[str, str | int]) -> str | None:
    """The sender's id to trace related messages."""
    found = headers.get(names.CORRELATION_ID)
    return None if found is None else str(found)


_CANCELED = "canceled"


def canceled_text(reason: str) -> str:
    """The error of a job that is canceled."""
    return f"{_CANCELED}: {storable_text(str(reason), MOST_ERROR)}" if reason else _CANCELED


def was_canceled(status: JobStatus, error: str | None) -> bool:
    """Whether a job failed because it was canceled."""
    if status != "failed" or error is None:
        return False
    return error == _CANCELED or error.startswith(f"{_CANCELED}: ")


# -- adding recorded jobs again ---------------------------------------------

_KEPT = (
    *(names.BACKOFF, names.CONCURRENCY_KEY, names.CORRELATION_ID),
    *(names.KEEP_COMPLETED, names.KEEP_FAILED, names.PROVIDER_OPTIONS),
)


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be added again, under an id that is the same in every attempt.

    ``data`` is JSON; ``options`` are those of its record, as text.
    """

    id: str
    name: str
    data: bytes
    metadata: Mapping[str, Any]
    options: Mapping[str, str]


def stored_message(queue: str, job: StoredJob, now: float) -> Message:
    """The message of a job that is added again now.

    It runs at once, belongs to no flow, and takes no unique key: it is a separate job.
    """
    options = job.options
    headers: dict[str, str | int] = {
        names.ID: job.id,
        names.NAME: job.name,
        names.MAX_ATTEMPTS: max(1, whole(options, names.MAX_ATTEMPTS, 1)),
        names.CREATED_AT: round(now * 1000),
    }
    headers.update({name: options[name] for name in _KEPT if name in options})
    body = job_body(job.data, msgspec.json.encode(job.metadata) if job.metadata else None)
    return Message(job.id, queue, body, headers, priority=_number(options.get(PRIORITY, "")))


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


# -- deliveries ------------------------------------------------------------------------------------


NO_ROUTE = Route(handler="")
"""The route of a job that no function here runs."""


class JobWork(Work, gc=False, kw_only=True):
    """A decoded job. ``attempt`` includes attempts that ended in a crash.

    Attributes:
        name: selects the function.
        encoded: its data, as JSON.
        data: its data in the type that the function takes; None until the results of a flow are
            available.
        metadata: the sender's data for debugging.
        max_attempts, backoff: the options it was added with.
        error: the message of the last error.
        created_at: when it was added; ``received_at`` if unknown.
        received_at: when it arrived.
    """

    name: str
    encoded: bytes
    data: Any = None
    metadata: Mapping[str, Any]
    max_attempts: int
    backoff: Backoff
    error: str | None
    created_at: float
    received_at: float

    @property
    def due_at(self) -> float:
        """When this attempt was due; ``received_at`` if unknown."""
        headers = self.delivery.headers
        if self.attempt > 1:
            return whole(headers, names.RETRY_AT) / 1000 or self.received_at
        return whole(headers, names.DUE_AT) / 1000 or self.created_at


def received(delivery: Delivery, now: float) -> JobWork:
    """The job in a delivery, without a route. Never fails: what is missing has a default."""
    headers, receipt = delivery.headers, delivery.receipt
    encoded, metadata = split_body(delivery.body)
    error = headers.get(names.ERROR)
    lost = max(0, receipt.delivery_count - 1)  # the outcomes of these are unknown
    return JobWork(
        delivery,
        NO_ROUTE,
        str(headers.get(names.ID) or f"unnamed-{uuid4()}"),
        whole(headers, names.ATTEMPTS) + receipt.attempts_elsewhere + lost + 1,
        name=str(headers.get(names.NAME, "job")),
        encoded=encoded,
        metadata=metadata_from(metadata),
        max_attempts=max(1, whole(headers, names.MAX_ATTEMPTS, 1)),
        backoff=read_backoff(headers.get(names.BACKOFF)),
        error=None if error is None else str(error),
        created_at=whole(headers, names.CREATED_AT) / 1000 or now,
        received_at=now,
    )


def successor(work: JobWork, failure: Failure, now: float) -> Message:
    """The message of a failed job: for its next attempt, or to be kept as a failed job."""
    error, decision, delivery = failure.error, failure.decision, work.delivery
    headers: dict[str, Any] = {
        **delivery.headers,
        names.ID: work.id,
        names.ATTEMPTS: work.attempt if failure.ran else work.attempt - 1,
        names.ERROR: error_text(error, min(failure.longest_text, MOST_ERROR)),
    }
    delay = 0.0
    if isinstance(decision, RetryLater):
        delay = decision.delay
        headers[names.RETRY_AT] = round((now + delay) * 1000)
    else:
        full = failure.ran and not failure.bare
        headers[names.FAILED_AT] = round(now * 1000)
        headers |= error_headers(error) if full else error_type(error)
    return Message(
        work.id,
        delivery.receipt.queue,
        delivery.body,
        headers,
        delay,
        delivery.receipt.priority,
        delivery.receipt.ordering_key,
        None if failure.bare else delivery.properties,
    )
