"""What hooks hear about every way in, and what they decide."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from tests.ways.ways import IN_PROCESS, PIPELINE, Call, Events, Facts, Jobs, Way, over

from matador import DontRetry, Hooks, StandardRetryPolicy
from matador.observe import Journal, Metrics, Tracing
from matador.observe.journal.records import DeliveryRecord, SentRecord, decode_record
from matador.observe.journal.segments import finished
from matador.rpc import RemoteError
from matador.runtime.hooks import Sending
from matador.testing import wait_for

BAD, GOOD = 1, 2
QUICK = StandardRetryPolicy(base_delay=0.01, max_attempts=2)


async def fails_once(n: int, ctx: Any) -> int:
    if n == BAD and ctx.attempt == 1:
        raise ValueError("not yet")
    return n


@over(transports=PIPELINE)
async def test_facts_are_the_same_for_every_way_in(way: Way) -> None:
    facts = Facts()
    way.sender_hooks = [facts]
    async with way.receiving(fails_once, retry=QUICK, hooks=facts):
        await way.send(BAD)
        await way.send(GOOD)
        await wait_for(lambda: len(facts.of(BAD)) == 2 and facts.of(GOOD))
    assert [(one.way, one.name) for one in facts.sent] == [(way.fact, way.called)] * 2
    assert {one.way for one in facts.attempts} == {way.fact}
    assert {one.name for one in facts.attempts} == {way.called}
    assert {one.transport for one in facts.sent} == {one.transport for one in facts.attempts}
    ids = {one.id for one in facts.sent}
    assert {one.id for one in facts.attempts} == ids
    assert len(ids) == 2
    retry, success = facts.of(BAD)
    assert (retry.outcome, retry.attempt, retry.error_type) == ("retry", 1, "ValueError")
    assert (success.outcome, success.attempt, success.error) == ("success", 2, None)
    assert retry.reason == "failed"
    assert retry.wait >= 0
    assert retry.duration >= 0


@over(ways=[Call], transports=PIPELINE)
async def test_facts_of_a_call(way: Way) -> None:
    facts = Facts()
    way.sender_hooks = [facts]
    async with way.receiving(fails_once, hooks=facts):
        assert await way.send(GOOD) == GOOD
        await wait_for(lambda: facts.attempts)
    (sent,), (attempt,) = facts.sent, facts.attempts
    assert (sent.way, sent.name, sent.id) == (attempt.way, attempt.name, attempt.id)
    assert (attempt.outcome, attempt.result) == ("success", GOOD)


class Labels(Hooks):
    """Adds metadata to what is sent."""

    def __init__(self) -> None:
        self.sending: list[Sending] = []

    def load_universal_metadata(self) -> Mapping[str, Any]:
        return {"region": "eu", "tags": ["a", "b"]}

    def on_send_enter(self, event: Sending) -> None:
        self.sending.append(event)
        event.metadata["traceparent"] = "00-1"


@over(also=[Call], transports=IN_PROCESS)
async def test_metadata_of_hooks_travels_with_the_message(way: Way) -> None:
    facts, labels = Facts(), Labels()
    metadata: list[Mapping[str, Any]] = []
    way.sender_hooks = [facts, labels]

    async def handle(n: int, ctx: Any) -> None:
        metadata.append(ctx.metadata)

    hooks = [facts, labels] if isinstance(way, Events) else [facts]
    async with way.receiving(handle, hooks=hooks):
        await way.send(GOOD)
        await wait_for(lambda: facts.of(GOOD))
    tags = ["a", "b"] if way.fact in ("event", "job") else '["a","b"]'  # in a header
    assert metadata == [{"region": "eu", "tags": tags, "traceparent": "00-1"}]
    assert [one.metadata for one in facts.sent] == metadata
    (sending,) = labels.sending
    assert (sending.way, sending.names, sending.count) == (way.fact, (way.called,), 1)


@over(also=[Call], transports=IN_PROCESS)
async def test_the_journal_and_the_metrics_count_a_message_once(way: Way, tmp_path: Path) -> None:
    facts, journal, metrics = Facts(), Journal(tmp_path / "journal"), Metrics()
    way.sender_hooks = hooks = [facts, journal, metrics]
    async with way.receiving(broken, retry=QUICK, hooks=hooks) as receiver:
        await way.send(GOOD, correlation_id="good")
        await wait_for(lambda: facts.of(GOOD))
        assert receiver.metrics().messages_succeeded == 1
        sender = way._sender or receiver
        assert sender.metrics().messages_sent == 1
        if isinstance(way, Call):
            with pytest.raises(RemoteError):
                await way.send(BAD, correlation_id="bad")
        else:
            await way.send(BAD, correlation_id="bad")
        await wait_for(lambda: "dead-letter" in facts.outcomes(BAD))
    await way.close()
    written = b"".join(path.read_bytes() for path in finished(tmp_path / "journal"))
    records = [decode_record(line) for line in written.splitlines()]
    sent = [one for one in records if isinstance(one, SentRecord)]
    delivered = [one for one in records if isinstance(one, DeliveryRecord)]
    assert [(one.way, one.event_key) for one in sent] == [(way.fact, way.called)] * 2
    assert [json.loads(bytes(one.data)) for one in sent] == [{"n": GOOD}, {"n": BAD}]
    if not isinstance(way, Jobs):
        assert [one.correlation_id for one in sent] == ["good", "bad"]
    good, bad = (one.id for one in sent)
    failed = "dead-letter", "ValueError", "broken"
    ends = [(bad, 1, "retry", *failed[1:]), (bad, 2, *failed)]
    if isinstance(way, Call):  # its caller was told at once
        ends = [(bad, 1, *failed)]
    assert [(one.id, one.attempt, one.outcome, one.error_type, one.error) for one in delivered] == [
        (good, 1, "success", None, None),
        *ends,
    ]
    assert {(one.way, one.event_key) for one in delivered} == {(way.fact, way.called)}
    totals = {
        sample.name: 0.0
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name in ("matador_messages_sent_total", "matador_attempts_total")
    }
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name in totals:
                totals[sample.name] += sample.value
    assert totals == {
        "matador_messages_sent_total": 2,
        "matador_attempts_total": 1 + len(ends),
    }


@over(also=[Call], transports=IN_PROCESS)
async def test_a_message_is_handled_in_the_trace_of_its_sender(way: Way) -> None:
    exported, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracing, seen = Tracing(tracer_provider=provider), list[int]()
    way.sender_hooks = [tracing]

    async def handle(n: int, ctx: Any) -> None:
        seen.append(get_current_span().get_span_context().trace_id)
        assert ctx.metadata["tenant"] == "acme"
        if n == BAD:
            raise DontRetry("amqp://me:hunter2@host is gone")

    called = isinstance(way, Call)
    async with way.receiving(handle, hooks=[tracing]):
        for n in (GOOD, BAD):
            exported.clear()
            if called and n == BAD:
                with pytest.raises(RemoteError):
                    await way.send(n, metadata={"tenant": "acme"})
            else:
                await way.send(n, metadata={"tenant": "acme"})
            await wait_for(lambda: len(exported.get_finished_spans()) == 2)
            kinds = {span.kind: span for span in exported.get_finished_spans()}
            sent = kinds[SpanKind.CLIENT if called else SpanKind.PRODUCER]
            process = kinds[SpanKind.SERVER if way.fact == "rpc" else SpanKind.CONSUMER]
            assert sent.context is not None
            assert process.parent is not None
            assert (process.parent.span_id, seen[-1]) == (
                sent.context.span_id,
                sent.context.trace_id,
            )
            assert sent.name.startswith(f"{way.verb} ")
            where = way.queue if way.outlives else way.tag  # in a queue of its receiver's own
            assert process.name.startswith(f"process {where}")
            attributes = process.attributes or {}
            if not isinstance(way, Events):
                assert attributes["matador.name"] == way.called
                assert attributes["matador.way"] == way.fact
            failed = n == BAD
            assert (process.status.status_code is StatusCode.ERROR) is failed
            assert (sent.status.status_code is StatusCode.ERROR) is (failed and called)
            assert "hunter2" not in process.to_json()
    assert len({*seen}) == 2, "a trace each"


# -- hooks that decide ----------------------------------------------------------------------------


class Deciding(Hooks):
    def __init__(self, attempts: object, delay: object) -> None:
        self._attempts, self._delay = attempts, delay

    def get_attempts(self, envelope: object) -> Any:
        return self._attempts

    async def get_retry_delay(self, envelope: object) -> Any:
        return self._delay


async def broken(n: int, ctx: Any) -> None:
    if n == BAD:
        raise ValueError("broken")


@over(transports=IN_PROCESS)
async def test_hooks_decide_about_attempts_and_delays(way: Way) -> None:
    facts = Facts()
    policy = StandardRetryPolicy(base_delay=60)
    async with way.receiving(broken, retry=policy, hooks=[facts, Deciding(4, 0.02)]):
        await way.send(BAD)
        await way.send(GOOD)
        await wait_for(lambda: "dead-letter" in facts.outcomes(BAD) and facts.of(GOOD))
        (letter,) = await way.dead_letters()
    assert [one.attempt for one in facts.of(BAD)] == [1, 2, 3, 4]
    assert {one.decision.delay for one in facts.of(BAD)[:3]} == {0.02}  # type: ignore[union-attr]
    assert letter.reason == way.because("max attempts exceeded (4)", "broken")


@over(transports=["memory"])
@pytest.mark.parametrize(
    ("attempts", "delay"), [(0, -1), ("many", "soon"), (True, float("nan")), (1.5, object())]
)
async def test_unusable_answers_of_hooks_are_ignored(
    way: Way, attempts: object, delay: object, caplog: pytest.LogCaptureFixture
) -> None:
    facts = Facts()
    async with way.receiving(broken, retry=QUICK, hooks=[facts, Deciding(attempts, delay)]):
        await way.send(BAD)
        await way.send(GOOD)
        await wait_for(lambda: "dead-letter" in facts.outcomes(BAD) and facts.of(GOOD))
    assert facts.outcomes(BAD) == ["retry", "dead-letter"]
    assert facts.of(BAD)[0].decision.delay == 0.01  # type: ignore[union-attr]
    assert "get_attempts" in caplog.text
    assert "get_retry_delay" in caplog.text
    assert "the retry policy decides instead" in caplog.text


class Broken(Hooks):
    """Raises whatever it is asked and told."""

    def on_sent(self, batch: object) -> None:
        raise RuntimeError("on_sent")

    async def on_attempted(self, batch: object) -> None:
        raise RuntimeError("on_attempted")

    def on_start(self) -> None:
        raise RuntimeError("on_start")

    async def on_stop(self) -> None:
        raise RuntimeError("on_stop")

    def on_worker_enter(self, event: object) -> None:
        raise RuntimeError("on_worker_enter")

    def on_worker_before_process(self, event: object) -> None:
        raise RuntimeError("on_worker_before_process")

    def get_attempts(self, envelope: object) -> Any:
        raise RuntimeError("get_attempts")

    def load_universal_metadata(self) -> Any:
        raise RuntimeError("load_universal_metadata")


@over(transports=IN_PROCESS)
async def test_a_hook_that_raises_breaks_nothing(way: Way) -> None:
    facts = Facts()
    way.sender_hooks = [Broken()]
    async with way.receiving(fails_once, retry=QUICK, hooks=[Broken(), facts]):
        await way.send(BAD)
        await way.send(GOOD)
        await wait_for(lambda: len(facts.of(BAD)) == 2 and facts.of(GOOD))
    assert facts.outcomes(BAD) == ["retry", "success"]
