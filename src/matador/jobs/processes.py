"""Runs handlers in child processes, for CPU-bound work.

A process runs one job at a time and is reused. If it dies, the attempt of its job fails and the
process is replaced. If a job times out or its worker stops, its process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pickle
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias, cast

import msgspec

from matador.errors import ConfigurationError, JobError
from matador.jobs.functions import JobFunction, handler_function
from matador.jobs.job import ActiveJob, JobControl, encode_json
from matador.model.signature import place_of
from matador.runtime.children import Child, ChildDiedError, Parent

Answer: TypeAlias = tuple[str, Any]
"""``progress`` with its JSON, ``result``, or ``error``."""


class JobProcessError(JobError):
    """A handler failed in its process with an exception that could not be transferred, or the
    process died."""

    description = "Look at the message, and at what the process has logged."
    code = "PROCESS"
    retryable = True
    interrupted: bool = False
    """The process died, so the handler may have done half of its work."""


class Processes:
    """The processes of one worker. Started on demand, at most one per running job."""

    def __init__(self) -> None:
        self._idle: list[Child] = []
        self._all: set[Child] = set()

    async def run(self, function: JobFunction, job: ActiveJob[Any]) -> Any:
        """Run a function for a job; return its result or raise its error.

        Raises:
            JobProcessError: the process died.
        """
        child = self._take_idle() or self._start()
        try:
            result = await _run(child, reference(function), job)
        except _Raised as raised:
            self._idle.append(child)
            raise raised.error from None
        except BaseException:  # it died, or its caller no longer waits
            self._end(child)
            raise
        self._idle.append(child)
        return result

    def _take_idle(self) -> Child | None:
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            self._end(child)  # it died while idle, which is not the fault of a job
        return None

    def _start(self) -> Child:
        child = Child("matador-job", _serve)
        self._all.add(child)
        return child

    def _end(self, child: Child) -> None:
        self._all.discard(child)
        child.kill()

    async def close(self) -> None:
        """End all processes."""
        children, self._all, self._idle = self._all, set(), []
        for child in children:
            child.close()
        await asyncio.gather(*(asyncio.to_thread(child.join) for child in children))


def reference(function: JobFunction) -> str:
    """The import path of a function for another process: ``module:name``.

    Raises:
        ConfigurationError: it is not a module-level function.
    """
    inner = inspect.unwrap(function.function)
    module, name = getattr(inner, "__module__", None), getattr(inner, "__qualname__", "")
    of_object = inspect.ismethod(inner) and not isinstance(inner.__self__, type)
    if not module or not name or "<" in name or of_object:
        raise ConfigurationError(
            f"executor='process' needs a function of a module, but {inner!r} is defined inside "
            f"another one, or belongs to an object{place_of(function.function)}"
        )
    return f"{module}:{name}"


class _Raised(Exception):
    """An exception of a handler, transferred from its process."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _run(child: Child, where: str, job: ActiveJob[Any]) -> Any:
    control = job.control
    bare = msgspec.structs.replace(job, control=None, provider_metadata={})
    try:
        await child.send(pickle.dumps((where, msgspec.structs.asdict(bare))))
        while True:
            kind, value = _answer(await child.receive())
            if kind == "result":
                return value
            if kind == "error":
                raise _Raised(value)
            if control is not None:
                await control.report(*value)
    except ChildDiedError as error:
        died = JobProcessError(f"the process of the job {error}")
        died.interrupted = True
        raise died from None


def _answer(encoded: bytes) -> Answer:
    try:
        return cast("Answer", pickle.loads(encoded))
    except Exception as error:
        raise JobProcessError(f"the process sent an unreadable answer: {error}") from error


# -- in the other process --------------------------------------------------------------------------


def _serve(parent: Parent) -> None:
    """Run jobs until the worker closes the connection."""
    while True:
        where, fields = pickle.loads(parent.receive())
        try:
            answer = pickle.dumps(("result", _call(parent, where, fields)))
        except BaseException as error:  # noqa: BLE001 - the worker decides about errors
            answer = _pickled(error)
        parent.send(answer)


def _call(parent: Parent, where: str, fields: dict[str, Any]) -> Any:
    function = _find(where)

    async def report(encoded: bytes, progress: Any) -> None:
        parent.send(pickle.dumps(("progress", (encoded, progress))))

    async def run() -> Any:
        job: ActiveJob[Any] = ActiveJob(**fields)
        job = msgspec.structs.replace(job, control=JobControl(report, asyncio.get_running_loop()))
        if function.is_async:
            return await function.call(job)
        return await asyncio.to_thread(function.call, job)

    result = asyncio.run(run())
    if result is not None:
        encode_json(result, "what the handler returned")  # here, where the error can be reported
    return result


@cache
def _find(where: str) -> JobFunction:
    module, _, name = where.partition(":")
    target: Any = import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return _as_function(target)


def _as_function(target: Any) -> JobFunction:
    declared = getattr(target, "as_function", None)
    if isinstance(declared, JobFunction):
        return declared
    return handler_function(target, "the handler of a process")


def _pickled(error: BaseException) -> bytes:
    """An exception that the worker can raise again; its text, if it cannot be pickled."""
    if isinstance(error, Exception):
        with contextlib.suppress(Exception):  # exceptions need not be picklable
            encoded = pickle.dumps(("error", error))
            pickle.loads(encoded)
            return encoded
    return pickle.dumps(("error", JobProcessError(f"{type(error).__name__}: {error}")))
