"""Spans of OpenTelemetry's SDK that are made in a fraction of the time.

Most spans of messages are begun and ended, and nobody touches them in between. Such a span keeps
what it was begun with, and at its end becomes a ``ReadableSpan`` for the span processors. The first
time that somebody asks it for anything else, it turns into what the SDK would have made: it is a
subclass of the SDK's own span, whose constructor runs late.

This depends on how the SDK works inside. So before it is used, it is compared with spans that the
SDK itself makes (``work_here``); where they differ, the SDK makes them all.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from time import time_ns
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, SpanKind, Tracer

_MOST_ATTRIBUTES = 16  # a limit of the user's that is lower is the SDK's business
_filling = threading.RLock()  # the constructor may read what it has not set yet


class _Begun(NamedTuple):
    """What a span was begun with."""

    of: LightSpans
    name: str
    kind: SpanKind
    about: Mapping[str, Any]
    context: SpanContext
    parent: SpanContext | None
    began: int


@cache
def _span_class() -> type[Any]:
    """The class of the spans. A function, because the SDK is imported only where it is used."""
    from opentelemetry.sdk.trace import Span as SdkSpan

    begin: Any = SdkSpan.__init__
    finish: Any = SdkSpan.end

    class LightSpan(SdkSpan):
        """A span that the SDK's constructor has not seen yet, unless it is ``light_full``."""

        __slots__ = ("light_begun", "light_ended", "light_full")
        light_begun: _Begun
        light_ended: int | None
        light_full: bool

        def __init__(self) -> None:
            pass  # that of the SDK runs late

        def __getattr__(self, name: str) -> Any:
            """What the SDK's constructor sets, the first time that somebody wants it."""
            with _filling:
                if not self.light_full:
                    self.light_fill()
            return object.__getattribute__(self, name)

        def light_fill(self) -> None:
            """Become what the SDK would have made."""
            begun = self.light_begun
            tracer: Any = begun.of.tracer
            self.light_full = True  # an attribute that is missing from here on is an error
            begin(
                self,
                begun.name,
                begun.context,
                begun.parent,
                sampler=tracer.sampler,
                resource=tracer.resource,
                attributes=begun.about,
                kind=begun.kind,
                span_processor=tracer.span_processor,
                instrumentation_info=tracer.instrumentation_info,
                limits=begun.of.limits,
                instrumentation_scope=begun.of.scope,
            )
            self._start_time = begun.began
            self._end_time = self.light_ended

        def get_span_context(self) -> SpanContext:
            return self.light_begun.context

        def is_recording(self) -> bool:
            return self.light_ended is None

        def end(self, end_time: int | None = None) -> None:
            with _filling:
                untouched = not self.light_full and self.light_ended is None
                if self.light_ended is None:
                    self.light_ended = end_time = time_ns() if end_time is None else end_time
            if untouched:
                begun = self.light_begun
                begun[0].hand_over(begun, end_time)
            else:
                finish(self, end_time)  # the second time, the SDK says what is wrong

    return LightSpan


class LightSpans:
    """Makes light spans as one tracer of the SDK would make its own.

    What the sampler says, and which ids there are, is the caller's business.
    """

    def __init__(self, tracer: Any) -> None:
        from opentelemetry.sdk.trace import ReadableSpan

        self.tracer = tracer
        self.limits: Any = tracer._span_limits
        self.scope: Any = tracer._instrumentation_scope
        self._all: Any = tracer.span_processor
        self._known: Any = None
        self._class = _span_class()
        self._readable = ReadableSpan
        self._new: Any = object.__new__
        self._is_enabled = getattr(tracer, "_is_enabled", None)

    def is_ready(self) -> bool:
        """Can a span be begun here at this moment? Otherwise the SDK has to make it."""
        if self._all._span_processors is not self._known and not self._ends_only():
            return False
        return self._is_enabled is None or self._is_enabled()

    def start(
        self,
        name: str,
        kind: SpanKind,
        about: Mapping[str, Any],
        context: SpanContext,
        parent: SpanContext | None,
        began: int | None = None,
        *,
        clean: bool = True,
    ) -> Any:
        """Begin a span, if ``is_ready``.

        ``about`` is not changed afterwards. If it is not ``clean``, a sampler of the user's has
        added attributes, which the SDK has to look at.
        """
        span = self._new(self._class)
        span.light_begun = _Begun(
            self, name, kind, about, context, parent, time_ns() if began is None else began
        )
        span.light_full, span.light_ended = False, None
        if not clean:
            span.light_fill()
        return span

    def hand_over(self, begun: _Begun, ended: int | None) -> None:
        """Give a span that nobody has touched to the processors."""
        _, name, kind, about, context, parent, began = begun
        tracer = self.tracer
        done = self._readable(
            name,
            context,
            parent,
            tracer.resource,
            about,
            kind=kind,
            instrumentation_info=tracer.instrumentation_info,
            start_time=began,
            end_time=ended,
            instrumentation_scope=self.scope,
        )
        for processor in self._all._span_processors:
            processor.on_end(done)

    def _ends_only(self) -> bool:
        """Do all processors look only at spans that have ended? Others need the SDK's own."""
        processors = self._all._span_processors
        if not all(_waits_for_the_end(cast("type[Any]", type(one))) for one in processors):
            return False
        self._known = processors
        return True


