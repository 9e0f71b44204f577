"""Handles for added jobs and their results; chains and groups, which pass results on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, cast
from uuid import uuid4

import msgspec

from matador.errors import (
    InvalidJobError,
    JobFailedError,
    JobNotFoundError,
    JobsUnsupportedError,
    JobTimeoutError,
)
from matador.jobs.job import Job
from matador.jobs.schedules import Schedule
from matador.model import job as names
from matador.model.job import JobCapabilities, JobStatus
from matador.model.options import Seconds, optional_seconds
from matador.runtime.blocking import Blocking

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_FIRST_LOOK, _LONGEST_PAUSE = 0.005, 0.25


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A job of a flow. ``headers`` name its parent, the number of jobs it waits for, and the field
    for their results."""

    id: str
    name: str
    data: Any
    options: Mapping[str, Any]
    headers: Mapping[str, str | int]


class JobQueue(Protocol):
    """The part of a queue that declared jobs, steps and handles need."""

    @property
    def name(self) -> str: ...
    @property
    def capabilities(self) -> JobCapabilities: ...
    @property
    def default_options(self) -> Mapping[str, Any]: ...
    def read_result(self, name: str, result: Any) -> Any: ...
    async def add(
        self, name: str, data: Any = None, *, job_id: str | None = None, **options: Any
    ) -> Job[Any]: ...
    async def add_flow(self, steps: Sequence[FlowStep]) -> list[Job[Any]]: ...
    async def schedule(
        self,
        key: str,
        name: str,
        data: Any = None,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str = "UTC",
        **options: Any,
    ) -> Schedule: ...
    async def cancel(self, job_id: str, reason: str = "") -> bool: ...
    def unsupported(self, ability: str, what: str) -> Exception: ...
    async def get(self, job_id: str) -> Job[Any] | None: ...
    def sync(self) -> Blocking[Any]: ...


class JobHandle(Generic[R]):
    """A handle for an added job and its future result.

    ``queue.handle(job_id)`` and ``declared_job.handle(job_id)`` create it from a stored id.

    Example:
        >>> handle = await welcome.add(to="ada@example.com")
        >>> await welcome.handle(handle.id).result(timeout=5)
    """

    def __init__(
        self, queue: JobQueue, job_id: str, read_result: Callable[[Any], R] | None = None
    ) -> None:
        self._queue = queue
        self._id = job_id
        self._read_result = read_result

    @property
    def id(self) -> str:
        """The id of the job."""
        return self._id

    def __repr__(self) -> str:
        return f"JobHandle({self._queue.name!r}, {self._id!r})"

    async def job(self) -> Job[Any]:
        """The job as it is stored now.

        Raises:
            JobNotFoundError: the job no longer exists.
            JobsUnsupportedError: the provider cannot find jobs by their ids.

        Example:
            >>> (await handle.job()).progress
            50
        """
        return await self._look()

    def on(self, queue: JobQueue) -> JobHandle[R]:
        """The same handle for the same queue, open in another event loop."""
        return JobHandle(queue, self._id, self._read_result)

    async def status(self) -> JobStatus:
        """The current status of the job.

        Raises:
            JobNotFoundError: the job no longer exists.
            JobsUnsupportedError: the provider cannot find jobs by their ids.

        Example:
            >>> await handle.status()
            'active'
        """
        return (await self._look()).status

    async def cancel(self, reason: str = "") -> bool:
        """Remove the job if it waits, or cancel it while it runs. See ``Queue.cancel``.

        Example:
            >>> await handle.cancel("the order was withdrawn")
            True
        """
        return await self._queue.cancel(self._id, reason)

    async def result(self, timeout: Seconds | None = None) -> R:
        """Wait for the job and return its result.

        Raises:
            JobFailedError: it failed permanently, or was canceled while it ran.
            JobTimeoutError: it is not finished after ``timeout`` seconds.
            JobNotFoundError: it no longer exists: removed, or completed and not kept.
            JobsUnsupportedError: the provider keeps no results.

        Example:
            >>> await handle.result(timeout=5)
            'sent'
        """
        if not self._queue.capabilities.results:
            raise self._queue.unsupported("results", "keep results")
        limit = optional_seconds(timeout, "result: timeout")
        pause = _FIRST_LOOK
        try:
            async with asyncio.timeout(limit):
                while True:
                    job = await self._look()
                    if job.status == "completed":
                        if self._read_result is None:
                            return self._queue.read_result(job.name, job.result)
                        return self._read_result(job.result)
                    if job.status == "failed":
                        raise JobFailedError(
                            f"job {job.id!r} failed: {job.error}",
                            queue=self._queue.name,
                            job_id=job.id,
                        )
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, _LONGEST_PAUSE)
        except JobTimeoutError:
            raise
        except TimeoutError as error:
            raise JobTimeoutError(
                f"job {self.id!r} was not finished after {limit:g} s",
                queue=self._queue.name,
                job_id=self.id,
            ) from error

    async def _look(self) -> Job[Any]:
        job = await self._queue.get(self.id)
        if job is None:
            raise JobNotFoundError(
                f"queue {self._queue.name!r} has no job {self.id!r} any more: it was removed, or "
                f"it completed and was not kept for longer; remove_on_complete= says how long",
                queue=self._queue.name,
                job_id=self.id,
            )
        return job


