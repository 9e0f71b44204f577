"""Reads the signatures of handlers: which parameter takes which value. The same in every way in.

The type of a parameter decides its value: a context, the envelope, or another type that the way in
offers. The remaining parameter takes the payload, in the type of its annotation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from matador.errors import ConfigurationError

_CONTEXT_NAMES = ("ctx", "context")
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class HandlerContext:
    """The base of every context. A parameter of this type takes the context of its way in."""

    __slots__ = ()

    used_by: ClassVar[str] = ""
    """The way in whose handlers receive it; empty: any."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """The value that a parameter takes.

    Attributes:
        keyword: its name, if it is given by name.
        kind: ``HandlerContext``, or another type that the way in fills; None: the payload.
    """

    keyword: str | None
    kind: type[Any] | None


@dataclass(frozen=True, slots=True)
class Signature:
    """How a handler is called.

    Attributes:
        name: of the function, for logs.
        is_async: it is awaited; others run in threads.
        is_coroutine_function: it is an ``async def`` itself, so calling it only creates the
            coroutine.
        parameters: what fills each of its parameters, in order.
        takes: the type of the payload; ``Any`` if it does not say, None if it takes none.
        returns: the annotated return type; ``Any`` if there is none.
    """

    name: str
    is_async: bool
    is_coroutine_function: bool
    parameters: tuple[Parameter, ...]
    takes: Any
    returns: Any

    @property
    def takes_context(self) -> bool:
        """Whether the handler takes a context."""
        return any(one.kind is HandlerContext for one in self.parameters)

    @property
    def only(self) -> Parameter | None:
        """Its only parameter, if there is one and it is not given by name."""
        (one, *more) = self.parameters or (None,)
        return None if more or one is None or one.keyword is not None else one

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of the payload: A and B for ``A | B``; empty if it has no annotation."""
        if self.takes is None or is_anything(self.takes):
            return ()
        return get_args(self.takes) if _is_union(self.takes) else (self.takes,)


def read_signature(
    function: Callable[..., Any],
    where: str,
    *,
    way: str,
    takes: str,
    known: Sequence[type[Any]] = (),
    carrier: type[Any] | None = None,
    first: type[Any] | None = None,
    rest: type[Any] = HandlerContext,
    resolved: bool = True,
) -> Signature:
    """Read the signature of a handler.

    Args:
        function: the handler.
        where: for errors: what it handles.
        way: the way in, whose contexts it may take.
        takes: for errors: what a handler takes here, with an example.
        known: other types that the way in fills.
        carrier: one of these types, which contains the payload and names its type:
            ``Envelope[OrderCreated]``.
        first: the type of a first parameter without an annotation; None: the payload.
        rest: the type of a further parameter without an annotation.
        resolved: the type of the payload must be known, because it is read in that type.

    Raises:
        ConfigurationError: it cannot be called, or a parameter has no value to take.
    """
    bare = check_callable(function, where)
    reading = _Reading(
        bare, where, way, takes, (HandlerContext, *known), carrier, first, rest, resolved
    )
    reading.read(_parameters(function), _bound_names(function))
    code = getattr(function, "__code__", None) if inspect.isfunction(function) else None
    return Signature(
        getattr(bare, "__qualname__", type(bare).__name__),
        is_async(bare),
        code is not None and bool(code.co_flags & inspect.CO_COROUTINE),
        tuple(reading.found),
        reading.payload,
        reading.hints.get("return", Any),
    )