def light_spans(tracer: Tracer) -> LightSpans | None:
    """Light spans for a tracer; None if it is not the SDK's own, or they would not be the same."""
    try:
        from opentelemetry.sdk import trace as sdk
    except ImportError:
        return None
    if type(tracer) is not sdk.Tracer or "start_span" in vars(tracer):
        return None  # an agent's, or a test's
    start: Any = sdk.Tracer.start_span
    if not isinstance(start, FunctionType) or start.__code__.co_filename != sdk.__file__:
        return None  # somebody has replaced it
    if type(getattr(tracer, "span_processor", None)) is not sdk.SynchronousMultiSpanProcessor:
        return None
    if type(getattr(tracer, "_tracer_metrics", None)).__name__ not in (
        "NoneType",
        "NoOpTracerMetrics",
    ):
        return None  # the SDK counts its spans
    if not work_here():
        return None
    light = LightSpans(tracer)
    most, longest = light.limits.max_span_attributes, light.limits.max_span_attribute_length
    return light if longest is None and (most is None or most >= _MOST_ATTRIBUTES) else None


@cache
def _waits_for_the_end(kind: type[Any]) -> bool:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    idle = (SpanProcessor, BatchSpanProcessor, SimpleSpanProcessor)
    return all(
        any(getattr(kind, name, None) is getattr(one, name, None) for one in idle)
        for name in ("on_start", "_on_ending")
    )


@cache
def work_here() -> bool:
    """Are light spans the same as those of the installed SDK? Asked once."""
    try:
        return _made_by(light=True) == _made_by(light=False)
    except Exception:  # noqa: BLE001 - another version of the SDK: it makes its spans itself
        return False


def _made_by(light: bool) -> list[Any]:
    """What processors get of four spans: untouched, touched, of a failure, and read only."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags

    found: list[ReadableSpan] = []

    class Collecting(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            found.append(span)

    class Ids:
        def generate_trace_id(self) -> int:
            return 7

        def generate_span_id(self) -> int:
            return 8

        def is_trace_id_random(self) -> bool:
            return False

    ids: Any = Ids()
    provider = TracerProvider(
        ALWAYS_ON, Resource({"a": "b"}), id_generator=ids, shutdown_on_exit=False
    )
    provider.add_span_processor(Collecting())
    tracer = provider.get_tracer("matador")
    about = {"one": "1", "two": 2}
    known = SpanContext(7, 8, False, TraceFlags(TraceFlags.SAMPLED))

    def start() -> Any:
        if light:
            return LightSpans(tracer).start("name", SpanKind.CONSUMER, about, known, None, 10)
        return tracer.start_span("name", None, SpanKind.CONSUMER, about, start_time=10)

    start().end(20)
    touched = start()
    touched.set_attribute("three", 3.0)
    touched.set_attributes({"four": [True]})
    touched.add_event("event", {"five": 5}, 15)
    touched.add_link(known, {"six": "6"})
    touched.update_name("another")
    touched.set_status(StatusCode.ERROR, "why")
    touched.end(20)
    failed = start()
    failed.record_exception(ValueError("no"), {"seven": 7}, 15)
    failed.end(20)
    read = start()
    seen = [read.name, read.kind, dict(read.attributes), read.parent, read.start_time]
    read.end(20)
    return [*seen, *((one.to_json(), one.context, one.instrumentation_scope) for one in found)]