INTO = "job.into"
"""The header that names the field of a job's data for the results it waited for. ``name`` gets the
only result, ``name[]`` a list of results."""


class _Result:
    """Stands for the result of the previous step, or of all steps of a group."""

    def __repr__(self) -> str:
        return "RESULT"


RESULT: Final[Any] = _Result()
"""As an argument of a step: the result of the previous step. After a group: a list."""


@dataclass(frozen=True, slots=True)
class Step(Generic[R]):
    """A job that is not added yet: part of a chain or of a group.

    Made by ``declared_job.using(...)`` or ``queue.step(name, data)``.
    """

    queue: JobQueue
    name: str
    data: Any
    options: Mapping[str, Any]
    read_result: Callable[[Any], R]

    @property
    def into(self) -> str | None:
        """The field of its data that takes the result of the previous step."""
        given: object = self.data
        data = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        found = [name for name, value in data.items() if value is RESULT]
        if len(found) > 1:
            raise InvalidJobError(f"step {self.name!r}: RESULT is used in more than one argument")
        return found[0] if found else None


@dataclass(frozen=True, slots=True)
class Flow(Generic[R]):
    """A chain or a group, to be added. Can be a part of another one."""

    steps: tuple[Step[Any] | Flow[Any], ...]
    last: Step[R]
    many: bool

    async def add(self) -> JobHandle[R]:
        """Add all jobs or none. Returns the handle of the last job.

        Raises:
            JobsUnsupportedError: the provider has no flows, or the steps are in several queues.
            InvalidJobError: an argument is wrong.

        Example:
            >>> handle = await chain(fetch.using(url=url), store.using(page=RESULT)).add()
        """
        return await self.add_to(self.last.queue)

    async def add_to(self, queue: JobQueue) -> JobHandle[R]:
        """Like ``add``, to the steps' queue of this event loop."""
        if not queue.capabilities.flows:
            raise queue.unsupported("flows", "run chains and groups")
        jobs = await queue.add_flow(_placed(self, str(uuid4()), None, self.last.queue))
        return JobHandle(queue, jobs[0].id, self.last.read_result)

    def sync(self) -> SyncFlow[R]:
        """The blocking form, for code without an event loop.

        Example:
            >>> handle = chain(fetch.using(url=url), store.using(page=RESULT)).sync().add()
        """
        return SyncFlow(self)


def chain(first: Step[Any] | Flow[Any], *others: Step[R]) -> Flow[R]:
    """Run steps one after the other. An argument ``RESULT`` is the result of the previous step.

    When a step fails permanently, the following steps fail, too.

    Example:
        >>> handle = await chain(fetch.using(url=url), store.using(page=RESULT)).add()
    """
    if not others:
        raise InvalidJobError("chain: give at least two steps")
    flow: Any = first
    for step in others:
        flow = Flow((flow,), step, many=False)
    return flow


def group(*steps: Step[Any] | Flow[Any], then: Step[R]) -> Flow[R]:
    """Run steps concurrently, and ``then`` when all have completed. ``RESULT`` is the list of their
    results, in order.

    Example:
        >>> resized = [resize.using(path=path) for path in paths]
        >>> handle = await group(*resized, then=publish.using(images=RESULT)).add()
    """
    if not steps:
        raise InvalidJobError("group: give at least one step")
    return Flow(tuple(steps), then, many=True)


