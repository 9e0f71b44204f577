"""Runs handlers in processes of their own: for work that keeps a processor busy.

A process runs one job at a time and is used again. One that dies is a failed attempt of its job,
and is replaced. A job that takes too long, or whose worker stops, is ended with its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TypeAlias, cast

import msgspec

from matador.errors import ConfigurationError, JobError
from matador.jobs.data import encode_json
from matador.jobs.functions import JobFunction
from matador.jobs.job import ActiveJob, JobControl
from matador.model.subscriber import place_of

Answer: TypeAlias = tuple[str, Any]
"""``progress`` with its JSON, ``result``, or ``error``."""

_PATIENCE = 2.0  # seconds for an idle process to end by itself


class JobProcessError(JobError):
    """A handler failed in its process in a way that its exception could not be brought over, or
    the process died."""

    description = "Look at the message, and at what the process has logged."
    code = "PROCESS"
    retryable = True


class Processes:
    """The processes of one worker. Started when they are needed, at most one a running job."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()

    async def run(self, function: JobFunction, job: ActiveJob[Any]) -> Any:
        """Run a function for a job; what it returns, or raises.

        Raises:
            JobProcessError: the process died.
        """
        child = self._take_idle() or self._start()
        try:
            result = await child.run(reference(function), job)
        except _Raised as raised:
            self._idle.append(child)
            raise raised.error from None
        except BaseException:  # it died, or nobody waits for it any more
            self._end(child)
            raise
        self._idle.append(child)
        return result

    def _take_idle(self) -> _Child | None:
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            self._end(child)  # it died while it had nothing to do: no job's fault
        return None

    def _start(self) -> _Child:
        child = _Child(self._context)
        self._all.add(child)
        return child

    def _end(self, child: _Child) -> None:
        self._all.discard(child)
        child.kill()

    async def close(self) -> None:
        """End all processes."""
        children, self._all, self._idle = self._all, set(), []
        for child in children:
            child.close()
        await asyncio.gather(*(asyncio.to_thread(child.join) for child in children))


def reference(function: JobFunction) -> str:
    """Where another process finds a function: ``module:name``.

    Raises:
        ConfigurationError: it is not a function of a module that can be found by its name.
    """
    inner = inspect.unwrap(function.function)
    module, name = getattr(inner, "__module__", None), getattr(inner, "__qualname__", "")
    if not module or not name or "<" in name:
        raise ConfigurationError(
            f"executor='process' needs a function of a module, but {inner!r} is defined inside "
            f"another one{place_of(function.function)}"
        )
    return f"{module}:{name}"


class _Raised(Exception):
    """What a handler raised in its process."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Child:
    """One process, seen from the worker."""

    def __init__(self, context: SpawnContext) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._connection: Connection[Any, Any] = ours
        self._process: SpawnProcess = context.Process(
            target=_serve, args=(theirs,), name="matador-job", daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.is_alive()

    async def run(self, where: str, job: ActiveJob[Any]) -> Any:
        control = job.control
        bare = msgspec.structs.replace(job, control=None, provider_metadata={})
        self._connection.send_bytes(pickle.dumps((where, msgspec.structs.asdict(bare))))
        while True:
            kind, value = await self._answer()
            if kind == "result":
                return value
            if kind == "error":
                raise _Raised(value)
            if control is not None:
                await control.report(*value)

    async def _answer(self) -> Answer:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not ready.done():
                ready.set_result(None)

        descriptor = self._connection.fileno()
        loop.add_reader(descriptor, tell)
        try:
            await ready
        finally:
            loop.remove_reader(descriptor)
        try:
            return cast("Answer", pickle.loads(self._connection.recv_bytes()))
        except (EOFError, OSError):
            raise JobProcessError(f"the process of the job {self._how_it_ended()}") from None
        except Exception as error:
            raise JobProcessError(f"the process answered what cannot be read: {error}") from error

    def _how_it_ended(self) -> str:
        self._process.join(_PATIENCE)
        code = self._process.exitcode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def kill(self) -> None:
        """End it at once. Somebody has to wait for its end, or it stays as a zombie."""
        self._process.kill()
        self._connection.close()
        threading.Thread(target=self._process.join, daemon=True).start()

    def close(self) -> None:
        """Tell it to end."""
        self._connection.close()

    def join(self) -> None:
        """Wait for its end, not for long. Blocks."""
        self._process.join(_PATIENCE)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


# -- in the other process --------------------------------------------------------------------------


def _serve(connection: Connection[Any, Any]) -> None:
    """Run jobs until the worker closes the connection, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            where, fields = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            answer = ("result", _call(connection, where, fields))
            encoded = pickle.dumps(answer)
        except BaseException as error:  # noqa: BLE001 - it is the worker that decides
            encoded = _pickled(error)
        connection.send_bytes(encoded)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(connection: Connection[Any, Any], where: str, fields: dict[str, Any]) -> Any:
    function = _find(where)
    lock = threading.Lock()

    async def report(encoded: bytes, progress: Any) -> None:
        with lock:
            connection.send_bytes(pickle.dumps(("progress", (encoded, progress))))

    async def run() -> Any:
        job: ActiveJob[Any] = ActiveJob(**fields)
        job = msgspec.structs.replace(job, control=JobControl(report, asyncio.get_running_loop()))
        if function.is_async:
            return await function.call(job)
        return await asyncio.to_thread(function.call, job)

    result = asyncio.run(run())
    if result is not None:
        encode_json(result, "what the handler returned")  # here, where the error is understood
    return result


_found: dict[str, JobFunction] = {}


def _find(where: str) -> JobFunction:
    found = _found.get(where)
    if found is None:
        module, _, name = where.partition(":")
        target: Any = import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
        found = _found[where] = _as_function(target)
    return found


def _as_function(target: Any) -> JobFunction:
    declared = getattr(target, "as_function", None)
    if isinstance(declared, JobFunction):
        return declared
    call = cast("Callable[..., Any]", target)
    return JobFunction(call, bytes, call, inspect.iscoroutinefunction(call))


def _pickled(error: BaseException) -> bytes:
    """An exception that the worker can raise again; its text, if it cannot be brought over."""
    if isinstance(error, Exception):
        with contextlib.suppress(Exception):  # exceptions need not be picklable
            encoded = pickle.dumps(("error", error))
            pickle.loads(encoded)
            return encoded
    return pickle.dumps(("error", JobProcessError(f"{type(error).__name__}: {error}")))
