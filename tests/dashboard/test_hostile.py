"""What hostile senders, browsers and pages of other sites try: no page breaks, nothing leaks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urljoin

import pytest
from starlette.types import Message as AsgiMessage
from tests.dashboard.conftest import HOST, Serve
from tests.dashboard.test_dead_letters import put
from tests.support.shop import QUEUE

from matador import DontRetry, Matador
from matador.channels import QueueService, channel, consume
from matador.channels.settings import QueueSettings, Settings
from matador.dashboard import live as live_pages
from matador.dashboard.letter_index import IndexFilter
from matador.jobs import ActiveJob, Queue, Worker
from matador.model.message import (
    ERROR_TYPE_HEADER,
    REASON_HEADER,
    TRACEBACK_HEADER,
    Message,
    Properties,
)
from matador.observe import History
from matador.observe.history.store import HistoryStore
from matador.pubsub import Subscriber
from matador.rpc import RpcServer
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport

Shop = Callable[..., Matador]
LETTERS = f"{QUEUE}.undeliverable"
SCRIPT = "<script>alert(1)</script>"


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    made: Any = SCRIPT
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize("mask", [(), ("card",)], ids=["shown", "masked"])
async def test_odd_payloads_have_their_pages(
    serve: Serve, shop: Shop, mask: tuple[str, ...]
) -> None:
    app = shop()
    payloads: list[dict[str, Any]] = [
        {"deep": nested(200)},
        {"deep": nested(900)},
        {"huge": "x" * 200_000, "note": SCRIPT},
        {"many": {f"{SCRIPT}{n}": n for n in range(5_000)}},
        {"number": 10**400, "float": 1e308},
        {"text": "\u202e\x00\x1b[31m\ud7ff\u2028</script>" + SCRIPT},
        {"a" * 10_000: SCRIPT},
    ]
    for data in payloads:
        await put(app, 1, error=f"{SCRIPT}\n{'é' * 5000}", **data)
    headers = {REASON_HEADER: SCRIPT, f"x-{SCRIPT}": SCRIPT * 50}
    await app.transport.connect()
    await app.transport.send(
        [Message(SCRIPT, LETTERS, body, headers) for body in (b"", b"[" * 50_000, b"\xff" * 9_000)]
    )
    await app.transport.disconnect()
    async with serve(app, mask=mask) as browser:
        number = len(payloads) + 3
        await browser.letters_known(number)
        paths = [f"/dead-letters/{at + 1}" for at in range(number)]
        paths += ["/", "/handlers", "/dead-letters", "/dead-letters?field=amount=0", "/audit"]
        paths += [f"/dead-letters/{at + 1}/edit" for at in range(number)]
        for path in [*paths, "/messages?id=id-000000"]:
            page = await browser.get(path)
            assert "<script>alert" not in page, path
            assert "\u202e" not in page, path


ODD_IDS = ["..", ".", "../../queues", "a/b?c#d%25", "%2e%2e", " a b ", "queue", "x" * 500, "é…+&="]


@pytest.mark.parametrize("name", ["emails", "a/../b"])
async def test_jobs_with_odd_ids_are_shown_retried_and_removed(
    serve: Serve, shop: Shop, name: str
) -> None:
    async def fail(job: ActiveJob[Any]) -> None:
        raise ValueError("no")

    ids = [*ODD_IDS, SCRIPT, 'x" onclick="alert(1)']
    app = shop("memory://")
    async with app:
        queue = Queue(name, provider=app.transport)
        for one in ids:
            await queue.add(SCRIPT, {"to": SCRIPT}, job_id=one, attempts=1)
        async with Worker(name, fail, provider=app.transport):
            await wait_for(lambda: _has(queue, failed=len(ids)), timeout=60)
        async with serve(app, queue) as browser:
            await browser.letters_known(len(ids))
            listed = await browser.get("/dead-letters")
            assert "<script>alert" not in listed
            for left, one in zip(reversed(range(len(ids))), ids, strict=True):
                link = f"/jobs/job?{urlencode({'queue': name, 'id': one})}"
                page = await browser.get(link)
                assert "<script>alert" not in page
                assert "onclick=" not in page.replace("&#34; onclick=", "")
                [form] = _addresses(page, _JOB_FORM)
                await browser.post(form, action="retry")
                assert await _has(queue, failed=left, waiting=1)
                asked = (await browser.post(form, 200, action="remove")).text
                [form] = _addresses(asked, _JOB_FORM)
                await browser.post(form, action="remove", sure="yes")
                assert await _has(queue, failed=left, waiting=0)


FOREIGN_IDS = [SCRIPT, 'x" onclick="alert(1)', "nul\0", "half\ud800", "", "../..?#%", "x" * 3_000]
BODIES = [
    json.dumps({SCRIPT: f"</script>{SCRIPT}\u202e"}).encode(),
    b'{"big": "' + b"x" * 1_000_000 + b'"}',
    b'"\\ud800<script>alert(1)</script>"',
    b"\xff<script>alert(1)</script>\0",
    b"[" * 50_000,
]


@pytest.mark.parametrize("kind", ["rpc", "pubsub", "channels", "jobs"])
async def test_foreign_messages_stay_text_in_every_way_in(serve: Serve, kind: str) -> None:
    transport = MemoryTransport()
    made = _receiver(kind, transport)
    await transport.connect()
    topology = made.topology
    assert topology is not None
    await (made.start() if kind == "jobs" else transport.apply_topology(topology))
    names = [topology.full_name(one.name) for one in topology.queues]
    names += [name for _, _, name in topology.dead_letter_names()]
    headers = {f"x-{SCRIPT}": SCRIPT, REASON_HEADER: SCRIPT, ERROR_TYPE_HEADER: SCRIPT}
    headers |= {TRACEBACK_HEADER: SCRIPT, "x-matador-failed-handlers": SCRIPT}
    for name in names:
        for at, id_ in enumerate(FOREIGN_IDS):
            odd = Properties(type=id_ or SCRIPT, routing_key=id_ or SCRIPT, correlation_id=id_)
            body = BODIES[at % len(BODIES)]
            assert await transport.send([Message(id_, name, body, headers, properties=odd)]) == [
                None
            ]
    async with serve(made) as browser:
        await wait_for(lambda: browser.desk.monitor.is_everything_read, timeout=60)
        await wait_for(lambda: browser.desk.index.count(IndexFilter()) > 0, timeout=60)
        numbers = browser.desk.index.numbers(IndexFilter())
        assert len(numbers) == len(FOREIGN_IDS) - browser.desk.index.unreadable
        (queue,) = (urlencode({"queue": one.name}) for one in browser.desk.sources.queues)
        paths = ["/", "/queues", "/handlers", "/workers", "/dead-letters", f"/messages?{queue}"]
        paths += [f"/dead-letters?{queue}&field=big~x", f"/dead-letters?name={quote(SCRIPT)}"]
        paths += [f"/dead-letters/{number}" for number in numbers]
        paths += [f"/messages?id={quote(one, errors='replace')}" for one in FOREIGN_IDS if one]
        for path in paths:
            page = await browser.get(path)
            assert "<script>alert" not in page, path
            assert "onclick=" not in page.replace("&#34; onclick=", ""), path
            assert "\u202e" not in page, path
            assert "\0" not in page, path
        for number in numbers:
            page = await browser.get(f"/dead-letters/{number}/edit")
            assert "<script>alert" not in page
        done = await browser.move(verb="purge", scope="all")
        assert f"{len(numbers)} of {len(numbers)} purged" in done


async def nothing(message: Any) -> None:
    """Does nothing."""


async def test_the_history_goes_on_after_what_no_database_holds(tmp_path: Path) -> None:
    transport = MemoryTransport()
    history = History(tmp_path / "history.db", interval=0.02)
    server = RpcServer(transport, queue="maths", hooks=[history])

    async def fail(message: Any) -> None:
        raise DontRetry("no")

    server.register("ADD", fail)
    async with server:
        for id_ in ("half\ud800", "whole"):
            odd = Properties(type="ADD", correlation_id=id_)
            await transport.send([Message(id_, "maths", b"1", properties=odd)])
            stored = id_.replace("\ud800", "?")
            store = HistoryStore(history.file)
            await wait_for(lambda: store.failures(stored), timeout=30)  # noqa: B023
            store.close()


def _receiver(kind: str, transport: MemoryTransport) -> Any:
    """One that receives from a queue, not started."""
    if kind == "jobs":
        return Queue("emails", provider=transport)
    if kind == "rpc":
        server = RpcServer(transport, queue="maths")
        server.register("ADD", nothing)
        return server
    if kind == "pubsub":
        subscriber = Subscriber(transport, exchange="shop", queue="analytics")
        subscriber.on("#")(nothing)
        return subscriber

    @channel("parcels")
    class Parcels:
        @consume("created")
        async def created(self, parcel: Any) -> None: ...

    settings = Settings(QueueSettings(type="memory", url="memory://"))
    return QueueService(settings, channels=[Parcels], transport=transport)


_JOB_FORM = r'action="(/jobs/job[^"]*)"'


def _addresses(page: str, pattern: str) -> list[str]:
    """The addresses in a page, as a browser understands them."""
    found = (urljoin(f"http://{HOST}/", unescape(one)) for one in re.findall(pattern, page))
    return [one.removeprefix(f"http://{HOST}") for one in found]


async def _has(queue: Queue, *, failed: int, waiting: int = 0) -> bool:
    stats = await queue.stats()
    return (stats.failed, stats.waiting) == (failed, waiting)


@pytest.mark.parametrize(
    "number", ["9" * 20, "9" * 5_000, "²", "-1", "x"], ids=lambda one: one[:20]
)
async def test_numbers_that_no_database_holds(serve: Serve, shop: Shop, number: str) -> None:
    app = shop()
    await put(app, 1)
    async with serve(app, Queue("emails", provider=app.transport)) as browser:
        assert "is gone" in await browser.get(f"/dead-letters/{number}", 404)
        assert "is gone" in await browser.get(f"/dead-letters/{number}/edit", 404)
        await browser.get(f"/dead-letters?before={number}")
        await browser.get(f"/dead-letters?field=amount=1&from={number}:")
        await browser.get(f"/jobs/queue?queue=emails&skip={number}")
        form = {"verb": "redrive", "letter": [number]}
        answer = await browser.post("/dead-letters/move", 400, **form)
        assert "Select at least one" in answer.text


@pytest.mark.parametrize("path", ["/live?page=overview", "/", "/static/style.css"])
async def test_pages_of_other_sites_can_load_nothing(serve: Serve, shop: Shop, path: str) -> None:
    app = shop()
    await put(app, 1)
    async with serve(app) as browser:
        for site in ("cross-site", "same-site"):
            headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
            answer = await browser.client.get(path, headers=headers)
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers
        # A link on another page may lead here.
        link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        assert (await browser.client.get("/", headers=link)).status_code == 200


def live_request(name: str, value: str) -> dict[str, Any]:
    """A request for a live page, with a cookie."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/live",
        "query_string": b"page=overview",
        "headers": [
            (b"host", HOST.encode()),
            (b"cookie", f"{name}={value}".encode()),
        ],
        "server": ("127.0.0.1", 8080),
        "client": ("127.0.0.1", 1),
    }


