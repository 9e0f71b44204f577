"""The handler of jobs: one delivery, from raw bytes to its outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from matador.errors import (
    InvalidJobError,
    JobTimeoutError,
    LeaseLostError,
    MatadorError,
    PermanentJobError,
    TimeoutError,
)
from matador.jobs.data import encode_json
from matador.jobs.events import (
    Emitter,
    JobActive,
    JobCompleted,
    JobFailed,
    JobProgress,
    JobRetrying,
)
from matador.jobs.flows import INTO, with_results
from matador.jobs.functions import JobFunction
from matador.jobs.job import ActiveJob, JobControl, metadata_from, moment
from matador.jobs.recording import JobRecording, Then
from matador.jobs.wire import MOST_ERROR, ReceivedJob, received, successor
from matador.model.job import JobCapabilities
from matador.model.message import (
    ERROR_TYPE_HEADER,
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Receipt,
    Release,
    Retry,
)
from matador.model.text import SHORT_TEXT, loggable, storable_text
from matador.runtime.calls import InOwnContext, Ran
from matador.runtime.log_context import HANDLED, LogContext
from matador.runtime.settle import Outcome, kept_as_it_arrived
from matador.runtime.worker import DeliveryWorker
from matador.transports.base import JobFlows, JobStoring
from matador.transports.clock import Clock

log = logging.getLogger("matador.jobs")

Run = Callable[[JobFunction, ActiveJob[Any]], Awaitable[Any]]
"""Runs a function for a job: in the event loop, in a thread, or in another process."""


class _LogFields(msgspec.Struct, frozen=True, gc=False):
    """What log lines say of a job."""

    id: str
    name: str
    queue: str
    attempts: int

    def log_fields(self) -> dict[str, object]:
        return {
            "message_id": self.id,
            "job": self.name,
            "queue": self.queue,
            "attempt": self.attempts + 1,
        }


class JobHandler:
    """Runs jobs. Called by many slots at once; keeps no state between jobs.

    Args:
        queue: the name of the queue, as users know it.
        functions: by the names of the jobs; ``None``: for all others.
        can_be_ended: False for what runs in a thread: it is waited for after its timeout.
        timeout: seconds that an attempt may take.
        max_deliveries: a job that was delivered so often without an outcome is failed.
        recording: where attempts are recorded, if they are.
    """

    def __init__(
        self,
        worker: DeliveryWorker,
        *,
        queue: str,
        worker_id: str,
        functions: Mapping[str | None, JobFunction],
        run: Run,
        can_be_ended: Callable[[JobFunction], bool],
        store: JobStoring,
        emitter: Emitter,
        clock: Clock,
        timeout: float | None,
        max_deliveries: int,
        recording: JobRecording | None = None,
    ) -> None:
        self._calls = worker.calls
        self._queue = queue
        self._worker_id = worker_id
        self._functions = functions
        self._run = run
        self._can_be_ended = can_be_ended
        self._store = store
        self._can: JobCapabilities = store.job_capabilities
        self._emitter = emitter
        self._clock = clock
        self._timeout = timeout
        self._max_deliveries = max_deliveries
        self._recording = recording

    async def process(self, delivery: Delivery) -> Outcome:
        """Run a job. Whatever happens is an outcome."""
        receipt = delivery.receipt
        try:
            HANDLED.set(None)  # the last job of this slot
            job = received(delivery, self._clock.time())
            if LogContext.wanted:
                HANDLED.set(_LogFields(job.id, job.name, self._queue, job.attempts))
            if delivery.problem is not None:
                return self._refused(delivery, job, f"it cannot be run: {delivery.problem}")
            if receipt.delivery_count > self._max_deliveries:
                lost = receipt.delivery_count - 1
                reason = f"its worker died, or lost it, in each of {lost} attempts"
                return self._refused(delivery, job, reason)
            function = self._function_of(job)
            if function is None:
                return self._refused(delivery, job, self._unknown(job.name))
            into = delivery.headers.get(INTO)
            if into is not None:
                try:
                    job = await self._handed_on(job, receipt.queue, str(into))
                except MatadorError as error:  # counted, so that it does not go on for ever
                    return self._failed(delivery, job, self._active(delivery, job, None), error, 0)
            try:
                data = function.decode(job.data)
            except Exception as error:  # noqa: BLE001 - a validator of the user's may raise anything
                return self._refused(delivery, job, f"invalid data: {error}", error)
            active = self._active(delivery, job, data)
            self._tell_active(active)
            return await self._attempt(delivery, job, active, function)
        except Exception as error:  # an option that does what it must not
            log.exception("a job of %s could not be processed", receipt.queue)
            return self.give_up(delivery, f"{type(error).__name__}: {error}")

    async def _handed_on(self, job: ReceivedJob, queue: str, into: str) -> ReceivedJob:
        """The job with the results that it has waited for."""
        if not isinstance(self._store, JobFlows):
            return job
        results = await self._store.child_results(queue, job.id)
        return msgspec.structs.replace(job, data=with_results(job.data, into, results))

    def give_up(self, delivery: Delivery, reason: str) -> Outcome:
        """The outcome of a delivery that cannot be processed to its end."""
        reason = storable_text(reason, MOST_ERROR)
        then = None
        if self._recording is not None:
            job = received(delivery, self._clock.time())
            then = self._recording.then(None, delivery, job, "dead-letter", reason=reason)
        return kept_as_it_arrived(delivery.receipt, "undeliverable", reason, then, quick=True)

    def _function_of(self, job: ReceivedJob) -> JobFunction | None:
        return self._functions.get(job.name) or self._functions.get(None)

    def _unknown(self, name: str) -> str:
        known = ", ".join(sorted(one for one in self._functions if one is not None))
        return f"no handler for jobs named {storable_text(name, SHORT_TEXT)!r} (there are: {known})"

    # -- one attempt ------------------------------------------------------------------------------

    async def _attempt(
        self,
        delivery: Delivery,
        job: ReceivedJob,
        active: ActiveJob[Any],
        function: JobFunction,
    ) -> Outcome:
        receipt, began = delivery.receipt, self._clock.monotonic()
        ran = await self._calls.run(InOwnContext(self._limited(function, active)))
        duration = self._clock.monotonic() - began
        try:
            if ran.interrupted:
                return Outcome(receipt, Release(receipt))
            if ran.error is not None:
                return self._failed(delivery, job, active, ran.error, duration)
            return self._completed(delivery, job, active, ran, duration)
        except InvalidJobError as error:  # a result that cannot be written
            return self._failed(delivery, job, active, error, duration)
        finally:
            del ran

    async def _limited(self, function: JobFunction, active: ActiveJob[Any]) -> Any:
        limit = function.timeout if function.timeout is not None else self._timeout
        if limit is None:
            return await self._run(function, active)
        if not self._can_be_ended(function):
            late = asyncio.get_running_loop().call_later(limit, self._warn_late, active, limit)
            try:
                return await self._run(function, active)
            finally:
                late.cancel()
        try:
            return await self._calls.limited(
                self._run(function, active), limit, f"job {active.id!r}"
            )
        except TimeoutError as error:
            raise JobTimeoutError(
                f"job {active.id!r} took longer than its timeout of {limit:g} s",
                queue=self._queue,
                job_id=active.id,
            ) from error

    def _warn_late(self, active: ActiveJob[Any], limit: float) -> None:
        # Another attempt would run beside this one.
        log.warning("job %s runs for longer than its timeout of %g s", active.id, limit)

    def _completed(
        self,
        delivery: Delivery,
        job: ReceivedJob,
        active: ActiveJob[Any],
        ran: Ran,
        duration: float,
    ) -> Outcome:
        receipt, encoded = delivery.receipt, None
        if ran.result is not None and self._can.results:
            encoded = encode_json(ran.result, f"job {active.id!r}: what the handler returned")
        then = None
        if self._emitter.heard:
            completed = JobCompleted(
                **self._about(active, "completed", active.attempts + 1),
                duration=duration,
                result=ran.result,
            )
            then = self._telling("completed", completed)
        if self._recording is not None:
            then = self._recording.then(then, delivery, job, "success", duration=duration)
        simpler = None
        if encoded is not None:
            size = len(encoded)
            simpler = partial(self._without_result, delivery, job, active, size, duration)
        return Outcome(receipt, Complete(receipt, encoded), then, quick=True, simpler=simpler)

    def _without_result(
        self,
        delivery: Delivery,
        job: ReceivedJob,
        active: ActiveJob[Any],
        size: int,
        duration: float,
    ) -> Outcome:
        """A job whose result can never be stored has failed: it would be the same again."""
        error = PermanentJobError(
            f"it ran to its end, but its result of {size:,} bytes cannot be stored; return a "
            f"reference to the data instead of the data",
            queue=self._queue,
            job_id=job.id,
        )
        return self._failed(delivery, job, active, error, duration)

    def _failed(
        self,
        delivery: Delivery,
        job: ReceivedJob,
        active: ActiveJob[Any],
        error: Exception,
        duration: float,
    ) -> Outcome:
        receipt, attempts = delivery.receipt, job.attempts + 1
        permanent = isinstance(error, PermanentJobError)
        again = not permanent and attempts < job.max_attempts
        text = error_text(error)
        delay = self._delay(job, attempts) if again else None
        log.log(
            logging.WARNING if again else logging.ERROR,
            "job %s (%s) of %s failed in attempt %d of %d (%s: %s); %s",
            storable_text(job.id, SHORT_TEXT),
            storable_text(job.name, SHORT_TEXT),
            self._queue,
            attempts,
            job.max_attempts,
            type(error).__name__,
            text,
            f"retrying in {delay:.3g} s" if again else "it is kept among the failed jobs",
            exc_info=None if again or permanent else loggable(error),
            extra={"matador_queue": self._queue, "matador_job": job.id},
        )
        then = None
        if self._emitter.heard:
            status = "failed" if not again else "delayed" if delay else "waiting"
            failed = JobFailed(
                **self._about(active, status, attempts),
                error=error,
                error_type=type(error).__name__,
                duration=duration,
                will_retry=again,
                permanent=permanent,
                retry_delay=delay,
            )
            then = self._telling("failed", failed, again and job.max_attempts)
        if self._recording is not None:
            outcome = "retry" if again else "dead-letter"
            then = self._recording.then(
                then, delivery, job, outcome, duration=duration, error=error, text=text
            )
        if again:
            message = successor(delivery, job, text, self._clock.time(), delay=delay or 0.0)
            return Outcome(
                receipt,
                Retry(receipt, message),
                then,
                quick=True,
                simpler=lambda: self.give_up(delivery, text),
            )
        return self._dead_letter(delivery, job, text, error, then)

    def _delay(self, job: ReceivedJob, attempts: int) -> float:
        if not self._can.delays:
            return 0.0
        longest = self._can.max_delay
        delay = job.backoff.wait(attempts)
        return delay if longest is None else min(delay, longest)

    def _refused(
        self, delivery: Delivery, job: ReceivedJob, reason: str, error: Exception | None = None
    ) -> Outcome:
        """A job that must not, or cannot, run: it fails without an attempt."""
        found = error or PermanentJobError(reason, queue=self._queue, job_id=job.id)
        log.error(
            "job %s (%s) of %s was not run: %s",
            storable_text(job.id, SHORT_TEXT),
            storable_text(job.name, SHORT_TEXT),
            self._queue,
            storable_text(reason, SHORT_TEXT),
        )
        then = None
        if self._emitter.heard:
            failed = JobFailed(
                job_id=job.id,
                name=job.name,
                queue=self._queue,
                attempts=job.attempts,
                status="failed",
                metadata=metadata_from(job.metadata),
                error=found,
                error_type=type(found).__name__,
                duration=0.0,
                will_retry=False,
                permanent=True,
            )
            then = self._telling("failed", failed)
        reason = storable_text(reason, MOST_ERROR)
        if self._recording is not None:
            known = self._function_of(job) is not None
            then = self._recording.then(
                then,
                delivery,
                job,
                "dead-letter",
                error=found,
                reason=reason,
                ran=False,
                known=known,
            )
        if delivery.problem is not None:
            receipt = delivery.receipt
            return kept_as_it_arrived(receipt, "undeliverable", reason, then, quick=True)
        return self._dead_letter(delivery, job, reason, found, then, ran=False)

    def _dead_letter(
        self,
        delivery: Delivery,
        job: ReceivedJob,
        text: str,
        error: Exception,
        then: Then | None,
        *,
        ran: bool = True,
    ) -> Outcome:
        receipt = delivery.receipt
        message = successor(delivery, job, text, self._clock.time(), delay=None)
        kind = type(error)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        headers = {**message.headers, ERROR_TYPE_HEADER: storable_text(name, SHORT_TEXT)}
        if not ran:
            headers["job.attempts"] = job.attempts
        message: Message = msgspec.structs.replace(message, headers=headers)
        return Outcome(
            receipt,
            DeadLetter(receipt, "undeliverable", text, message),
            then,
            quick=True,
            simpler=lambda: kept_as_it_arrived(receipt, "undeliverable", text, then, quick=True),
        )

    # -- telling ----------------------------------------------------------------------------------

    def _active(self, delivery: Delivery, job: ReceivedJob, data: Any) -> ActiveJob[Any]:
        receipt, now = delivery.receipt, self._clock.time()
        created = moment(job.created_at) or moment(now)
        assert created is not None
        provider = {"receipt": receipt.handle, "delivery_count": receipt.delivery_count}
        return ActiveJob(
            id=job.id,
            name=job.name,
            queue=self._queue,
            data=data,
            status="active",
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            created_at=created,
            processed_at=moment(now),
            error=job.error,
            priority=receipt.priority,
            metadata=metadata_from(job.metadata),
            provider_metadata=provider,
            control=JobControl(partial(self._progress, receipt, job), asyncio.get_running_loop()),
        )

    async def _progress(
        self, receipt: Receipt, job: ReceivedJob, encoded: bytes, progress: Any
    ) -> None:
        if self._can.progress:
            try:
                await self._store.set_progress(receipt, encoded)
            except LeaseLostError:
                raise
            except MatadorError as error:  # a handler must not fail because of its progress
                log.warning("the progress of job %s was not stored: %s", job.id, error)
        if self._emitter.heard:
            event = JobProgress(
                job_id=job.id,
                name=job.name,
                queue=self._queue,
                attempts=job.attempts,
                status="active",
                metadata=metadata_from(job.metadata),
                progress=progress,
            )
            self._emitter.emit("progress", event)

    def _tell_active(self, active: ActiveJob[Any]) -> None:
        if self._emitter.heard:
            event = JobActive(
                **self._about(active, "active", active.attempts), worker_id=self._worker_id
            )
            self._emitter.emit("active", event)

    def _about(self, active: ActiveJob[Any], status: str, attempts: int) -> dict[str, Any]:
        return {
            "job_id": active.id,
            "name": active.name,
            "queue": self._queue,
            "attempts": attempts,
            "status": status,
            "metadata": active.metadata,
        }

    def _telling(self, event: str, value: Any, retrying: int | bool = False) -> Then:
        async def tell() -> None:
            if event == "completed":
                self._emitter.emit("completed", value)
                return
            self._emitter.emit("failed", value)
            if retrying:
                again = JobRetrying(
                    job_id=value.job_id,
                    name=value.name,
                    queue=value.queue,
                    attempts=value.attempts,
                    status=value.status,
                    metadata=value.metadata,
                    max_attempts=int(retrying),
                    retry_delay=value.retry_delay or 0.0,
                )
                self._emitter.emit("retrying", again)

        return tell


def error_text(error: BaseException) -> str:
    """An error as it is kept with its job: its message, or its name if it has none."""
    try:
        text = str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - an error that cannot say what it is
        text = type(error).__name__
    return storable_text(text, MOST_ERROR)
