"""Log lines as JSON: each one line, each with the message it is about, whatever is in it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.observe.facts import job, received
from tests.support.shop import QUEUE, Handler, OrderPlaced, make_app, settled, subscribed

from matador import DontRetry, Envelope
from matador.jobs import ActiveJob, Queue, Worker
from matador.model.message import Message
from matador.observe import JsonFormatter, Received
from matador.runtime.log_context import HANDLED
from matador.testing import wait_for

LOG = logging.getLogger("shop")


class Lines(logging.Handler):
    """Keeps what was logged, formatted at once, as a handler of a stream does."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self.setFormatter(JsonFormatter({"service": "shop"}))

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        assert "\n" not in text
        self.lines.append(json.loads(text))

    def of(self, message: str) -> dict[str, Any]:
        return next(one for one in self.lines if message in one["message"])


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


async def test_lines_of_a_callback_its_tasks_and_threads_say_the_message(lines: Lines) -> None:
    async def log(*_: Any) -> None:
        LOG.info("in the callback")
        await asyncio.create_task(later())
        await asyncio.to_thread(LOG.info, "in a thread")
        raise DontRetry("no")

    async def later() -> None:
        LOG.info("in a task")

    def in_a_thread(envelope: Envelope[Any]) -> None:
        assert threading.current_thread() is not threading.main_thread()
        LOG.info("in a sync callback")

    async def plain(envelope: Envelope[Any]) -> None:
        LOG.info("in a plain callback")

    async with make_app(
        None, Handler(log), subscribed(in_a_thread, "sync"), subscribed(plain, "plain")
    ) as app:
        await app.send(OrderPlaced("o-1"), correlation_id="c-1")
        await settled(app)
        LOG.info("elsewhere")
    for text, subscriber in {
        "in the callback": "handle",
        "in a task": "handle",
        "in a thread": "handle",
        "handle of order.placed failed": "handle",
        "in a sync callback": "sync",
        "in a plain callback": "plain",
    }.items():
        line = lines.of(text)
        assert line["service"] == "shop"
        assert (line["queue"], line["subscriber"]) == (QUEUE, subscriber)
        assert (line["event"], line["correlation_id"], line["attempt"]) == (
            "order.placed",
            "c-1",
            1,
        )
        assert line["message_id"]
    assert "queue" not in lines.of("elsewhere")


async def test_a_message_that_cannot_be_read_is_not_said_to_be_the_last_one(lines: Lines) -> None:
    async with make_app(None, Handler()) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        await app.transport.send([Message("m", QUEUE, b"not an envelope")])
        await settled(app)
    line = lines.of("is malformed")
    assert (line["message_id"], line["queue"]) == ("m", QUEUE)


async def test_lines_of_a_job_say_which(lines: Lines) -> None:
    async def handle(job: ActiveJob[Any]) -> None:
        LOG.info("running")
        raise ValueError("no such address")

    async with Queue("emails") as queue, Worker(queue, handle):
        job = await queue.add("welcome", {}, attempts=1)
        await wait_for(lambda: any("failed" in one["message"] for one in lines.lines))
    for text in ("running", "failed in attempt"):
        line = lines.of(text)
        assert (line["job"], line["queue"], line["message_id"]) == ("welcome", "emails", job.id)
    assert "ValueError: no such address" in lines.of("failed in attempt")["traceback"]


class _Rude:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def test_whatever_is_logged_is_one_line_without_secrets() -> None:
    def said(message: Any, *arguments: Any, **extra: Any) -> dict[str, Any]:
        record = LOG.makeRecord("shop", logging.INFO, "f", 1, message, arguments, None, extra=extra)
        text = JsonFormatter().format(record)
        assert "\n" not in text
        return json.loads(text)

    assert said("a\nb\x00\udcff")["message"] == "a\nb\N{REPLACEMENT CHARACTER}?"
    assert "hunter2" not in json.dumps(
        said("lost amqp://me:hunter2@host", url="redis://:hunter2@host", all=["amqp://a:hunter2@b"])
    )
    assert "could not be formatted" in said("%d apples", "many")["message"]
    assert said("%s", "x", size=2**80)["size"]
    assert said("x", rude=_Rude())["rude"] == "<_Rude>"
    assert said("x", matador_queue="q", time="mine", many=float("nan"))["queue"] == "q"
    assert said("x", time="mine")["time"] != "mine"
    assert len(said("x" * 1_000_000)["message"]) < 40_000


def test_the_fields_of_a_message_of_any_way_in() -> None:
    def line(message: Received, **extra: Any) -> dict[str, Any]:
        record = LOG.makeRecord("shop", logging.INFO, "f", 1, "said", (), None, extra=extra)
        token = HANDLED.set(message)
        try:
            return json.loads(JsonFormatter().format(record))
        finally:
            HANDLED.reset(token)

    event, of_job = line(received(correlation_id="c-1")), line(received(**job()))
    assert (event["event"], event["subscriber"]) == ("order.placed", "handle")
    assert (event["message_id"], event["correlation_id"], event["attempt"]) == ("m-1", "c-1", 1)
    assert (of_job["job"], of_job["job_queue"]) == ("welcome", "emails")
    assert (of_job["queue"], "correlation_id" in of_job) == ("bull:emails", False)
    overridden = line(received(**job()), matador_job="another", matador_queue=None)
    assert (overridden["job"], overridden["queue"]) == ("another", "bull:emails")


def test_an_error_is_a_field() -> None:
    try:
        raise ValueError("amqp://me:hunter2@host is down")
    except ValueError as error:
        record = LOG.makeRecord(
            "shop", logging.ERROR, "f", 1, "it failed", (), (type(error), error, None)
        )
    line = json.loads(JsonFormatter().format(record))
    assert (line["error_type"], "hunter2" in json.dumps(line)) == ("ValueError", False)
    assert "ValueError" in line["traceback"]
