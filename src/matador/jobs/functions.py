"""Functions that run jobs: of the job, or declared ones, whose parameters are its data."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from types import UnionType
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec

from matador.errors import ConfigurationError, InvalidJobError
from matador.jobs.flows import JobHandle, JobQueue, Step, SyncJobHandle
from matador.jobs.job import ActiveJob, Job, decoder_for, encode_json
from matador.jobs.options import JobOptions, check_defaults, check_options
from matador.jobs.schedules import Recurrence, Schedule
from matador.model.job import Missed
from matador.model.options import Seconds, one_of, optional_seconds
from matador.model.signature import place_of
from matador.model.subscriber import Idempotency
from matador.runtime.context import Context
from matador.runtime.facts import EPOCH, plain_data
from matador.runtime.functions import check_callable, is_async, read_function
from matador.runtime.way import Route

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobFunction:
    """A function, and how it is called.

    Attributes:
        function: the user's function.
        decode: reads a job's data for it.
        call: calls it with the active job, whose data were decoded.
        is_async: it is awaited; others run in threads.
        timeout: the time limit of an attempt in seconds; None: that of the worker.
        idempotent: whether it may run again for the same job; None: the worker decides.
        takes: the type of the data; ``Any`` without an annotation.
        returns: the type of the result; ``Any`` without an annotation.
    """

    function: Callable[..., Any]
    decode: Callable[[bytes], Any]
    call: Callable[[ActiveJob[Any]], Any]
    is_async: bool
    timeout: float | None = None
    takes: Any = Any
    returns: Any = Any
    idempotent: Idempotency | None = None


class JobRoute(Route, frozen=True, kw_only=True):
    """The handler of the jobs of one name."""

    function: JobFunction


def _itself(job: ActiveJob[Any]) -> Any:
    return job


def _context(job: ActiveJob[Any]) -> Context:
    return job.context


_INJECTED: Mapping[type[Any], Callable[[ActiveJob[Any]], Any]] = {ActiveJob: _itself, Job: _itself}
"""The values of parameters by type, besides the data and the context."""


def handler_function(function: Callable[..., Any], where: str) -> JobFunction:
    """A function that runs jobs: ``async def handle(job: ActiveJob[Welcome]) -> str``.

    Its parameters are filled by their types, in any order: ``ActiveJob``, ``Context``, and one for
    the data. A single parameter without a type takes the job. The type of the data, or that in
    ``ActiveJob[...]``, decides how they are decoded; without a type, they are plain data.

    Raises:
        ConfigurationError: it cannot be called, or a parameter has no value to take.
    """
    bare = check_callable(function, where)
    if _takes_job_alone(function, bare):
        return JobFunction(function, plain_data, function, is_async(function))
    read = read_function(
        function,
        where,
        context=Context,
        fill=_context,
        inject=_INJECTED,
        carrier=ActiveJob,
        rest=ActiveJob,
    )
    call: Callable[[ActiveJob[Any]], Any] = lambda job: read.bind(job, job.data)()  # noqa: E731
    if len(read.fills) == 1 and read.fills[0] == (None, _itself):
        call = function  # most of them
    return JobFunction(
        function,
        read.decode or plain_data,
        call,
        is_async(function),
        takes=Any if read.takes is None else read.takes,
        returns=read.returns,
    )


def _takes_job_alone(function: Callable[..., Any], bare: Any) -> bool:
    """Whether it has a single parameter without an annotation."""
    try:
        needed = [
            one
            for one in inspect.signature(function).parameters.values()
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) and one.default is one.empty
        ]
    except (TypeError, ValueError):
        return True  # a builtin without a signature: errors appear when it is called
    return len(needed) == 1 and needed[0].annotation is inspect.Parameter.empty


# -- declared jobs ---------------------------------------------------------------------------------


_current: ContextVar[ActiveJob[Any]] = ContextVar("matador_current_job")


def current_job() -> ActiveJob[Any]:
    """The job that is running now, for functions declared with ``@queue.job``.

    Raises:
        LookupError: no job is running in this context.

    Example:
        >>> @queue.job
        ... async def resize(path: str) -> None:
        ...     print(current_job().attempt)
    """
    return _current.get()


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
        idempotent: Idempotency | None = None,
        recurrence: Recurrence | None = None,
    ) -> None:
        self._queue = queue
        self._function = function
        self._recurrence = recurrence
        self._name = name
        self._options = options
        self._timeout = timeout
        self._idempotent: Idempotency | None = idempotent
        self._shape = _Shape(function, f"job {name!r}")

    @property
    def name(self) -> str:
        """The name of its jobs."""
        return self._name

    @property
    def recurrence(self) -> Recurrence | None:
        """The recurrence declared for it; None: it does not recur."""
        return self._recurrence

    def __repr__(self) -> str:
        return f"<job {self._name!r} of {self._queue.name!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        shape, function = self._shape, cast("Callable[..., Any]", self._function)
        if not shape.fills:
            return function(*args, **kwargs)
        own = {name: kwargs.pop(name) for name in shape.fills if name in kwargs}
        unused: ActiveJob[Any] = ActiveJob(
            id="",
            name=self._name,
            queue=self._queue.name,
            data=None,
            status="active",
            created_at=EPOCH,
        )  # no worker runs it
        return function(**shape.data(args, kwargs), **{**shape.filled(unused), **own})

    def with_options(self, **options: Unpack[JobOptions]) -> DeclaredJob[P, R]:
        """The same job with other options: ``welcome.with_options(delay=10).add(...)``.

        Example:
            >>> await welcome.with_options(delay=10).add(to="ada@example.com")
        """
        merged = {**self._options, **options}
        check_options(merged, f"job {self._name!r}")
        changed = copy(self)
        changed._options = merged
        return changed

    async def add(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Add the job, with the arguments of the function.

        Raises:
            InvalidJobError: an argument has the wrong type, or cannot be written as JSON.

        Example:
            >>> handle = await welcome.add(to="ada@example.com", lang="fr")
        """
        data = self._shape.data(args, kwargs)
        self._shape.check(data)
        job = await self._queue.add(self._name, data, **self._options)
        return JobHandle(self._queue, job.id, self._shape.read_result)

    def handle(self, job_id: str) -> JobHandle[R]:
        """A handle for a job that was added before, from its stored id.

        Example:
            >>> await welcome.handle(job_id).result(timeout=5)
            'sent'
        """
        return JobHandle(self._queue, job_id, self._shape.read_result)

    def schedule(
        self,
        key: str,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str = "UTC",
        missed: Missed = "one",
    ) -> DeclaredSchedule[P]:
        """Add the job repeatedly. See ``Queue.schedule``.

        Example:
            >>> await welcome.schedule("daily", cron="@daily").add(to="ada@example.com")
        """
        recurrence = Recurrence(cron=cron, every=every, timezone=timezone, missed=missed)
        return DeclaredSchedule(self, key, recurrence)

    async def add_schedule(
        self, key: str, recurrence: Recurrence, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Schedule:
        """Implements ``DeclaredSchedule.add``."""
        data = self._shape.data(args, kwargs)
        self._shape.check(data)
        options = {"missed": recurrence.missed, **self._options}
        return await self._queue.schedule(
            key,
            self._name,
            data,
            cron=recurrence.cron,
            every=recurrence.every,
            timezone=recurrence.timezone,
            **options,
        )

    def check_recurring(self, place: str) -> None:
        """Check that a schedule can add it. ``place``: where it is declared.

        Raises:
            ConfigurationError: it needs arguments, or has an option that no schedule has.
        """
        where = f"job {self._name!r}"
        needed = self._shape.needed
        if needed:
            values = ", ".join(f"{name}=…" for name in needed)
            function = getattr(self._function, "__name__", "job")
            raise ConfigurationError(
                f"{where} recurs, so it cannot get the arguments {', '.join(needed)}: give "
                f"them defaults, or write await {function}.schedule('key', cron='…').add({values})"
                f"{place}"
            )
        if self._options.get("delay") or self._options.get("unique"):
            raise ConfigurationError(f"{where}: a schedule has neither delay nor unique{place}")

    def check_data(self, data: Any, where: str) -> None:
        """Check data that were not given as arguments.

        Raises:
            InvalidJobError: they are not arguments of the function.
        """
        self._shape.check({} if data is None else data, where)

    @property
    def options(self) -> Mapping[str, Any]:
        """Its options, as they were declared."""
        return self._options

    def read_result(self, result: Any) -> Any:
        """A stored result in the type that the function returns."""
        return self._shape.read_result(result)

    def sync(self) -> SyncJob[P, R]:
        """The blocking form of the job, for code without an event loop. See ``Blocking``.

        Example:
            >>> handle = welcome.sync().add(to="ada@example.com")
            >>> assert handle.result(timeout=5) == "sent"
        """
        return SyncJob(self)

    def on(self, queue: JobQueue) -> DeclaredJob[P, R]:
        """The same job of the same queue, open in another event loop."""
        changed = copy(self)
        changed._queue = queue
        return changed

    @property
    def queue(self) -> JobQueue:
        """The queue to which it is added."""
        return self._queue

    def using(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        """The job as a step of a ``chain`` or a ``group``. ``RESULT`` stands for the result of the
        previous step.

        Example:
            >>> await chain(fetch.using(url=url), store.using(page=RESULT)).add()
        """
        data = self._shape.data(args, kwargs)
        return Step(self._queue, self._name, data, self._options, self._shape.read_result)

    @property
    def as_function(self) -> JobFunction:
        """The function as the worker calls it."""
        return JobFunction(
            self._function,
            self._shape.decode,
            self._run if is_async(self._function) else self._run_sync,
            is_async(self._function),
            self._timeout,
            self._shape.takes,
            self._shape.returns,
            self._idempotent,
        )

    async def _run(self, job: ActiveJob[Any]) -> Any:
        _current.set(job)
        return await self._call(job)

    def _run_sync(self, job: ActiveJob[Any]) -> Any:
        _current.set(job)
        return self._call(job)

    def _call(self, job: ActiveJob[Any]) -> Any:
        function, shape = cast("Callable[..., Any]", self._function), self._shape
        if not shape.fills:
            return function(**job.data)
        return function(**job.data, **shape.filled(job))


class DeclaredSchedule(Generic[P]):
    """A recurring job without its arguments: ``add`` takes those of the function."""

    def __init__(self, job: DeclaredJob[P, Any], key: str, recurrence: Recurrence) -> None:
        self._job = job
        self._key = key
        self._recurrence = recurrence

    async def add(self, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Store the schedule. It replaces a schedule with the same key.

        Raises:
            InvalidJobError: an argument has the wrong type, or the schedule is invalid.
            JobsUnsupportedError: the provider has no recurring jobs.

        Example:
            >>> await welcome.schedule("daily", cron="@daily").add(to="ada@example.com")
        """
        return await self._job.add_schedule(self._key, self._recurrence, args, kwargs)


class Anything:
    """The type of a first parameter without an annotation, which cannot be checked."""


class DeclareJob:
    """``@queue.job(...)``: keeps the types of the function."""

    def __init__(
        self,
        queue: JobQueue,
        declare: Callable[[DeclaredJob[..., Any], str], None],
        name: str | None,
        timeout: Seconds | None,
        idempotent: Idempotency | None,
        recurrence: Recurrence | None,
        options: Mapping[str, Any],
    ) -> None:
        self._queue = queue
        self._declare = declare
        self._name = name
        self._timeout = optional_seconds(timeout, f"[Queue:{queue.name}] job: timeout")
        self._idempotent: Idempotency | None = idempotent
        if idempotent is not None:
            one_of(idempotent, f"[Queue:{queue.name}] job: idempotent", get_args(Idempotency))
        self._options = options
        check_defaults(options, f"[Queue:{queue.name}] job")
        self._recurrence = recurrence

    @overload
    def __call__(
        self, function: Callable[Concatenate[Anything, ...], Awaitable[R]], /
    ) -> DeclaredJob[..., R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Anything, ...], R], /
    ) -> DeclaredJob[..., R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[ActiveJob[Any], P], Awaitable[R]], /
    ) -> DeclaredJob[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[ActiveJob[Any], P], R], /
    ) -> DeclaredJob[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Awaitable[R]], /
    ) -> DeclaredJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> DeclaredJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> DeclaredJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> DeclaredJob[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Declare ``function``."""
        name = self._name or re.sub(r"_+", "-", getattr(function, "__name__", "job").strip("_"))
        job: DeclaredJob[..., Any] = DeclaredJob(
            self._queue,
            function,
            name,
            self._options,
            self._timeout,
            self._idempotent,
            self._recurrence,
        )
        if self._recurrence is not None:
            job.check_recurring(place_of(function))
        self._declare(job, place_of(function))
        return job


def _fill(hint: Any) -> Callable[[ActiveJob[Any]], Any] | None:
    """The function that fills a parameter that does not take data: the job or its context, also
    optional."""
    kinds = [one for one in get_args(hint) if one is not type(None)]
    if len(kinds) == 1 and len(get_args(hint)) == 2 and get_origin(hint) in (Union, UnionType):
        (hint,) = kinds
    found = get_origin(hint) or hint
    if not isinstance(found, type):
        return None
    known = {**_INJECTED, Context: _context}
    return next((fill for kind, fill in known.items() if issubclass(found, kind)), None)


class _Shape:
    """The parameters of a function as a record type, and its result type."""

    def __init__(self, function: Callable[..., Any], where: str) -> None:
        check_callable(function, where)
        self._signature = inspect.signature(function)
        self._where = where
        try:
            hints = get_type_hints(function)
        except Exception as error:
            raise ConfigurationError(
                f"{where}: its annotations cannot be resolved: {error}{place_of(function)}"
            ) from error
        fields: list[tuple[str, Any, Any]] = []
        self.fills: dict[str, Callable[[ActiveJob[Any]], Any]] = {}
        self.needed: list[str] = []
        """The parameters that have no default."""
        for parameter in self._signature.parameters.values():
            fill = _fill(hints.get(parameter.name))
            if fill is not None and parameter.kind is not parameter.POSITIONAL_ONLY:
                self.fills[parameter.name] = fill
                continue
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ConfigurationError(
                    f"{where}: parameter {parameter.name!r} cannot be stored by its name"
                    f"{place_of(function)}"
                )
            default = msgspec.NODEFAULT if parameter.default is parameter.empty else msgspec.UNSET
            if default is msgspec.NODEFAULT:
                self.needed.append(parameter.name)
            kind = hints.get(parameter.name, Any)
            if default is msgspec.UNSET:
                kind = kind | msgspec.UnsetType if kind is not Any else Any
            fields.append((parameter.name, kind, default))
        own = [p for name, p in self._signature.parameters.items() if name not in self.fills]
        self._signature = self._signature.replace(parameters=own)
        parts = getattr(function, "__name__", "job").split("_")
        named = "".join(part.capitalize() for part in parts if part.isidentifier())
        struct = msgspec.defstruct(
            f"{named}Parameters", fields, kw_only=True, forbid_unknown_fields=True
        )
        self.takes = struct
        self._read = decoder_for(struct, where)
        self._names = [name for name, _, _ in fields]
        returned = self.returns = hints.get("return", Any)
        self.has_result = returned is not type(None)
        self._result = (
            None if returned is Any or not self.has_result else decoder_for(returned, where)
        )

    def data(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as the data of a job, checked."""
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise InvalidJobError(f"{self._where}: {error}") from None

    def filled(self, job: ActiveJob[Any]) -> dict[str, Any]:
        """The values of the parameters that do not take data."""
        return {name: fill(job) for name, fill in self.fills.items()}

    def check(self, data: Any, where: str | None = None) -> None:
        """Check the types of arguments when a job is added, not hours later in the worker."""
        where = where or self._where
        encoded = encode_json(data, f"{where}: an argument")
        try:
            self._read(encoded)
        except Exception as error:
            raise InvalidJobError(f"{where}: {error}") from error

    def decode(self, data: bytes) -> dict[str, Any]:
        """The data of a job as the arguments of a call. No data: no arguments."""
        read = self._read(b"{}" if data == b"null" else data)
        found = {name: getattr(read, name) for name in self._names}
        return {name: value for name, value in found.items() if value is not msgspec.UNSET}

    def read_result(self, result: Any) -> Any:
        """A result in the annotated return type."""
        if self._result is None:
            return result
        return self._result(msgspec.json.encode(result))


# -- without an event loop ------------------------------------------------------------------------


class SyncJob(Generic[P, R]):
    """``job.sync()``: a declared job for code without an event loop, over ``queue.sync()``.

    Example:
        >>> handle = welcome.sync().add(to="ada@example.com")
    """

    def __init__(self, job: DeclaredJob[P, R]) -> None:
        self._job = job

    def add(self, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]:
        """``DeclaredJob.add``, which blocks.

        Example:
            >>> welcome.sync().add(to="ada@example.com").result(timeout=5)
            'sent'
        """
        queue = self._job.queue
        form = queue.sync()
        form.refuse_in_loop("add", "job")
        return SyncJobHandle(queue, form.wait(lambda here: self._job.on(here).add(*args, **kwargs)))
