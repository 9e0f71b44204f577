"""Traces of jobs, calls and messages: who makes spans, and how a send is surrounded by one.

``matador.observe.Tracing`` makes them. It is given where a recorder is: as ``journal=``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from matador.model.message import Delivery
from matador.runtime.recorder import Recorder, Recorders, Way
from matador.runtime.settle import Handler, Outcome

log = logging.getLogger("matador.recorder")

failure_of: ContextVar[list[Exception] | None] = ContextVar("matador_failure", default=None)
"""Where a handler notes why it did not handle the message that it is processing."""


@runtime_checkable
class TracesMessages(Protocol):
    """Makes spans around sends and attempts. Its methods return at once."""

    def begin_send(
        self,
        way: Way,
        operation: str,
        name: str,
        receiver: str,
        transport: str,
        carrier: MutableMapping[str, Any],
    ) -> Any:
        """A send begins; what is put into ``carrier`` goes with the message."""
        ...

    def end_send(self, span: Any, error: BaseException | None) -> None:
        """It has ended."""
        ...

    def begin_attempt(
        self,
        way: Way,
        name: str,
        queue: str,
        transport: str,
        message_id: str,
        carrier: Mapping[str, Any],
    ) -> Any:
        """An attempt begins; ``carrier`` is what came with the message."""
        ...

    def end_attempt(self, span: Any, error: BaseException | None) -> None:
        """It has ended."""
        ...


class Traces:
    """The spans of one queue, worker, client, server, publisher, subscriber or service.

    What a tracer raises is logged: it makes no send and no attempt fail.
    """

    def __init__(self, recorder: Recorder | None, way: Way) -> None:
        self._tracers = tuple(_tracers(recorder))
        self._way: Way = way

    def __bool__(self) -> bool:
        return bool(self._tracers)

    @contextlib.contextmanager
    def send(
        self,
        operation: str,
        name: str,
        receiver: str,
        transport: str,
        metadata: Mapping[str, Any] | None,
    ) -> Generator[Mapping[str, Any] | None]:
        """Surround a send. Gives the metadata to send, in which those of the sender win."""
        if not self._tracers:
            yield metadata
            return
        carrier: dict[str, Any] = {}
        spans = [
            _safely(one.begin_send, self._way, operation, name, receiver, transport, carrier)
            for one in self._tracers
        ]
        failure: BaseException | None = None
        try:
            yield {**carrier, **(metadata or {})}
        except BaseException as error:
            failure = error
            raise
        finally:
            for one, span in zip(self._tracers, spans, strict=True):
                _safely(one.end_send, span, failure)
            del failure

    def handling(self, handler: Handler, transport: str, read: ReadFacts) -> Handler:
        """A handler whose attempts have spans; the same one if nobody makes any."""
        return _Traced(handler, self._tracers, self._way, transport, read) if self else handler


class ReadFacts(Protocol):
    """Reads what a span says about a delivery."""

    def __call__(self, delivery: Delivery, /) -> tuple[str, str, Mapping[str, Any]]:
        """The name of the message, its id, and what came with it. Must not raise."""
        ...


class _Traced:
    """A handler whose attempts have spans."""

    def __init__(
        self,
        handler: Handler,
        tracers: Sequence[TracesMessages],
        way: Way,
        transport: str,
        read: ReadFacts,
    ) -> None:
        self._handler, self._tracers, self._way = handler, tracers, way
        self._transport, self._read = transport, read

    async def process(self, delivery: Delivery) -> Outcome:
        """See ``Handler``."""
        name, id_, carrier = self._read(delivery)
        queue = delivery.receipt.queue
        spans = [
            _safely(one.begin_attempt, self._way, name, queue, self._transport, id_, carrier)
            for one in self._tracers
        ]
        before = failure_of.get()
        failed: list[Exception] = [] if before is None else before
        token = failure_of.set(failed)
        failure: BaseException | None = None
        try:
            return await self._handler.process(delivery)
        except BaseException as error:
            failure = error
            raise
        finally:
            failure_of.reset(token)
            failure = failure or (failed[-1] if failed else None)
            for one, span in zip(reversed(self._tracers), reversed(spans), strict=True):
                _safely(one.end_attempt, span, failure)
            del failure, failed

    def give_up(self, delivery: Delivery, reason: str) -> Outcome:
        """See ``Handler``."""
        return self._handler.give_up(delivery, reason)


def _safely(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception:
        log.exception("a trace was not recorded")
        return None


def _tracers(recorder: Recorder | None) -> list[TracesMessages]:
    if isinstance(recorder, Recorders):
        return [one for inner in recorder.recorders for one in _tracers(inner)]
    return [recorder] if isinstance(recorder, TracesMessages) else []
