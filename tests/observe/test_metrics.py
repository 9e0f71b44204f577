"""Metrics for Prometheus: what is counted, under which names, and what senders cannot do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.observe.facts import CREATED, attempt, job, received, sent
from tests.support.promtool import promtool
from tests.support.shop import QUEUE, OrderPlaced, failing, make_app, settled

from matador import DontRetry, JsonCodec, StandardRetryPolicy
from matador.channels import QueueService, QueueSettings, Settings, consume
from matador.errors import ConfigurationError, LeaseLostError, MatadorError
from matador.jobs import ActiveJob, Queue, Worker
from matador.model.message import Message, Settlement
from matador.observe import Journal, Metrics, NotSent
from matador.observe.series import BUCKETS
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RemoteError, RpcClient, RpcServer, RpcTimeoutError
from matador.runtime import metrics as counted
from matador.runtime.health import Health, health_status
from matador.runtime.hooks import TransportFallback
from matador.testing import make_docket, make_envelope, wait_for
from matador.transports.memory import MemoryTransport

EVENT = {"way": "event", "queue": QUEUE, "name": "order.placed", "subscriber": "handle"}


def value(metrics: Metrics, name: str, labels: Mapping[str, str]) -> float | None:
    return metrics.registry.get_sample_value(name, dict(labels))


async def test_what_is_sent_and_handled_is_counted() -> None:
    metrics = Metrics()
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
        depth = {"queue": QUEUE, "state": "waiting"}
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
    metrics = Metrics()
    app = make_app(None, failing(), hooks=metrics, consume_from=[], send_errors="report")
    async with app:
        await app.transport.disconnect()
        result = await app.send(OrderPlaced("o-1"))
    assert result.errors
    assert value(metrics, "matador_send_errors_total", EVENT) == 1
    assert value(metrics, "matador_messages_sent_total", EVENT) is None


async def test_names_that_only_the_sender_knows_are_no_labels() -> None:
    metrics = Metrics()
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
    metrics = Metrics()
    url = "memory://?name=test-made-up-names"
    server = RpcServer(url, queue="maths", hooks=[metrics])

    @server.handler("ADD")
    async def add(request: int) -> int:
        return request + 1

    async def handle(job: ActiveJob[Any]) -> None: ...

    queue = Queue("emails", provider=url)
    worker = Worker(queue, {"welcome": handle}, hooks=[metrics])
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
    metrics = Metrics()
    url = "memory://?name=test-late-call"
    server = RpcServer(url, queue="maths", concurrency=1, hooks=[metrics])
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
    metrics = Metrics(max_series=3)
    for number in range(50):
        message = received(**job(queue=f"queue {number}\udcff\n", name=f'name "{number}'))
        metrics.on_attempted([attempt(message, started_at=CREATED - 5)])
    lines = metrics.text().decode().splitlines()
    counted = [line for line in lines if line.startswith("matador_attempts_total{")]
    assert len(counted) <= 3 + 3 + 1, "known series, queues of others, other queues"
    assert sum(float(line.rsplit(" ", 1)[1]) for line in counted) == 50
    waits = [line for line in lines if line.startswith("matador_wait_seconds_sum")]
    assert all(line.endswith(" 0.0") for line in waits), "clocks differ, but no wait is negative"
    promtool("check", "metrics", text=metrics.text())


def test_a_registry_of_its_own_unless_one_is_given() -> None:
    mine = CollectorRegistry()
    assert Metrics(registry=mine).registry is mine
    assert Metrics().registry is not Metrics().registry
    with pytest.raises(ConfigurationError, match="max_series"):
        Metrics(max_series=0)
    with pytest.raises(ConfigurationError, match="cannot be watched"):
        Metrics().watch(object())  # pyright: ignore[reportArgumentType]


async def test_jobs_are_counted_with_their_way(tmp_path: Any) -> None:
    async def handle(job: ActiveJob[Any]) -> None:
        if job.name == "bad":
            raise ValueError("no such address")

    metrics, journal = Metrics(), Journal(tmp_path / "journal")
    both = [journal, metrics]
    async with Queue("emails", hooks=both) as queue:
        worker = Worker(queue, handle, hooks=both)
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
            assert worker.consumer_health[0].receiving, "paused on purpose is not stalled"
    assert any((tmp_path / "journal").iterdir()), "the journal recorded them, too"


async def test_rpc_and_pubsub_are_counted_once() -> None:
    metrics = Metrics()
    url, hooks = "memory://?name=test-metrics", [metrics]
    server = RpcServer(url, queue="maths", hooks=hooks)

    @server.handler("ADD")
    async def add(request: dict[str, int]) -> int:
        return request["a"] + 1

    client = RpcClient(url, queue="maths", hooks=hooks)
    subscriber = Subscriber(url, exchange="events", queue="analytics", hooks=hooks)

    @subscriber.on("orders.*")
    async def orders(message: dict[str, int]) -> None: ...

    publisher = Publisher(url, exchange="events", hooks=hooks)
    metrics.watch(server, client, subscriber, publisher)
    call = {"way": "rpc", "queue": "maths", "name": "ADD", "subscriber": "maths"}
    message = {"way": "message", "name": "orders.created"}
    published = message | {"queue": "events", "subscriber": "events"}
    consumed = message | {"queue": "analytics", "subscriber": "analytics"}
    async with server, client, subscriber, publisher:
        assert await client.call("ADD", {"a": 1}, timeout=30) == 2
        await publisher.publish("orders.created", {"id": 1})
        for labels in (call, consumed):
            done = labels | {"outcome": "success"}
            await wait_for(lambda x=done: value(metrics, "matador_attempts_total", x) == 1)
        for labels in (call, published):
            assert value(metrics, "matador_messages_sent_total", labels) == 1
        labels = {"transport": server.transport.name}
        assert value(metrics, "matador_connection_up", labels) == 1
        assert value(metrics, "matador_connection_losses_total", labels) == 0
        await metrics.refresh()
        for queue in ("maths", "analytics"):
            depth = {"queue": queue, "state": "waiting"}
            assert value(metrics, "matador_queue_depth", depth) == 0
            assert value(metrics, "matador_dead_letter_depth", {"queue": queue, "kind": "dlq"}) == 0
        promtool("check", "metrics", text=metrics.text())


async def test_a_broker_that_does_not_answer_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("matador.observe.watching._ASK_LIMIT", 0.1)
    caplog.set_level("INFO", "matador.metrics")
    metrics = Metrics()
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
        assert len(asked) == len(set(asked)), "one question at a time"
        await wait_for(lambda: bool(caplog.messages), message="a line in the log")
    assert caplog.messages == [
        "the depths of queues are unknown for now: the broker did not answer within 0.1 s"
    ]


class Refusing(MemoryTransport):
    """Has lost the leases of some messages when they are settled."""

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        outcomes = list(await super().settle(settlements))
        lost = LeaseLostError("it has another receiver")
        return [lost if number % 2 else one for number, one in enumerate(outcomes)]


async def test_only_what_is_settled_is_counted() -> None:
    metrics = Metrics()
    async with make_app(Refusing(), failing(), hooks=metrics) as app:
        await app.send_many([OrderPlaced("good"), OrderPlaced("good")])
        await settled(app)
    counted = metrics.registry.get_sample_value
    number = counted("matador_attempts_total", EVENT | {"outcome": "success"})
    assert number == counted("matador_wait_seconds_count", EVENT) == 1


def test_a_batch_is_counted_as_its_attempts_one_by_one() -> None:
    draw = random.Random(7)
    edges = (-1.0, 0.0, *BUCKETS, BUCKETS[-1] * 2)
    # Binary fractions, or the start of an attempt would round an edge away.
    waits = [round(one * 1024) / 1024 for one in edges] * 3
    waits += [draw.choice((0.0, 1.5, 1.75, 40.0, 90.0)) for _ in range(200)]
    kinds: list[dict[str, Any]] = [{}, job(), {"known": False}, {"due_at": CREATED}]
    attempts = [
        attempt(
            received(**draw.choice(kinds)),
            started_at=CREATED + wait,
            duration=draw.choice(edges[1:]),
            outcome=draw.choice(("success", "success", "retry", "dead-letter")),
            ran=draw.random() < 0.9,
        )
        for wait in waits
    ]
    together, alone = Metrics(), Metrics()
    together.on_attempted(attempts[:100])
    together.on_attempted(attempts[100:])
    for one in attempts:
        alone.on_attempted([one])

    def samples(metrics: Metrics) -> dict[Any, float]:
        return {
            (one.name, *sorted(one.labels.items())): one.value
            for family in metrics.registry.collect()
            for one in family.samples
        }

    assert samples(together) == pytest.approx(samples(alone))
    counted = [
        number for key, number in samples(alone).items() if key[0].endswith("attempts_total")
    ]
    assert sum(counted) == len(attempts)


def test_facts_of_every_way_in() -> None:
    metrics = Metrics()
    error = ValueError("no")
    metrics.on_sent([sent(), sent(), sent(**job())])
    metrics.on_attempted(
        [
            attempt(),
            attempt(received(**job())),
            attempt(received(known=False), ran=False, error=error, outcome="dead-letter"),
            attempt(received(**job(known=False)), ran=False, error=error, outcome="dead-letter"),
            attempt(malformed=True, ran=False, error=error, outcome="dead-letter"),
        ]
    )
    metrics.on_enqueue_error(NotSent(sent(), error))
    metrics.on_transport_fallback(TransportFallback("m-1", "q", "redis", "sqlite", error))
    jobs = {"way": "job", "queue": "bull:emails", "name": "welcome", "subscriber": "emails"}
    unknown = EVENT | {"name": "unknown", "subscriber": "unknown", "outcome": "dead-letter"}
    for name, labels, number in (
        ("messages_sent", EVENT, 2),
        ("messages_sent", jobs, 1),
        ("send_errors", EVENT, 1),
        ("attempts", EVENT | {"outcome": "success"}, 1),
        ("attempts", jobs | {"outcome": "success"}, 1),
        ("attempts", unknown, 2),
        ("attempts", jobs | {"name": "unknown", "outcome": "dead-letter"}, 1),
        ("malformed", {"queue": QUEUE}, 1),
        ("transport_fallbacks", {"failed": "redis", "next": "sqlite"}, 1),
    ):
        assert value(metrics, f"matador_{name}_total", labels) == number, (name, labels)
    assert value(metrics, "matador_wait_seconds_sum", EVENT) == 0.25
    assert value(metrics, "matador_attempt_duration_seconds_count", EVENT) == 1
    promtool("check", "metrics", text=metrics.text())


async def test_a_queue_service_can_be_watched() -> None:
    metrics = Metrics()

    @consume("created", channel="orders")
    async def created(order: dict[str, int]) -> None:
        raise DontRetry("no")

    settings = Settings(QueueSettings(type="memory", url="memory://?name=watched"))
    service = QueueService(settings, channels=[created])
    metrics.watch(service)
    async with service:
        await service.send("orders", "created", {"id": 1})
        await wait_for(lambda: service.metrics().messages_dead_lettered == 1)
        assert await service.wait_idle(5)
        await metrics.refresh()
        queue = {"queue": "orders.created"}
        assert value(metrics, "matador_queue_depth", queue | {"state": "waiting"}) == 0
        assert value(metrics, "matador_dead_letter_depth", queue | {"kind": "dlq"}) == 1
        labels = {"transport": service.transport.name}
        assert value(metrics, "matador_connection_up", labels) == 1
        assert value(metrics, "matador_connection_recoveries_total", labels) == 0


class Service:
    """Something that can be watched."""

    def __init__(self, status: Any, losses: int) -> None:
        self._health = Health(health_status(status), status)
        self.consumer_health = ()
        self._metrics = counted.Metrics(connection_losses=losses, connection_recoveries=losses - 1)

    def health(self) -> Health:
        return self._health

    def metrics(self) -> counted.Metrics:
        return self._metrics


def test_services_of_one_kind_share_a_series() -> None:
    metrics = Metrics().watch(Service("connected", 2), Service("reconnecting", 3))
    assert value(metrics, "matador_connection_up", {"transport": "Service"}) == 0
    assert value(metrics, "matador_connection_losses_total", {"transport": "Service"}) == 5
    assert value(metrics, "matador_connection_recoveries_total", {"transport": "Service"}) == 3
    promtool("check", "metrics", text=metrics.text())
