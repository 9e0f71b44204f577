"""Declared jobs: a function whose parameters are the job's data, and what it returns its result."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, get_type_hints, overload

import msgspec

from matador.errors import (
    ConfigurationError,
    InvalidJobError,
    JobFailedError,
    JobNotFoundError,
    JobsUnsupportedError,
    JobTimeoutError,
)
from matador.jobs.data import decoder_for
from matador.jobs.functions import JobFunction, check_callable, is_async
from matador.jobs.job import ActiveJob, Job
from matador.jobs.options import JobOptions, check_options
from matador.model.job import JobCapabilities, JobStatus, Keep
from matador.model.options import Seconds, optional_seconds
from matador.model.subscriber import place_of

P = ParamSpec("P")
R = TypeVar("R")

KEEP_RESULTS = Keep(age=3600, count=10_000)
"""How long a declared job with a result is kept once it has completed, unless told otherwise."""

_FIRST_LOOK, _LONGEST_PAUSE = 0.005, 0.25

_current: ContextVar[ActiveJob[Any]] = ContextVar("matador_current_job")


def current_job() -> ActiveJob[Any]:
    """The job that is being run here, for functions declared with ``@queue.job``.

    Raises:
        LookupError: no job is being run here.
    """
    return _current.get()


class JobQueue(Protocol):
    """What a declared job needs of its queue."""

    @property
    def name(self) -> str:
        """The name of the queue."""
        ...

    @property
    def capabilities(self) -> JobCapabilities:
        """What the provider can do."""
        ...

    @property
    def default_options(self) -> Mapping[str, Any]:
        """Options for all jobs."""
        ...

    async def add(
        self, name: str, data: Any = None, *, job_id: str | None = None, **options: Any
    ) -> Job[Any]:
        """Add a job."""
        ...

    async def get(self, job_id: str) -> Job[Any] | None:
        """The job with that id, or None."""
        ...


class DeclaredJob(Generic[P, R]):
    """A function that can be added as a job. Calling it runs it here and now.

    Example:
        >>> @queue.job(attempts=5)
        ... async def welcome(to: str, lang: str = "en") -> str: ...
        >>> handle = await welcome.add(to="ada@example.com")
        >>> await handle.result(timeout=5)
    """

    def __init__(
        self,
        queue: JobQueue,
        function: Callable[P, R] | Callable[P, Awaitable[R]],
        name: str,
        options: Mapping[str, Any],
        timeout: float | None = None,
        shape: _Shape | None = None,
    ) -> None:
        self._queue = queue
        self._function = function
        self._name = name
        self._options = options
        self._timeout = timeout
        self._shape = shape or _Shape(function, f"job {name!r}:")

    @property
    def name(self) -> str:
        """Under which name it is added."""
        return self._name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self._function(*args, **kwargs)

    def with_options(self, **options: Unpack[JobOptions]) -> DeclaredJob[P, R]:
        """The same job with other options: ``welcome.with_options(delay=10).add(...)``."""
        merged = {**self._options, **options}
        check_options(merged, f"job {self._name!r}")
        return DeclaredJob(
            self._queue, self._function, self._name, merged, self._timeout, self._shape
        )

    async def add(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Add the job, with the arguments of the function.

        Raises:
            InvalidJobError: an argument has the wrong type, or cannot be written as JSON.
        """
        data = self._shape.data(args, kwargs)
        options = self._options
        asked = "remove_on_complete" in {**self._queue.default_options, **options}
        if self._shape.has_result and not asked and self._queue.capabilities.keep:
            options = {**options, "remove_on_complete": KEEP_RESULTS}
        job = await self._queue.add(self._name, data, **options)
        return JobHandle(self._queue, job, self._shape.read_result)

    @property
    def as_function(self) -> JobFunction:
        """For the worker."""
        return JobFunction(
            self._function,
            self._shape.decode,
            self._run if is_async(self._function) else self._run_sync,
            is_async(self._function),
            self._timeout,
        )

    async def _run(self, job: ActiveJob[Any]) -> Any:
        _current.set(job)
        return await self._function(**job.data)  # type: ignore[misc]

    def _run_sync(self, job: ActiveJob[Any]) -> Any:
        _current.set(job)
        return self._function(**job.data)  # type: ignore[call-arg]


