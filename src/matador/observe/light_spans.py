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
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from matador.model.envelope import Docket
from matador.observe.span_content import about_message, record_error
from matador.observe.trace_context import TraceContexts

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, Tracer

_MOST_ATTRIBUTES = 16  # a limit of the user's that is lower is the SDK's business
_filling = threading.RLock()  # the constructor may read what it has not set yet


@cache
def _span_classes() -> tuple[type[Any], type[Any]]:
    """The classes of spans, and of those that have ended. A function, because the SDK is imported
    only where it is used."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace import Span as SdkSpan

    begin: Any = SdkSpan.__init__
    finish: Any = SdkSpan.end
    read: Any = ReadableSpan.__init__
    dict_of: Any = vars(ReadableSpan)["__dict__"].__get__

    class LightSpan(SdkSpan):
        """A span that the SDK's constructor has not seen yet, unless it is ``light_full``."""

        __slots__ = (
            "light_about",
            "light_began",
            "light_context",
            "light_docket",
            "light_ended",
            "light_full",
            "light_kind",
            "light_message",
            "light_name",
            "light_of",
            "light_parent",
            "light_token",
            "traceparent",
        )
        light_of: LightSpans
        light_name: str
        light_kind: SpanKind
        light_about: Mapping[str, Any]
        light_message: str  # with its docket, if it is an attempt: more to say about it
        light_docket: Docket | None
        light_context: SpanContext | None  # None: nobody has asked for it yet
        light_parent: SpanContext | str | None
        light_began: int
        light_ended: int | None
        light_full: bool
        light_token: Any
        traceparent: str  # of a sampled span; empty if it was begun with its context

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
            of = self.light_of
            tracer: Any = of.tracer
            context, parent = self.get_span_context(), self.light_parent_context()
            self.light_full = True  # an attribute that is missing from here on is an error
            begin(
                self,
                self.light_name,
                context,
                parent,
                sampler=tracer.sampler,
                resource=tracer.resource,
                attributes=self.light_attributes(),
                kind=self.light_kind,
                span_processor=tracer.span_processor,
                instrumentation_info=tracer.instrumentation_info,
                limits=of.limits,
                instrumentation_scope=of.scope,
            )
            self._start_time = self.light_began
            self._end_time = self.light_ended

        def light_show(self, span: Any) -> None:
            """Make another one a ``ReadableSpan`` of what this one, which has ended, says."""
            of = self.light_of
            tracer: Any = of.tracer
            read(
                span,
                self.light_name,
                self.get_span_context(),
                self.light_parent_context(),
                tracer.resource,
                self.light_attributes(),
                kind=self.light_kind,
                instrumentation_info=tracer.instrumentation_info,
                start_time=self.light_began,
                end_time=self.light_ended,
                instrumentation_scope=of.scope,
            )

        def light_attributes(self) -> Mapping[str, Any]:
            about, docket = self.light_about, self.light_docket
            return about if docket is None else about_message(about, self.light_message, docket)

        def light_parent_context(self) -> SpanContext | None:
            parent = self.light_parent
            if isinstance(parent, str):  # what a message has brought
                parent = self.light_parent = self.light_of.contexts.context_of(parent, True)
            return parent

        def get_span_context(self) -> SpanContext:
            known = self.light_context
            if known is None:
                known = self.light_of.contexts.context_of(self.traceparent, False)
                self.light_context = known
            return known

        def is_recording(self) -> bool:
            return self.light_ended is None

        def finish(self, error: BaseException | None) -> None:
            """End it with what it surrounds. See ``Surrounding``."""
            token = self.light_token
            if token is not None:
                self.light_token = None
                self.light_of.contexts.leave(token)
            if error is not None:
                record_error(self, error)
            self.end()

        def end(self, end_time: int | None = None) -> None:
            with _filling:
                untouched = not self.light_full and self.light_ended is None
                if self.light_ended is None:
                    self.light_ended = end_time = time_ns() if end_time is None else end_time
            if untouched:
                self.light_of.hand_over(self)
            else:
                finish(self, end_time)  # the second time, the SDK says what is wrong

    class EndedSpan(ReadableSpan):
        """What a light span says after its end, read from it the first time somebody asks: in the
        thread of the exporter."""

        __slots__ = ("context", "light_span")  # pyright: ignore[reportIncompatibleMethodOverride] - no property: quicker
        # Processors ask for it, in the thread in which the span ends.
        context: SpanContext | None
        light_span: LightSpan | None

        def __init__(self) -> None:
            pass  # that of the SDK runs late

        def __getattr__(self, name: str) -> Any:
            self.light_fill()
            return object.__getattribute__(self, name)

        def light_fill(self) -> dict[str, Any]:
            with _filling:
                span, self.light_span = self.light_span, None
                if span is not None:
                    span.light_show(self)
            return dict_of(self)

        @property
        def __dict__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride] - is read only
            return self.light_fill()

        def __reduce_ex__(self, protocol: SupportsIndex, /) -> Any:
            """A copy is a span that needs nothing of ours."""
            return _readable_span, (dict(self.light_fill()),)

    return LightSpan, EndedSpan


