"""What runs a job: a function of the job, or one whose parameters are the job's data."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from matador.errors import ConfigurationError
from matador.jobs.data import decoder_for
from matador.jobs.job import ActiveJob, plain
from matador.model.subscriber import place_of


@dataclass(frozen=True, slots=True)
class JobFunction:
    """A function, and how it is called.

    Attributes:
        function: what the user wrote.
        decode: reads a job's data for it.
        call: calls it with the active job, whose data were decoded.
        is_async: it is awaited; others run in threads.
        timeout: seconds that an attempt may take; None: as the worker says.
        takes: the type of the data; ``Any`` if the function says nothing.
        returns: the type of the result; ``Any`` if the function says nothing.
    """

    function: Callable[..., Any]
    decode: Callable[[bytes], Any]
    call: Callable[[ActiveJob[Any]], Any]
    is_async: bool
    timeout: float | None = None
    takes: Any = Any
    returns: Any = Any


def handler_function(function: Callable[..., Any], where: str) -> JobFunction:
    """A function that takes the job: ``async def handle(job: ActiveJob[Welcome]) -> str``.

    The type in ``ActiveJob[...]`` decides how the data are read; without it they are plain data.

    Raises:
        ConfigurationError: it cannot be called with a job alone.
    """
    check_callable(function, where)
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise ConfigurationError(
            f"{where} a handler takes the job and nothing else: {error}{place_of(function)}"
        ) from None
    except ValueError:
        pass  # a builtin without a signature: it will be seen when it is called
    kind, returned = _types(function)
    decode = plain if kind is Any else decoder_for(kind, where)
    return JobFunction(function, decode, function, is_async(function), takes=kind, returns=returned)


def check_callable(function: Any, where: str) -> None:
    """Raise ``ConfigurationError`` unless this can be called, and does something when it is."""
    if not callable(function):
        raise ConfigurationError(f"{where} a handler must be a function, got {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{where} the handler has a `yield`, so calling it would run nothing"
            f"{place_of(function)}"
        )


def is_async(function: Callable[..., Any]) -> bool:
    """Is what it returns to be awaited?"""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def _types(function: Callable[..., Any]) -> tuple[Any, Any]:
    """The type in ``ActiveJob[...]``, and that of the result.

    ``Any`` if the function says nothing that can be looked up now.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        hints = get_type_hints(function)
        first = next(name for name in inspect.signature(function).parameters if name != "self")
    except Exception:  # noqa: BLE001 - names that are not there at run time, whatever they raise
        return Any, Any
    hint, returned = hints.get(first, Any), hints.get("return", Any)
    if get_origin(hint) is not ActiveJob:
        return Any, returned
    (kind,) = get_args(hint)
    return kind, returned