async def test_a_live_page_that_nobody_reads_ends(
    serve: Serve, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_pages, "_UNREAD", 0.05)
    app = shop()
    await put(app, 1)
    async with serve(app) as browser:
        desk = browser.desk
        await browser.get("/")
        (cookie,) = browser.client.cookies.jar
        never = asyncio.Event()
        started: list[AsgiMessage] = []

        async def send(message: AsgiMessage) -> None:
            started.append(message)
            if message["type"] == "http.response.body":
                await never.wait()

        async def receive() -> AsgiMessage:
            await never.wait()
            raise AssertionError

        scope = live_request(cookie.name, cookie.value or "")
        await asyncio.wait_for(browser.dashboard(scope, receive, send), 30)
        assert [one["type"] for one in started] == ["http.response.start", "http.response.body"]
        await wait_for(lambda: desk.streams == 0, timeout=10)


async def test_many_live_pages_are_refused_and_others_go_on(
    serve: Serve, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_pages, "MOST_STREAMS", 0)
    app = shop()
    await put(app, 1)
    async with serve(app) as browser:
        assert (await browser.client.get("/live?page=overview")).status_code == 503
        await browser.get("/")


async def test_live_pages_that_are_opened_at_once_have_the_same_limit(
    serve: Serve, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_pages, "MOST_STREAMS", 2)
    app = shop()
    await put(app, 1)
    async with serve(app) as browser:
        await browser.get("/")
        (cookie,) = browser.client.cookies.jar
        answers: list[int] = []
        done = asyncio.Event()

        async def send(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                answers.append(message["status"])

        async def receive() -> AsgiMessage:
            await done.wait()
            return {"type": "http.disconnect"}

        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                scope = live_request(cookie.name, cookie.value or "")
                tasks.create_task(browser.dashboard(scope, receive, send))
            await wait_for(lambda: len(answers) == 5)
            done.set()
        assert sorted(answers) == [200, 200, 503, 503, 503]
        assert browser.desk.streams == 0