def _placed(
    flow: Step[Any] | Flow[Any], job_id: str, parent: str | None, queue: JobQueue
) -> list[FlowStep]:
    """All steps with their ids, the last one of the flow first."""
    last, steps = (flow, ()) if isinstance(flow, Step) else (flow.last, flow.steps)
    into = last.into
    if last.queue is not queue:
        raise JobsUnsupportedError(
            f"step {last.name!r}: all steps of a flow must be in one queue, {queue.name!r}",
            queue=queue.name,
        )
    if into is not None and isinstance(flow, Step):
        raise InvalidJobError(f"step {last.name!r}: RESULT is used in a first step")
    headers: dict[str, str | int] = {}
    if parent is not None:
        headers[names.PARENT] = parent
    if steps:
        headers[names.CHILDREN] = len(steps)
    if into is not None:
        headers[INTO] = f"{into}[]" if isinstance(flow, Flow) and flow.many else into
    found = [FlowStep(job_id, last.name, _without(last.data, into), last.options, headers)]
    for index, step in enumerate(steps):
        found += _placed(step, step_id(job_id, index), job_id, queue)
    return found


def step_id(job_id: str, number: int) -> str:
    """The id of a job that another one waits for, by its number from 0."""
    return f"{job_id}.{number}"


def _without(data: Any, into: str | None) -> Any:
    if into is None:
        return data
    return {name: value for name, value in data.items() if name != into}


def with_results(data: bytes, into: str, results: Mapping[str, bytes | None]) -> bytes:
    """The data of a job with the results that it waited for. In the order of the steps."""
    ordered = [results[one] or b"null" for one in sorted(results, key=_place)]
    name = into.removesuffix("[]")
    raw = msgspec.Raw(b"[%b]" % b",".join(ordered) if into.endswith("[]") else ordered[0])
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**fields, name: raw})


def _place(job_id: str) -> int:
    number = job_id.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0


# -- without an event loop ------------------------------------------------------------------------


def _blocking(
    method: Callable[Concatenate[JobHandle[R], P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncJobHandle[R], P], T]:
    """The blocking form of a method of a handle, with the same parameters."""

    @wraps(method)
    def wait(self: SyncJobHandle[R], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait(lambda handle: method(handle, *args, **kwargs), method.__name__)

    return wait


class SyncJobHandle(Generic[R]):
    """A ``JobHandle`` for code without an event loop: what ``job.sync().add(...)`` returns.

    Example:
        >>> handle = welcome.sync().add(to="ada@example.com")
        >>> handle.result(timeout=5)
        'sent'
    """

    def __init__(self, queue: JobQueue, handle: JobHandle[R]) -> None:
        self._queue = queue
        self._handle = handle

    @property
    def id(self) -> str:
        """The id of the job."""
        return self._handle.id

    job = _blocking(JobHandle[R].job)
    cancel = _blocking(JobHandle[R].cancel)
    status = _blocking(JobHandle[R].status)
    result = _blocking(JobHandle[R].result)

    def wait(self, call: Callable[[JobHandle[R]], Coroutine[Any, Any, T]], name: str) -> T:
        """Call ``call`` with the handle, in the event loop of the queue."""
        form = self._queue.sync()
        form.refuse_in_loop(name, "handle")
        return form.wait(lambda here: call(self._handle.on(here)))


class SyncFlow(Generic[R]):
    """``flow.sync()``: a chain or a group for code without an event loop.

    Example:
        >>> handle = chain(fetch.using(url=url), store.using(page=RESULT)).sync().add()
    """

    def __init__(self, flow: Flow[R]) -> None:
        self._flow = flow

    def add(self) -> SyncJobHandle[R]:
        """``Flow.add``, which blocks.

        Example:
            >>> flow = chain(fetch.using(url=url), store.using(page=RESULT))
            >>> flow.sync().add().result(timeout=60)
        """
        queue = self._flow.last.queue
        form = queue.sync()
        form.refuse_in_loop("add", "flow")
        return SyncJobHandle(queue, form.wait(self._flow.add_to))
