"""Handlers of plain messages: what a function takes, read from its signature once.

A parameter is filled by its type: the context, or whatever else may be injected. The one that is
left takes the data of the message, in the type that its annotation names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from matador.codec.data import data_decoder
from matador.errors import ConfigurationError
from matador.model.subscriber import place_of

Fill = Callable[[Any], Any]
"""Makes an argument from what has arrived."""


_DATA_ALONE: tuple[tuple[str | None, Fill | None], ...] = ((None, None),)


@dataclass(frozen=True, slots=True)
class MessageFunction:
    """A handler, and how it is called.

    Attributes:
        name: of the function, for logs.
        function: what the user wrote.
        is_async: it is awaited; others run in threads.
        takes: the type of its data; ``Any`` if it says nothing, None if it takes no data.
        decode: reads the body of a message; None: it takes no data.
        returns: the type that its annotation says it returns; ``Any`` if it says nothing.
        is_plain: it is an ``async def`` itself, so that calling it gives a coroutine.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    takes: Any
    decode: Callable[[bytes], Any] | None
    returns: Any
    is_plain: bool
    fills: tuple[tuple[str | None, Fill | None], ...]
    """For each parameter: its name if it is given by keyword, and what fills it; None: data."""

    @property
    def takes_data_alone(self) -> bool:
        """Is the data all that it takes?"""
        return self.fills == _DATA_ALONE

    def bind(self, arrived: Any, data: Any) -> Callable[[], Any]:
        """The call of the function for one message."""
        if self.fills == _DATA_ALONE:
            return functools.partial(self.function, data)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for name, fill in self.fills:
            value = data if fill is None else fill(arrived)
            if name is None:
                positional.append(value)
            else:
                named[name] = value
        return functools.partial(self.function, *positional, **named)


def read_function(
    function: Callable[..., Any],
    where: str,
    *,
    context: type[Any],
    inject: Mapping[type[Any], Fill],
    carrier: type[Any] | None = None,
) -> MessageFunction:
    """Read the signature of a handler.

    Args:
        function: the handler.
        where: for errors: what it handles.
        context: the type of the context. A second parameter without a type takes it, too.
        inject: what a parameter may take, by its type.
        carrier: one of these types that has the data in it, and says of which type they are:
            ``Envelope[OrderCreated]``.

    Raises:
        ConfigurationError: it cannot be called, or has a parameter that nothing fills.
    """
    if not callable(function):
        raise ConfigurationError(f"{where}: a handler must be a function, got {function!r}")
    bare = _unwrapped(function)
    if inspect.isgeneratorfunction(bare) or inspect.isasyncgenfunction(bare):
        raise ConfigurationError(
            f"{where}: the handler has a `yield`, so calling it would run nothing{place_of(bare)}"
        )
    fills, kind = _fills(function, where, context, inject, carrier)
    decode = None if kind is None else data_decoder(kind[0], where, ConfigurationError)
    return MessageFunction(
        getattr(bare, "__qualname__", type(bare).__name__),
        function,
        inspect.iscoroutinefunction(bare)
        or inspect.iscoroutinefunction(getattr(bare, "__call__", None)),  # noqa: B004 - async __call__
        None if kind is None else kind[0],
        decode,
        _hints(bare).get("return", Any),
        inspect.iscoroutinefunction(function),
        tuple(fills),
    )


def _fills(
    function: Callable[..., Any],
    where: str,
    context: type[Any],
    inject: Mapping[type[Any], Fill],
    carrier: type[Any] | None,
) -> tuple[list[tuple[str | None, Fill | None]], tuple[Any] | None]:
    known = {**inject}
    hints = _hints(_unwrapped(function))
    fills: list[tuple[str | None, Fill | None]] = []
    data: tuple[Any] | None = None
    for parameter in _parameters(function):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        by_name = parameter.name if parameter.kind is parameter.KEYWORD_ONLY else None
        hint = hints.get(parameter.name, Any)
        if isinstance(hint, _Unknown):
            hint = context if hint.text.endswith(context.__name__) else hint
        fill = _injected(hint, known)
        if fill is None and data is not None and hint is Any:
            fill = _injected(context, known)
        if fill is not None:
            fills.append((by_name, fill))
            if carrier is not None and (get_origin(hint) or hint) is carrier and data is None:
                data = get_args(hint)[:1] or (Any,)
        elif data is None and (parameter.default is parameter.empty or hint is not Any):
            if isinstance(hint, _Unknown):
                raise ConfigurationError(
                    f"{where}: the type {hint.text!r} of the parameter {parameter.name!r} cannot "
                    f"be found: {hint.problem}. Define or import it at the top of the module"
                    f"{place_of(_unwrapped(function))}"
                )
            data = (hint,)
            fills.append((by_name, None))
        elif parameter.default is parameter.empty:
            takes = ", ".join(one.__name__ for one in known)
            raise ConfigurationError(
                f"{where}: nothing fills the parameter {parameter.name!r}; a handler takes the "
                f"data of the message and parameters of the types {takes}"
                f"{place_of(_unwrapped(function))}"
            )
        else:  # it has a default, and so do those after it, unless they are given by name
            if parameter.kind is not parameter.KEYWORD_ONLY:
                break
    return fills, data


def _injected(hint: Any, known: Mapping[type[Any], Fill]) -> Fill | None:
    """What fills a parameter of that type: a class, its subclass, or ``Class[...]``."""
    found = get_origin(hint) or hint
    if not isinstance(found, type):
        return None
    for kind, fill in known.items():
        if found is kind or (not is_protocol(kind) and issubclass(found, kind)):
            return fill
    return None


def is_protocol(kind: type[Any]) -> bool:
    """Is it a protocol? Whether something implements one cannot be asked of its class."""
    return getattr(kind, "_is_protocol", False)


def _parameters(function: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return [inspect.Parameter("data", inspect.Parameter.POSITIONAL_ONLY)]


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A type that cannot be looked up at run time."""

    text: str
    problem: str


def _hints(function: Any) -> dict[str, Any]:
    """The types that a function names; each for itself, as one of them may not be there."""
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return get_type_hints(function)
    except Exception:  # noqa: BLE001 - names that are not there at run time, whatever they raise
        given: dict[str, Any] = getattr(function, "__annotations__", {})
        return {name: _hint(function, name, hint) for name, hint in given.items()}


def _hint(function: Any, name: str, hint: Any) -> Any:
    if not isinstance(hint, str):
        return hint
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return get_type_hints(type("", (), {"__annotations__": {name: hint}}), names)[name]
    except Exception as error:  # noqa: BLE001 - see above
        return _Unknown(hint, f"{type(error).__name__}: {error}")
