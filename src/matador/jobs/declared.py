"""Declared jobs: a function whose parameters are the job's data, and what it returns its result."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, get_type_hints, overload

import msgspec

from matador.errors import (
    ConfigurationError,
    InvalidJobError,
)
from matador.jobs.data import decoder_for, encode_json
from matador.jobs.flows import Step
from matador.jobs.functions import JobFunction, check_callable, is_async
from matador.jobs.handle import JobHandle, JobQueue
from matador.jobs.job import ActiveJob
from matador.jobs.options import JobOptions, check_options
from matador.model.job import Keep
from matador.model.options import Seconds, optional_seconds
from matador.model.subscriber import place_of

P = ParamSpec("P")
R = TypeVar("R")

KEEP_RESULTS = Keep(age=3600, count=10_000)
"""How long a declared job with a result is kept once it has completed, unless told otherwise."""

_current: ContextVar[ActiveJob[Any]] = ContextVar("matador_current_job")


def current_job() -> ActiveJob[Any]:
    """The job that is being run here, for functions declared with ``@queue.job``.

    Raises:
        LookupError: no job is being run here.
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
        self._shape.check(data)
        job = await self._queue.add(self._name, data, **self._with_result())
        return JobHandle(self._queue, job, self._shape.read_result)

    def using(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        """The job as a step of a ``chain`` or a ``group``. ``RESULT`` stands for the result of
        the step before."""
        data = self._shape.data(args, kwargs)
        return Step(self._queue, self._name, data, self._with_result(), self._shape.read_result)

    def _with_result(self) -> Mapping[str, Any]:
        """The options, which keep a result for a while if there is one."""
        asked = "remove_on_complete" in {**self._queue.default_options, **self._options}
        if self._shape.has_result and not asked and self._queue.capabilities.keep:
            return {**self._options, "remove_on_complete": KEEP_RESULTS}
        return self._options

    @property
    def as_function(self) -> JobFunction:
        """For the worker."""
        return JobFunction(
            self._function,
            self._shape.decode,
            self._run if is_async(self._function) else self._run_sync,
            is_async(self._function),
            self._timeout,
            self._shape.takes,
            self._shape.returns,
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
            raise InvalidJobError(f"{self._where} {error}") from None

    def check(self, data: Mapping[str, Any]) -> None:
        """The sender learns of an argument of the wrong type, not the worker hours later."""
        encoded = encode_json(data, f"{self._where} an argument")
        try:
            self._read(encoded)
        except Exception as error:
            raise InvalidJobError(f"{self._where} {error}") from error

    def decode(self, data: bytes) -> dict[str, Any]:
        """The data of a job as the arguments of a call. No data: no arguments."""
        read = self._read(b"{}" if data == b"null" else data)
        found = {name: getattr(read, name) for name in self._names}
        return {name: value for name, value in found.items() if value is not msgspec.UNSET}

    def read_result(self, result: Any) -> Any:
        """A result in the type that the function names."""
        if self._result is None:
            return result
        return self._result(msgspec.json.encode(result))