class DeclareJob:
    """``@queue.job(...)``: keeps the types of the function."""

    def __init__(
        self,
        queue: JobQueue,
        declared: dict[str | None, JobFunction],
        name: str | None,
        timeout: Seconds | None,
        options: Mapping[str, Any],
    ) -> None:
        self._queue = queue
        self._declared = declared
        self._name = name
        self._timeout = optional_seconds(timeout, f"[Queue:{queue.name}] job: timeout")
        self._options = options
        check_options(options, f"[Queue:{queue.name}] job")

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> DeclaredJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> DeclaredJob[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Declare ``function``."""
        name = self._name or re.sub(r"_+", "-", getattr(function, "__name__", "job").strip("_"))
        if name in self._declared:
            raise ConfigurationError(
                f"[Queue:{self._queue.name}] there are two jobs named {name!r}{place_of(function)}"
            )
        job: DeclaredJob[..., Any] = DeclaredJob(
            self._queue, function, name, self._options, self._timeout
        )
        self._declared[name] = job.as_function
        return job


class JobHandle(Generic[R]):
    """A job that was added, and its result to come."""

    def __init__(self, queue: JobQueue, job: Job[Any], read_result: Callable[[Any], R]) -> None:
        self._queue = queue
        self.job = job
        self._read_result = read_result

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.job.id

    async def status(self) -> JobStatus:
        """Where the job stands now.

        Raises:
            JobNotFoundError: it is gone.
        """
        return (await self._look()).status

    async def result(self, timeout: Seconds | None = None) -> R:
        """Wait for the job, and return what its function returned.

        Raises:
            JobFailedError: it failed for good.
            JobTimeoutError: it is not finished after ``timeout`` seconds.
            JobNotFoundError: it is gone: removed, or completed and not kept.
            JobsUnsupportedError: the provider keeps no results.
        """
        if not self._queue.capabilities.results:
            raise JobsUnsupportedError(
                f"queue {self._queue.name!r}: the provider keeps no results", queue=self._queue.name
            )
        limit = optional_seconds(timeout, "result: timeout")
        pause = _FIRST_LOOK
        try:
            async with asyncio.timeout(limit):
                while True:
                    job = await self._look()
                    if job.status == "completed":
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
                f"it completed and was not kept; pass remove_on_complete=False to keep it",
                queue=self._queue.name,
                job_id=self.id,
            )
        return job


class _Shape:
    """The parameters of a function as a type of their own, and its result."""

    def __init__(self, function: Callable[..., Any], where: str) -> None:
        check_callable(function, where)
        self._signature = inspect.signature(function)
        self._where = where
        try:
            hints = get_type_hints(function)
        except Exception as error:
            raise ConfigurationError(
                f"{where} its annotations cannot be resolved: {error}{place_of(function)}"
            ) from error
        fields: list[tuple[str, Any, Any]] = []
        for parameter in self._signature.parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ConfigurationError(
                    f"{where} parameter {parameter.name!r} cannot be stored by its name"
                    f"{place_of(function)}"
                )
            default = msgspec.NODEFAULT if parameter.default is parameter.empty else msgspec.UNSET
            kind = hints.get(parameter.name, Any)
            if default is msgspec.UNSET:
                kind = kind | msgspec.UnsetType if kind is not Any else Any
            fields.append((parameter.name, kind, default))
        struct = msgspec.defstruct("Parameters", fields, kw_only=True, forbid_unknown_fields=True)
        self._read = decoder_for(struct, where)
        self._names = [name for name, _, _ in fields]
        returned = hints.get("return", Any)
        self.has_result = returned is not type(None)
        self._result = (
            None if returned is Any or not self.has_result else decoder_for(returned, where)
        )

    def data(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as the data of a job, checked."""
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise InvalidJobError(f"{self._where} {error}") from None

    def decode(self, data: bytes) -> dict[str, Any]:
        """The data of a job as the arguments of a call."""
        read = self._read(data)
        found = {name: getattr(read, name) for name in self._names}
        return {name: value for name, value in found.items() if value is not msgspec.UNSET}

    def read_result(self, result: Any) -> Any:
        """A result in the type that the function names."""
        if self._result is None:
            return result
        return self._result(msgspec.json.encode(result))