class _Reading:
    """The state of reading one signature."""

    def __init__(
        self,
        bare: Any,
        where: str,
        way: str,
        takes: str,
        known: Sequence[type[Any]],
        carrier: type[Any] | None,
        first: type[Any] | None,
        rest: type[Any],
        resolved: bool,
    ) -> None:
        self.hints = _hints(bare)
        self.found: list[Parameter] = []
        self.payload: Any = None
        self._place = place_of(bare)
        self._where, self._way, self._takes = where, way, takes
        self._known, self._carrier, self._first = known, carrier, first
        self._rest, self._resolved = rest, resolved
        self._skipped = False

    def read(self, parameters: Sequence[inspect.Parameter], bound: set[str]) -> None:
        for one in parameters:
            if one.kind is one.VAR_POSITIONAL and not self._skipped:
                if not self._has_payload:
                    self._add(None, self._first, Any)
                if not self._has(self._rest):
                    self._add(None, self._rest, Any)
            elif one.kind not in _VARIABLE and one.name not in bound:
                self._read_one(one)

    def _read_one(self, one: inspect.Parameter) -> None:
        hint = _without_none(self.hints.get(one.name, Any))
        by_name = self._skipped or one.kind is one.KEYWORD_ONLY
        keyword = one.name if by_name else None
        optional = one.default is not one.empty
        kind = self._kind_of(hint)
        if kind is not None:
            self._check_context(one.name, hint)
            self._add(keyword, kind, hint)
        elif is_anything(hint):
            self._read_untyped(one.name, keyword, optional)
        elif not self._has(None) and not (optional and self._has_payload):
            if isinstance(hint, _Unknown) and self._resolved:
                raise ConfigurationError(
                    f"{self._where}: the type {hint.text!r} of the parameter {one.name!r} cannot "
                    f"be found: {hint.problem}. Define or import it at the top of the module"
                    f"{self._place}"
                )
            self._add(keyword, None, hint)
        else:
            self._leave_out(one.name, optional)

    def _read_untyped(self, name: str, keyword: str | None, optional: bool) -> None:
        wants_context = name in _CONTEXT_NAMES or (self._has_payload and not optional)
        if wants_context and not self._has(self._rest):
            self._add(keyword, self._rest, Any)
        elif not self._has_payload:
            self._add(keyword, self._first, Any)
        else:
            self._leave_out(name, optional)

    def _leave_out(self, name: str, optional: bool) -> None:
        if not optional:
            raise ConfigurationError(
                f"{self._where}: nothing fills the parameter {name!r}; {self._takes}{self._place}"
            )
        self._skipped = True  # what follows is given by name

    def _add(self, keyword: str | None, kind: type[Any] | None, hint: Any) -> None:
        self.found.append(Parameter(keyword, kind))
        if kind is None:
            self.payload = Any if isinstance(hint, _Unknown) else hint
        elif kind is self._carrier and self.payload is None:
            (self.payload,) = get_args(hint)[:1] or (Any,)

    def _has(self, kind: type[Any] | None) -> bool:
        return any(one.kind is kind for one in self.found)

    @property
    def _has_payload(self) -> bool:
        return self._has(None) or (self._carrier is not None and self._has(self._carrier))

    def _kind_of(self, hint: Any) -> type[Any] | None:
        """The known type that an annotation names: the class, a subclass, or ``Class[...]``."""
        if isinstance(hint, _Unknown):
            name = hint.text.partition("[")[0].rpartition(".")[2]
            if name.endswith("Context"):
                return HandlerContext
            return next((one for one in self._known if one.__name__ == name), None)
        found = get_origin(hint) or hint
        if not isinstance(found, type):
            return None
        for kind in self._known:
            is_protocol = getattr(kind, "_is_protocol", False)  # its subclasses cannot be asked
            if found is kind or (not is_protocol and issubclass(found, kind)):
                return kind
        return None

    def _check_context(self, name: str, hint: Any) -> None:
        found = get_origin(hint) or hint
        if isinstance(found, type) and issubclass(found, HandlerContext):
            way = found.used_by
            if way not in ("", self._way):
                raise ConfigurationError(
                    f"{self._where}: the parameter {name!r} takes {found.__name__}, which is the "
                    f"context of {way}; {self._takes}{self._place}"
                )


def check_callable(function: Any, where: str) -> Any:
    """The handler itself, without ``functools.partial``.

    Raises:
        ConfigurationError: it cannot be called, or is a generator function.
    """
    if not callable(function):
        raise ConfigurationError(f"{where}: a handler must be a function, got {function!r}")
    bare = unwrapped(function)
    if inspect.isgeneratorfunction(bare) or inspect.isasyncgenfunction(bare):
        raise ConfigurationError(
            f"{where}: the handler has a `yield`, so calling it would run nothing{place_of(bare)}"
        )
    return bare


def is_async(function: Callable[..., Any]) -> bool:
    """Whether its return value must be awaited."""
    bare = unwrapped(function)
    return inspect.iscoroutinefunction(bare) or inspect.iscoroutinefunction(
        getattr(bare, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def is_anything(hint: Any) -> bool:
    """Whether an annotation allows any type."""
    return hint is Any or hint is object


def unwrapped(function: Any) -> Any:
    """A function without ``functools.partial``."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def place_of(defined: Any) -> str:
    """Where a function or class is defined, as `` (file.py:12)``; empty if unknown."""
    function = defined if isinstance(defined, type) else unwrapped(defined)
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is not None:
        return f" ({code.co_filename}:{code.co_firstlineno})"
    try:
        target = function if isinstance(function, type) else type(function)
        _, line = inspect.getsourcelines(target)
        return f" ({inspect.getsourcefile(target)}:{line})"
    except (OSError, TypeError):
        return ""


def _bound_names(function: Any) -> set[str]:
    """The parameters that ``functools.partial`` has filled by name."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names.update(function.keywords)
        function = function.func
    return names


def _parameters(function: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return [inspect.Parameter("data", inspect.Parameter.POSITIONAL_ONLY)]


# -- types ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A type that cannot be looked up at run time."""

    text: str
    problem: str


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _without_none(hint: Any) -> Any:
    """``Context`` for ``Context | None``."""
    if not _is_union(hint):
        return hint
    kinds = [one for one in get_args(hint) if one is not type(None)]
    is_filled = len(kinds) == 1 and isinstance(get_origin(kinds[0]) or kinds[0], type)
    if is_filled and issubclass(get_origin(kinds[0]) or kinds[0], HandlerContext):
        return kinds[0]
    return hint


def _hints(function: Any) -> dict[str, Any]:
    """The annotations of a function, evaluated separately because one of them may be undefined."""
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return get_type_hints(function)
    except Exception:  # noqa: BLE001 - names that are not there at run time, whatever they raise
        return dict(_one_by_one(function))


def _one_by_one(function: Any) -> Iterator[tuple[str, Any]]:
    names = getattr(inspect.unwrap(function), "__globals__", {})
    given: dict[str, Any] = getattr(function, "__annotations__", {})
    for name, hint in given.items():
        if not isinstance(hint, str):
            yield name, hint
            continue
        try:
            yield name, get_type_hints(type("", (), {"__annotations__": {name: hint}}), names)[name]
        except Exception as error:  # noqa: BLE001 - see above
            yield name, _Unknown(hint, f"{type(error).__name__}: {error}")
