"""What metrics and traces cost: events, sent by 64 callers and then handled.

    script/benchmark observing [--url URL] [--messages 10000] [--rounds 5] [--sampled 0.1] [--cpu]
                               [--work 0.1] [--wait MS] [--otlp]

On SQLite, or on the broker at ``--url``, in a namespace of its own. Two subscribers take part. One
computes for ``--work`` milliseconds, by default a tenth of one, which is less than a query to a
database takes. The other only counts, as in all our benchmarks: the hardest case. With ``--wait``,
the first one also waits.

Contestants take turns. With traces, each send and each attempt makes a decision about its span; the
sampled ones are recorded by OpenTelemetry's SDK, which batches them for an exporter that drops
them. With ``--otlp``, the exporter encodes them for OTLP first, as one that sends them does; needs
``opentelemetry-exporter-otlp-proto-common``. What is left to export is exported within the time
that counts. ``--cpu`` counts processor time instead of seconds, for a busy machine. The exit code
is 1 if metrics and traces together cost one of them more than a tenth of the throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from benchmarks import shop
from benchmarks.embedded import in_a_fresh_folder
from benchmarks.rounds import Bar, Contest, hold, table
from matador import Hooks
from matador.model.subscriber import Subscriber
from matador.observe import Metrics, Tracing

CALLERS = 64
NAMESPACE = f"observing-{uuid4().hex[:8]}"
PLAIN, METRICS, BOTH = "neither", "metrics", "metrics and traces"


class _Dropped(SpanExporter):
    def __init__(self, encode: Callable[[Sequence[ReadableSpan]], Any] | None = None) -> None:
        self._encode = encode

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._encode is not None:
            self._encode(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def _otlp() -> Callable[[Sequence[ReadableSpan]], Any]:
    name = "opentelemetry.exporter.otlp.proto.common.trace_encoder"
    try:
        return import_module(name).encode_spans
    except ImportError as error:
        package = "opentelemetry-exporter-otlp-proto-common"
        raise SystemExit(f"--otlp needs {package}: .venv/bin/pip install {package}") from error


def observing(
    messages: int,
    sampled: float,
    clock: Callable[[], float],
    given: str | None = None,
    handler: Subscriber[Any] | None = None,
    encode: Callable[[Sequence[ReadableSpan]], Any] | None = None,
) -> Contest:
    """Sent and handled with metrics, with metrics and traces, and without.

    Without a handler, the subscriber only counts.
    """
    number = messages // CALLERS * CALLERS  # what the callers send in all

    def metrics() -> list[Hooks]:
        return [Metrics()]

    async def run(
        folder: Path, hooks: Callable[[], list[Hooks]], flush: Callable[[], object] = bool
    ) -> float:
        url = given or f"sqlite:///{folder}/shop.db"
        async with shop.make_app(url, consume=False, namespace=NAMESPACE):
            pass  # the queues are made, and what is imported on first use is there
        gc.collect()  # what the others have left
        began = clock()
        async with shop.make_app(url, consume=False, hooks=hooks(), namespace=NAMESPACE) as app:
            await shop.send_concurrently(app, number, CALLERS)
        await shop.consume(url, number, hooks(), NAMESPACE, handler or shop.count)
        flush()
        return number / (clock() - began)

    def traced(folder: Path) -> float:
        sampler = ParentBased(TraceIdRatioBased(sampled))
        provider = TracerProvider(sampler, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(_Dropped(encode)))
        try:
            both = lambda: [*metrics(), Tracing(tracer_provider=provider)]  # noqa: E731
            return asyncio.run(run(folder, both, provider.force_flush))
        finally:
            provider.shutdown()

    where = (given or "sqlite").partition(":")[0]
    does = "works" if handler else "only counts"
    return Contest(
        f"{where}, {sampled:.0%} sampled, a subscriber that {does}",
        BOTH,
        {
            BOTH: in_a_fresh_folder(traced),
            METRICS: in_a_fresh_folder(lambda folder: asyncio.run(run(folder, metrics))),
            PLAIN: in_a_fresh_folder(lambda folder: asyncio.run(run(folder, list))),
        },
        (Bar(PLAIN, 0.9),),
    )


def main() -> int:
    """Hold the contests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a broker; SQLite by default")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sampled", type=float, default=0.1)
    parser.add_argument("--cpu", action="store_true", help="messages per second of processor time")
    parser.add_argument("--work", type=float, default=0.1, help="milliseconds to compute for each")
    parser.add_argument("--wait", type=float, default=0, help="milliseconds to wait for each")
    parser.add_argument("--otlp", action="store_true", help="encode the spans for OTLP")
    given = parser.parse_args()
    clock = time.process_time if given.cpu else time.perf_counter
    working = shop.working(given.work / 1000, given.wait / 1000)
    encode = _otlp() if given.otlp else None
    outcomes = [
        hold(
            observing(given.messages, given.sampled, clock, given.url, handler, encode),
            given.rounds,
        )
        for handler in (working, None)
    ]
    print(table(outcomes))
    return 0 if all(outcome.met for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
