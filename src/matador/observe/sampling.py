"""What the SDK's samplers decide, found without asking them, and ids that fit the decision.

The SDK takes several times as long to drop a span as Matador takes to send a message.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Any, cast
from weakref import WeakSet

TRACE_IDS = (1 << 64) - 1
"""A ratio is taken of the lower half of a trace id."""

_BLOCK = 64
_SDK = "opentelemetry.sdk.trace.sampling"
_SDK_IDS = "opentelemetry.sdk.trace.id_generator"
_FOLLOWS = "remoteParentNotSampled:AlwaysOffSampler"
_USUAL = re.compile(
    r"ParentBased\{root:(?:(?P<all>AlwaysOnSampler)|(?P<none>AlwaysOffSampler)|"
    r"TraceIdRatioBased\{(?P<ratio>[\d.e-]+)\}),"
    r"remoteParentSampled:AlwaysOnSampler,remoteParentNotSampled:AlwaysOffSampler,"
    r"localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler\}"
)


def follows_the_sender(sampler: Any) -> bool:
    """Does this sampler drop what the sender of a message did not sample?"""
    return _FOLLOWS in _description(sampler)


def bound_of(sampler: Any) -> int | None:
    """How many of the trace ids the usual sampler takes for new traces, which then all services
    follow: ``ParentBased`` over a ratio, all or none. None for another one, which is asked."""
    usual = _USUAL.fullmatch(_description(sampler))
    if usual is None:
        return None
    if usual["ratio"] is None:
        return 0 if usual["none"] else TRACE_IDS + 1
    return round(float(usual["ratio"]) * (TRACE_IDS + 1))  # as TraceIdRatioBased does it


def _description(sampler: Any) -> str:
    """What one of the SDK's own samplers, made of its own samplers only, says about itself."""
    parts = [sampler, *cast("dict[str, Any]", getattr(sampler, "__dict__", {})).values()]
    samplers = [one for one in parts if hasattr(one, "should_sample")]
    if sampler not in samplers or any(type(one).__module__ != _SDK for one in samplers):
        return ""
    return str(sampler.get_description())


class GivenIds:
    """The ids of new spans: those of another generator, or a trace id that was chosen before."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._given = threading.local()
        self.generate_span_id: Callable[[], int] = inner.generate_span_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def are_random(self) -> bool:
        """Are they the SDK's own: random numbers?"""
        kind = cast("type[Any]", type(self._inner))
        return (kind.__module__, kind.__name__) == (_SDK_IDS, "RandomIdGenerator")

    def generate_trace_id(self) -> int:
        """The id that was given in this thread, or a new one."""
        given: int = getattr(self._given, "id", 0)
        if given:
            self._given.id = 0
        return given or self._inner.generate_trace_id()

    def give(self, trace_id: int) -> None:
        """Have the next trace of this thread use this id."""
        self._given.id = trace_id


class DrawnIds:
    """Random ids of the usual sampler's traces and of spans, drawn in blocks, as digits.

    Any thread may take from the lists; when one is empty, there is ``more_traces``. A fork does not
    make ids repeat.
    """

    __slots__ = ("__weakref__", "_bound", "spans", "traces")

    def __init__(self, bound: int) -> None:
        self._bound = f"{bound:016x}" if bound <= TRACE_IDS else "g"  # which is after all digits
        self.spans: list[str] = []
        """Ids of spans."""
        self.traces: list[str] = []
        """The ``traceparent`` of each trace that is not sampled; of the others only the id."""
        _drawn.add(self)

    def span(self) -> str:
        """The id of a span."""
        try:
            return self.spans.pop()
        except IndexError:
            first, *more = _draw()
            self.spans.extend(more)
            return first

    def trace(self) -> str:
        """One of ``traces``."""
        try:
            return self.traces.pop()
        except IndexError:
            return self.more_traces()

    def more_traces(self) -> str:
        """Draw a block of ``traces``, and take one of them."""
        bound = self._bound
        left, *lows = _draw()
        # Nobody records a trace that is not sampled, so its span has no id of its own, and half of
        # the id of the trace is the same in the whole block.
        start = f"00-{left}"
        first, *more = [
            f"{start}{low}-{low}-00" if low >= bound else f"{os.urandom(8).hex()}{low}"
            for low in lows
        ]
        self.traces.extend(more)
        return first


def _draw() -> list[str]:
    """A block of random numbers with 16 digits each, and one more."""
    return os.urandom(8 * _BLOCK + 8).hex(" ", 8).split(" ")


_drawn: WeakSet[DrawnIds] = WeakSet()


def _after_fork() -> None:
    for one in list(_drawn):
        one.traces.clear()
        one.spans.clear()


os.register_at_fork(after_in_child=_after_fork)
