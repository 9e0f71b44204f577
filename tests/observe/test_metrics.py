"""Metrics for Prometheus: what is counted, under which names, and what senders cannot do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.support.promtool import promtool
from tests.support.shop import QUEUE, OrderPlaced, failing, make_app, settled

from matador import DontRetry, JsonCodec, StandardRetryPolicy
from matador.errors import ConfigurationError
from matador.jobs import ActiveJob, Queue, Worker
from matador.model.message import Message
from matador.observe import Journal, PrometheusMetrics, Recorders
from matador.observe.series import BUCKETS, Series
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RemoteError, RpcClient, RpcServer, RpcTimeoutError
from matador.testing import make_docket, make_envelope, wait_for

EVENT = {"way": "event", "queue": QUEUE, "name": "order.placed", "subscriber": "handle"}


def value(metrics: PrometheusMetrics, name: str, labels: Mapping[str, str]) -> float | None:
    return metrics.registry.get_sample_value(name, dict(labels))


async def test_what_is_sent_and_handled_is_counted() -> None:
    metrics = PrometheusMetrics()
    handler = failing(ValueError("once"), None, DontRetry("never"))
    retry = StandardRetryPolicy(base_delay=0)
    app = make_app(None, handler, hooks=metrics, retry=retry)
    metrics.watch(app)
    async with app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        await app.send(OrderPlaced("o-2"))
        await settled(app)
        await metrics.refresh()
        text = metrics.text()
        assert value(metrics, "matador_connection_up", {"transport": "memory"}) == 1
        depth = {"queue": QUEUE, "state": "ready"}
        assert value(metrics, "matador_queue_depth", depth) == 0
        letters = {"queue": QUEUE, "kind": "undeliverable"}
        assert value(metrics, "matador_dead_letter_depth", letters) == 1
        assert value(metrics, "matador_queue_oldest_seconds", {"queue": QUEUE}) == 0
        assert value(metrics, "matador_concurrency", {"queue": QUEUE}) == 10
    assert value(metrics, "matador_messages_sent_total", EVENT) == 2
    for outcome, number in {"success": 1, "retry": 1, "dead-letter": 1}.items():
        assert value(metrics, "matador_attempts_total", EVENT | {"outcome": outcome}) == number
    assert value(metrics, "matador_dead_letters_total", EVENT) == 1
    for histogram in ("matador_attempt_duration_seconds", "matador_wait_seconds"):
        assert value(metrics, f"{histogram}_count", EVENT) == 3
    assert value(metrics, "matador_connection_up", {"transport": "memory"}) == 0
    promtool("check", "metrics", text=text)


async def test_a_send_that_fails_is_counted() -> None:
    metrics = PrometheusMetrics()
    app = make_app(None, failing(), hooks=metrics, consume_from=[], send_errors="report")
    async with app:
        await app.transport.disconnect()
        result = await app.send(OrderPlaced("o-1"))
    assert result.errors
    assert value(metrics, "matador_send_errors_total", EVENT) == 1
    assert value(metrics, "matador_messages_sent_total", EVENT) is None


async def test_names_that_only_the_sender_knows_are_no_labels() -> None:
    metrics = PrometheusMetrics()
    async with make_app(None, failing(), hooks=metrics) as app:
        for number in range(5):
            docket = make_docket(event_key=f"made.up.{number}", subscriber="nobody")
            envelope = make_envelope(msgspec.Raw(b"{}"), docket=docket)
            message = JsonCodec().encode(envelope)
            await app.transport.send([Message(f"m-{number}", QUEUE, message.body, message.headers)])
        await app.transport.send([Message("m", QUEUE, b"not an envelope")])
        await settled(app)
    unknown = EVENT | {"name": "unknown", "subscriber": "unknown", "outcome": "dead-letter"}
    assert value(metrics, "matador_attempts_total", unknown) == 6
    assert value(metrics, "matador_malformed_total", {"queue": QUEUE}) == 1
    assert b"made.up" not in metrics.text()


async def test_names_of_jobs_and_commands_that_nobody_handles_are_no_labels() -> None:
    metrics = PrometheusMetrics()
    url = "memory://?name=test-made-up-names"
    server = RpcServer(url, queue="maths", journal=metrics)

    @server.handler("ADD")
    async def add(request: int) -> int:
        return request + 1

    async def handle(job: ActiveJob[Any]) -> None: ...

    queue = Queue("emails", provider=url)
    worker = Worker(queue, {"welcome": handle}, journal=metrics)
    async with server, RpcClient(url, queue="maths") as client, queue, worker:
        for number in range(5):
            await queue.add(f"made-up-{number}", {})
            with pytest.raises(RemoteError, match="No handler"):
                await client.call(f"made-up-{number}", 1, timeout=30)
        await queue.add("welcome", {})
        assert await client.call("ADD", 1, timeout=30) == 2
        refused = {"name": "unknown", "outcome": "dead-letter", "queue": "emails"}
        refused |= {"subscriber": "emails", "way": "job"}
        unknown = {"name": "unknown", "queue": "maths", "subscriber": "maths", "way": "rpc"}

        def counted() -> bool:
            text = metrics.text().decode()
            jobs = value(metrics, "matador_attempts_total", refused) == 5
            calls = unknown | {"outcome": "discard"}
            ran = 'name="ADD",outcome="success"' in text and 'name="welcome",outcome=' in text
            return jobs and ran and value(metrics, "matador_attempts_total", calls) == 5

        await wait_for(counted, message="all to be counted")
    assert value(metrics, "matador_attempt_duration_seconds_count", unknown) is None, "none ran"
    assert b"made-up" not in metrics.text().lower()


async def test_a_call_that_arrives_after_its_deadline_is_no_success() -> None:
    metrics = PrometheusMetrics()
    url = "memory://?name=test-late-call"
    server = RpcServer(url, queue="maths", concurrency=1, journal=metrics)
    began, go_on = asyncio.Event(), asyncio.Event()

    @server.handler("WORK")
    async def work(request: int) -> None:
        began.set()
        await go_on.wait()

    async with server, RpcClient(url, queue="maths") as client:
        first = asyncio.create_task(client.call("WORK", 1, timeout=30))
        await began.wait()
        with pytest.raises(RpcTimeoutError):
            await client.call("WORK", 2, timeout=0.05)
        go_on.set()
        await first
        of = {"name": "WORK", "queue": "maths", "subscriber": "maths", "way": "rpc"}
        late = of | {"outcome": "discard"}
        await wait_for(
            lambda: value(metrics, "matador_attempts_total", late) == 1,
            message="the late call to be counted",
        )
    assert value(metrics, "matador_attempts_total", of | {"outcome": "success"}) == 1
    assert value(metrics, "matador_attempt_duration_seconds_count", of) == 1, "it did not run"


def test_the_number_of_series_is_bounded_and_any_text_is_a_label() -> None:
    metrics = PrometheusMetrics(max_series=3)
    for number in range(50):
        series = metrics._of("job", f"queue {number}\udcff\n", f'name "{number}', "emails")
        series.ended("success", True, 0.1, -5.0)
    lines = metrics.text().decode().splitlines()
    counted = [line for line in lines if line.startswith("matador_attempts_total{")]
    assert len(counted) <= 3 + 3 + 1, "known series, queues of others, other queues"
    assert sum(float(line.rsplit(" ", 1)[1]) for line in counted) == 50
    waits = [line for line in lines if line.startswith("matador_wait_seconds_sum")]
    assert all(line.endswith(" 0.0") for line in waits), "clocks differ, but no wait is negative"
    promtool("check", "metrics", text=metrics.text())


def test_a_registry_of_its_own_unless_one_is_given() -> None:
    mine = CollectorRegistry()
    assert PrometheusMetrics(registry=mine).registry is mine
    assert PrometheusMetrics().registry is not PrometheusMetrics().registry
    with pytest.raises(ConfigurationError, match="max_series"):
        PrometheusMetrics(max_series=0)
    with pytest.raises(ConfigurationError, match="cannot be watched"):
        PrometheusMetrics().watch(object())  # pyright: ignore[reportArgumentType]


async def test_jobs_are_counted_with_their_way(tmp_path: Any) -> None:
    async def handle(job: ActiveJob[Any]) -> None:
        if job.name == "bad":
            raise ValueError("no such address")

    metrics, journal = PrometheusMetrics(), Journal(tmp_path / "journal")
    both = Recorders(journal, metrics)
    async with Queue("emails", journal=both) as queue:
        worker = Worker(queue, handle)
        metrics.watch(worker)
        async with worker:
            await queue.add("welcome", {})
            await queue.add("bad", {}, attempts=1)

            def done() -> bool:
                text = metrics.text().decode()
                return 'name="welcome",outcome="success"' in text and 'outcome="dead-' in text

            await wait_for(done, message="both jobs to be counted")
            await metrics.refresh()
            assert worker.health().status == "healthy"
            assert 'matador_dead_letter_depth{kind="failed",queue="emails"} 1.0' in (
                metrics.text().decode()
            )
            await worker.pause()
            assert worker.health().queues[0].receiving, "paused on purpose is not stalled"
    assert any((tmp_path / "journal").iterdir()), "the journal recorded them, too"


async def test_rpc_and_pubsub_show_their_own_counters() -> None:
    metrics = PrometheusMetrics()
    url = "memory://?name=test-metrics"
    server = RpcServer(url, queue="maths")

    @server.handler("ADD")
    async def add(request: dict[str, int]) -> int:
        return request["a"] + 1

    client = RpcClient(url, queue="maths")
    subscriber = Subscriber(url, exchange="events", queue="analytics")
    got: list[object] = []

    @subscriber.on("orders.*")
    async def orders(message: dict[str, int]) -> None:
        got.append(message)

    publisher = Publisher(url, exchange="events")
    metrics.watch(server, client, subscriber, publisher)
    async with server, client, subscriber, publisher:
        assert await client.call("ADD", {"a": 1}, timeout=30) == 2
        await publisher.publish("orders.created", {"id": 1})
        await wait_for(lambda: bool(got), message="the message")
        for name, label, of in (
            ("matador_rpc_requests_total", "queue", "maths"),
            ("matador_rpc_calls_total", "queue", "maths"),
            ("matador_messages_consumed_total", "queue", "analytics"),
            ("matador_messages_published_total", "exchange", "events"),
        ):
            labels = {label: of, "status": "success"}
            await wait_for(lambda n=name, x=labels: value(metrics, n, x) == 1, message=name)
        promtool("check", "metrics", text=metrics.text())


async def test_a_broker_that_does_not_answer_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("matador.observe.watching._ASK_LIMIT", 0.1)
    caplog.set_level("INFO", "matador.metrics")
    metrics = PrometheusMetrics()
    app = make_app(None, failing(), hooks=metrics)
    metrics.watch(app)
    asked: list[str] = []

    async def never(queue: str) -> None:
        asked.append(queue)
        await asyncio.Event().wait()

    async with app:
        monkeypatch.setattr(app.transport, "depth", never)
        for _ in range(5):
            await metrics.refresh(0.001)
            assert b"matador_queue_depth{" not in metrics.text()
        assert len(asked) == 1, "one question at a time"
        await wait_for(lambda: bool(caplog.messages), message="a line in the log")
    assert caplog.messages == [
        "the depths of queues are unknown for now: the broker did not answer within 0.1 s"
    ]


def test_many_successes_are_counted_as_one_by_one() -> None:
    created = datetime(2026, 11, 17, tzinfo=UTC)
    docket = make_docket(created_at=created)
    draw = random.Random(7)
    edges = (-1.0, 0.0, *BUCKETS, BUCKETS[-1] * 2)
    # Binary fractions, or the start of an attempt would round an edge away.
    waits = [round(one * 1024) / 1024 for one in edges] * 3
    waits += [draw.choice((0.0, 1.5, 1.75, 40.0, 90.0)) for _ in range(200)]
    successes = [
        (docket, created.timestamp() + wait, draw.choice(edges[1:]), "an id", 1) for wait in waits
    ]
    together, alone = (Series(("a", "b", "c", "d"), BUCKETS) for _ in range(2))
    together.succeeded(successes[:100])
    together.succeeded(successes[100:])
    for (_, _, duration, _, _), wait in zip(successes, waits, strict=True):
        alone.ended("success", True, duration, wait)
    assert together.durations == alone.durations
    assert together.waits == alone.waits
    assert together.outcomes == alone.outcomes
    assert together.wait == pytest.approx(alone.wait)
    assert together.duration == pytest.approx(alone.duration)
