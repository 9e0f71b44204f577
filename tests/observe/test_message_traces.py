"""Traces of jobs, RPC, pub/sub and channels: one from the sender to the code that handles it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.jobs import ActiveJob, PermanentJobError, Queue, Worker
from matador.observe import Journal, Tracing
from matador.pubsub import MessageContext, Publisher, Subscriber
from matador.rpc import RemoteError, RpcClient, RpcServer
from matador.runtime.recorder import Recorders
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exported: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return Tracing(tracer_provider=provider)


def trace_id() -> int:
    return get_current_span().get_span_context().trace_id


def in_one_trace(exported: InMemorySpanExporter, *names: str) -> Sequence[ReadableSpan]:
    """The spans of these names, of which each of the later ones is a child of the first."""
    spans = {span.name: span for span in exported.get_finished_spans()}
    assert set(spans) == set(names)
    first, *others = [spans[name] for name in names]
    assert first.context is not None
    for other in others:
        assert other.parent is not None
        assert other.parent.span_id == first.context.span_id
    return [first, *others]


@pytest.mark.parametrize(
    "provider", ["memory://", "sqlite:///{}/jobs.db"], ids=["memory", "sqlite"]
)
async def test_a_job_is_in_the_trace_of_who_added_it(
    tracing: Tracing, exported: InMemorySpanExporter, tmp_path: Path, provider: str
) -> None:
    seen: list[int] = []

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append(trace_id())
        assert job.metadata["tenant"] == "acme"

    async with Queue("emails", provider=provider.format(tmp_path), journal=tracing) as queue:
        job = await queue.add("welcome", {"to": "ada"}, metadata={"tenant": "acme"})
        assert set(job.metadata) == {"tenant", "traceparent"}
        async with Worker(queue, handle, journal=tracing):
            await wait_for(lambda: len(exported.get_finished_spans()) == 2)
    sent, process = in_one_trace(exported, "send emails", f"process {job_queue(exported)}")
    assert (sent.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent.context is not None
    assert seen == [sent.context.trace_id]
    assert (process.attributes or {})["matador.name"] == "welcome"
    assert (process.attributes or {})["matador.way"] == "job"
    assert (process.attributes or {})["messaging.message.id"] == job.id


def job_queue(exported: InMemorySpanExporter) -> str:
    (process,) = [one for one in exported.get_finished_spans() if one.name.startswith("process")]
    return str((process.attributes or {})["messaging.destination.name"])


async def test_a_job_that_fails_has_its_error_and_journals_stay_complete(
    tracing: Tracing, exported: InMemorySpanExporter, tmp_path: Any
) -> None:
    async def handle(job: ActiveJob[Any]) -> None:
        raise PermanentJobError("amqp://me:hunter2@host is gone")

    both = Recorders(Journal(tmp_path / "journal"), tracing)
    async with Queue("emails", journal=both) as queue:
        await queue.add_many([("welcome", 1)])
        async with Worker(queue, handle, journal=both):
            await wait_for(lambda: len(exported.get_finished_spans()) == 2)
    (process,) = [one for one in exported.get_finished_spans() if one.kind is SpanKind.CONSUMER]
    assert process.status.status_code is StatusCode.ERROR
    assert (process.attributes or {})["error.type"] == "PermanentJobError"
    assert "hunter2" not in process.to_json()
    text = "".join(one.read_text() for one in (tmp_path / "journal").glob("*.jsonl"))
    assert '"kind":"sent"' in text
    assert '"outcome":"dead-letter"' in text


async def test_a_call_and_its_handling(tracing: Tracing, exported: InMemorySpanExporter) -> None:
    transport = MemoryTransport()
    server = RpcServer(transport, queue="maths", journal=tracing)
    seen: list[int] = []

    async def add(request: dict[str, int]) -> int:
        seen.append(trace_id())
        if request["a"] == 0:
            raise ValueError("no")
        return sum(request.values())

    server.register("ADD", add)
    async with server, RpcClient(transport, queue="maths", journal=tracing) as client:
        assert await client.call("ADD", {"a": 1, "b": 2}, timeout=30) == 3
        await wait_for(lambda: len(exported.get_finished_spans()) == 2)
        call, process = in_one_trace(exported, "call maths", "process maths")
        assert (call.kind, process.kind) == (SpanKind.CLIENT, SpanKind.SERVER)
        assert call.context is not None
        assert seen == [call.context.trace_id]
        exported.clear()
        with pytest.raises(RemoteError):
            await client.call("ADD", {"a": 0}, timeout=30)
        await wait_for(lambda: len(exported.get_finished_spans()) == 2)
        for span in in_one_trace(exported, "call maths", "process maths"):
            assert span.status.status_code is StatusCode.ERROR
        exported.clear()
        await client.notify("ADD", {"a": 1})
        await wait_for(lambda: len(exported.get_finished_spans()) == 2)
        in_one_trace(exported, "send maths", "process maths")


async def test_what_is_published_and_what_its_handlers_do(
    tracing: Tracing, exported: InMemorySpanExporter
) -> None:
    transport = MemoryTransport()
    seen: list[int] = []
    subscriber = Subscriber(transport, exchange="news", queue="analytics", journal=tracing)

    @subscriber.on("orders.*")
    async def orders(message: dict[str, int], ctx: MessageContext) -> None:
        seen.append(trace_id())
        assert ctx.headers["tenant"] == "acme"

    async with subscriber, Publisher(transport, exchange="news", journal=tracing) as publisher:
        await publisher.publish("orders.created", {"id": 1}, metadata={"tenant": "acme"})
        await wait_for(lambda: len(exported.get_finished_spans()) == 2)
        sent, process = in_one_trace(exported, "publish news", "process analytics")
        assert (sent.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert (process.attributes or {})["matador.name"] == "orders.created"
        exported.clear()
        messages: list[tuple[str, object]] = [("orders.a", {"id": 2}), ("orders.b", {"id": 3})]
        await publisher.publish_many(messages, metadata={"tenant": "acme"})
        await wait_for(lambda: len(exported.get_finished_spans()) == 3)
    assert len(set(seen)) == 2
    assert 0 not in seen


async def test_channels(tracing: Tracing, exported: InMemorySpanExporter) -> None:
    seen: list[int] = []

    @channel("stock")
    class Stock:
        @consume("moved")
        async def moved(self, item: dict[str, int]) -> None:
            seen.append(trace_id())

    settings = Settings(QueueSettings(type="memory", url="memory://"))
    async with QueueService(settings, channels=[Stock], journal=tracing) as service:
        await service.send("stock", "moved", {"id": 1})
        await wait_for(lambda: len(exported.get_finished_spans()) == 2)
        in_one_trace(exported, "send stock.moved", "process stock.moved")
        exported.clear()
        await service.publish("stock", "moved", {"id": 2})
        await wait_for(lambda: len(exported.get_finished_spans()) == 2)
    names = {span.name for span in exported.get_finished_spans()}
    assert "publish stock" in names
    assert len(set(seen)) == 2
    assert 0 not in seen


async def test_what_is_not_sampled_stays_so_and_keeps_its_ids() -> None:
    exported = InMemorySpanExporter()
    provider = TracerProvider(ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracing = Tracing(tracer_provider=provider)
    seen: list[Any] = []

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append((job.metadata["traceparent"], get_current_span().get_span_context()))

    async with Queue("emails", journal=tracing) as queue:
        await queue.add("welcome", 1)
        async with Worker(queue, handle, journal=tracing):
            await wait_for(lambda: len(seen) == 1)
    ((parent, context),) = seen
    assert parent == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert not context.trace_flags.sampled
    assert exported.get_finished_spans() == ()


@pytest.mark.parametrize("parent", ["nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-00", ""])
async def test_odd_contexts_of_senders_begin_a_new_trace(
    tracing: Tracing, exported: InMemorySpanExporter, parent: str
) -> None:
    ran: list[int] = []

    async def handle(job: ActiveJob[Any]) -> None:
        ran.append(trace_id())

    async with Queue("emails") as queue:
        await queue.add("welcome", 1, metadata={"traceparent": parent})
        async with Worker(queue, handle, journal=tracing):
            await wait_for(lambda: len(exported.get_finished_spans()) == 1)
    (span,) = exported.get_finished_spans()
    assert span.parent is None
    assert ran == [span.context.trace_id if span.context else 0]