def _readable_span(fields: dict[str, Any]) -> ReadableSpan:
    from opentelemetry.sdk.trace import ReadableSpan

    made = object.__new__(ReadableSpan)
    vars(made).update(fields)
    return made


class LightSpans:
    """Makes light spans as one tracer of the SDK would make its own.

    What the sampler says, and which ids there are, is the caller's business.
    """

    def __init__(self, tracer: Any, contexts: TraceContexts) -> None:
        self.tracer = tracer
        self.contexts = contexts
        self.limits: Any = tracer._span_limits
        self.scope: Any = tracer._instrumentation_scope
        self._all: Any = tracer.span_processor
        self._known: Any = None
        self._class, self._ended_class = _span_classes()
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
        span = self.begin(name, kind, about, "", parent, began=began)
        span.light_context = context
        if not clean:
            span.light_fill()
        return span

    def begin(
        self,
        name: str,
        kind: SpanKind,
        about: Mapping[str, Any],
        traceparent: str,
        parent: SpanContext | str | None,
        message_id: str = "",
        docket: Docket | None = None,
        began: int | None = None,
    ) -> Any:
        """Begin a span that is sampled, if ``is_ready``: ``traceparent`` has its ids, which are
        valid, as is ``parent``. With a docket, it is about an attempt to handle its message."""
        span = self._new(self._class)
        span.light_of, span.light_name, span.light_kind = self, name, kind
        span.light_about, span.light_message, span.light_docket = about, message_id, docket
        span.traceparent, span.light_parent = traceparent, parent
        span.light_context = span.light_ended = span.light_token = None
        span.light_full = False
        span.light_began = time_ns() if began is None else began
        return span

    def hand_over(self, span: Any) -> None:
        """Give a span that nobody has touched to the processors."""
        ended = self._new(self._ended_class)
        ended.light_span, ended.context = span, span.get_span_context()
        for processor in self._all._span_processors:
            processor.on_end(ended)

    def _ends_only(self) -> bool:
        """Do all processors look only at spans that have ended? Others need the SDK's own."""
        processors = self._all._span_processors
        if not all(_waits_for_the_end(cast("type[Any]", type(one))) for one in processors):
            return False
        self._known = processors
        return True


def light_spans(tracer: Tracer, contexts: TraceContexts) -> LightSpans | None:
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
    light = LightSpans(tracer, contexts)
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
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
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
    tracer, contexts = provider.get_tracer("matador"), TraceContexts()
    about = {"one": "1", "two": 2}
    known = SpanContext(7, 8, False, TraceFlags(TraceFlags.SAMPLED))

    def start() -> Any:
        if light:
            return LightSpans(tracer, contexts).start(
                "name", SpanKind.CONSUMER, about, known, None, 10
            )
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
