"""Handlers of plain messages: how a function is called with a message.

``model.signature`` reads what a function takes, for every way in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from matador.codec.data import data_decoder
from matador.errors import ConfigurationError
from matador.model.envelope import Envelope
from matador.model.signature import (
    HandlerContext,
    check_callable,
    is_async,
    place_of,
    read_signature,
)

__all__ = ["Fill", "MessageFunction", "check_callable", "is_async", "read_function"]

Fill = Callable[[Any], Any]
"""Makes an argument from a message."""

_DATA_ALONE: tuple[tuple[str | None, Fill | None], ...] = ((None, None),)


@dataclass(frozen=True, slots=True)
class MessageFunction:
    """A handler, and how it is called.

    Attributes:
        name: of the function, for logs.
        function: what the user wrote.
        is_async: it is awaited; others run in threads.
        takes: the type of its data; ``Any`` if it has no annotation, None if it takes no data.
        decode: reads the body of a message; None: it takes no data.
        returns: the annotated return type; ``Any`` if there is none.
        batch: it takes a list of ``takes``: the data of several messages.
        enveloped: it takes a list of envelopes.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    takes: Any
    decode: Callable[[bytes], Any] | None
    returns: Any
    fills: tuple[tuple[str | None, Fill | None], ...]
    """For each parameter: its name if it is given by keyword, and the function that makes its
    value; None: the data."""
    batch: bool = False
    enveloped: bool = False

    @property
    def takes_context(self) -> bool:
        """Whether it takes anything besides the data."""
        return any(fill is not None for _, fill in self.fills)

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


def _itself(arrived: Any) -> Any:
    return arrived


def read_function(
    function: Callable[..., Any],
    where: str,
    *,
    context: type[HandlerContext],
    fill: Fill = _itself,
    inject: Mapping[type[Any], Fill] | None = None,
    carrier: type[Any] | None = None,
    rest: type[Any] = HandlerContext,
    batches: bool = False,
) -> MessageFunction:
    """Read the signature of a handler.

    Args:
        function: the handler.
        where: for errors: what it handles.
        context: the type of the context.
        fill: makes the context from a message.
        inject: makes the values of further parameters, by type.
        carrier: one of these types that contains the data; see ``read_signature``.
        rest: the type of a further parameter without an annotation; by default, the context.
        batches: ``list[Order]`` takes the orders of several messages.

    Raises:
        ConfigurationError: it cannot be called, or a parameter has no value to take.
    """
    fills: dict[type[Any], Fill] = {HandlerContext: fill, **(inject or {})}
    others = "".join(f", {one.__name__}" for one in inject or ())
    read = read_signature(
        function,
        where,
        way=context.used_by,
        takes=(
            f"a handler takes the data of the message, and parameters of the types "
            f"{context.__name__}{others}: `def handle(data: Order, ctx: {context.__name__})`"
        ),
        known=tuple(inject or ()),
        carrier=carrier,
        rest=rest,
    )
    if (get_origin(read.takes) or read.takes) is Envelope and carrier is None:
        raise ConfigurationError(
            f"{where}: these messages have no envelope; take the data itself, and a "
            f"{context.__name__} for the id, the attempt and the metadata{place_of(function)}"
        )
    takes, decode, enveloped = read.takes, None, False
    batch = batches and get_origin(takes) is list
    if batch:
        (takes,) = get_args(takes)
        enveloped = (get_origin(takes) or takes) is Envelope
        if enveloped:
            (takes,) = get_args(takes) or (Any,)
    if takes is not None:
        decode = data_decoder(takes, where, ConfigurationError)
    return MessageFunction(
        read.name,
        function,
        read.is_async,
        takes,
        decode,
        read.returns,
        tuple(
            (one.keyword, None if one.kind is None else fills[one.kind]) for one in read.parameters
        ),
        batch,
        enveloped,
    )
