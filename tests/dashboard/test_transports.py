"""Every page on every transport: shows failures, redrives them, and says what it cannot show."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.conftest import SCHEMA, Browser, Serve, depth
from tests.support.brokers import broker_url
from tests.support.kafka import forget_topics
from tests.support.rabbitmq import Raw
from tests.support.redis import forget_keys
from tests.support.shop import OrderPlaced
from tests.support.sqs import CREDENTIALS, forget_queues

from matador import Matador, Topology
from matador.observe import History
from matador.testing import wait_for
from matador.transports import (
    MemoryTransport,
    MultiTransport,
    RabbitMQTransport,
    SqliteTransport,
)

PAGES = [
    *("/", "/queues", "/handlers", "/jobs", "/messages", "/dead-letters", "/workers", "/lake"),
    *("/audit", "/?period=24h", "/dead-letters?error=declined", "/dead-letters?field=amount>100"),
]
LETTERS = 3
PAUSE = (
    "cannot pause a queue for all of its workers; stop the workers instead: messages wait in the "
    "queue."
)
BY_TAKING = "shows messages only by taking them, so the age of the oldest message is not shown."
SAID = {
    "memory": [],
    "sqlite": [],
    "group": [],
    "redis": [],
    "bullmq": [],
    "rabbitmq": [f"rabbitmq {BY_TAKING}", f"rabbitmq {PAUSE}"],
    "sqs": [
        "sqs cannot show messages, so the age of the oldest message is not shown.",
        f"sqs {PAUSE}",
    ],
    "kafka": [f"kafka {PAUSE}"],
}
"""What the page of queues says of a transport."""

broker = pytest.mark.broker


@asynccontextmanager
async def shop_on(name: str, folder: Path, history: Path) -> AsyncGenerator[Matador]:
    """A shop on a broker, in a namespace of its own, which ends with it."""
    namespace = f"dash{uuid.uuid4().hex[:8]}"
    server = "redis" if name == "bullmq" else name
    local = {"memory": "memory://", "sqlite": f"sqlite:///{folder}/shop.db", "group": ""}
    url = local[name] if name in local else broker_url(server)
    given = url.replace("redis://", "bullmq://") if name == "bullmq" else url
    app = Matador(
        group_in(folder) if name == "group" else given,
        schema=SCHEMA,
        topology=Topology(namespace, queues=["events"]),
        consume_from=["events"],
        hooks=[History(history)],
    )
    try:
        yield app
    finally:
        match name:
            case "rabbitmq":
                with Raw(url) as raw:
                    raw.delete([app.topology])
            case "redis":
                await forget_keys(url, namespace)
            case "bullmq":
                await forget_keys(url, f"bull:{namespace}")
            case "sqs":
                await forget_queues(url, namespace)
            case "kafka":
                await asyncio.to_thread(forget_topics, url, namespace)
            case _:
                pass


def group_in(folder: Path) -> MultiTransport:
    """A group in which each transport gets every other message."""
    names = cycle(["sqlite", "memory"])
    members = [SqliteTransport(folder / "shop.db"), MemoryTransport()]
    return MultiTransport(members, choose=lambda: next(names))


@pytest.mark.parametrize(
    "name",
    [
        "memory",
        "sqlite",
        "group",
        *(pytest.param(one, marks=broker) for one in ("redis", "bullmq", "rabbitmq", "sqs")),
        pytest.param("kafka", marks=[broker, pytest.mark.kafka]),
    ],
)
async def test_every_page_shows_failures_and_says_what_it_cannot_show(
    name: str, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in CREDENTIALS.items():
        monkeypatch.setenv(variable, value)
    history = tmp_path / "history.db"
    async with (
        shop_on(name, tmp_path, history) as app,
        app,
        serve(app, history=history) as browser,
    ):
        for number in range(LETTERS):
            await app.send(OrderPlaced(f"<b>o{number}</b>", 500), correlation_id=f"c{number}")
        await app.send(OrderPlaced("paid", 5))
        monitor = browser.desk.monitor
        if monitor.counts_messages:
            await wait_for(lambda: monitor.snapshot.dead == LETTERS, timeout=60)
            await wait_for(lambda: says(browser, "/", f"{LETTERS} dead letters of events"))
        await wait_for(lambda: says(browser, "/dead-letters", f"{LETTERS} dead letters"))

        for path in PAGES:
            assert "<b>o" not in await browser.get(path), path
        queues = await browser.get("/queues")
        assert list(monitor.snapshot.cannot) == SAID[name]
        assert all(one in queues for one in SAID[name])
        await wait_for(lambda: says(browser, "/handlers", "failing"))
        await wait_for(lambda: says(browser, "/workers", "alive"))
        assert await says(browser, "/dead-letters?field=amount>100", "Looked at 3 dead letters")

        await pauses_and_resumes(browser, app)

        letter = re.search(r'href="(/dead-letters/\d+)"', await browser.get("/dead-letters"))
        assert letter is not None
        page = await browser.get(letter[1])
        assert "was declined" in page
        assert "&lt;b&gt;o" in page
        found = await browser.get("/messages?id=c1")
        assert "order &lt;b&gt;o1&lt;/b&gt; of 500 was declined" in found

        # Redriven, they fail again: they come back as new letters.
        assert f"{LETTERS} of {LETTERS} redriven" in await browser.move(verb="redrive", scope="all")
        await wait_for(lambda: is_dead_again(browser, app), timeout=60)
        assert f"{LETTERS} of {LETTERS} purged" in await browser.move(verb="purge", scope="all")
        await wait_for(lambda: says(browser, "/dead-letters?look=1", "No dead letters."))


def ready(browser: Browser) -> int:
    """How many messages the one queue has that a worker could receive."""
    (view,) = browser.desk.monitor.snapshot.queues
    return view.counts.depth.ready if view.counts.depth is not None else 0


async def says(browser: Browser, path: str, text: str) -> bool:
    """Does a page say it?"""
    return text in await browser.get(path)


async def pauses_and_resumes(browser: Browser, app: Matador) -> None:
    """The page pauses a queue and resumes it; where it cannot, it refuses."""
    if not app.transport.capabilities.pause:
        assert ">Pause</button>" not in await browser.get("/queues")
        refused = await browser.post("/queues/change?queue=events", 409, action="pause")
        assert "stop the workers instead" in refused.text
        return
    handled = [one.handled for one in app.consumer_health]
    await browser.post("/queues/change?queue=events", action="pause")
    page = await browser.get("/queues")
    assert ">paused</span>" in page
    assert ">Resume</button>" in page
    assert await says(browser, "/", "events is paused: no worker receives its messages")
    await app.send(OrderPlaced("while paused", 5))
    await wait_for(lambda: depth_is(app, 2))
    health = app.health()
    assert health.status == "healthy"
    assert [(one.handled, one.receiving) for one in app.consumer_health] == [(handled[0], True)]
    await browser.post("/queues/change?queue=events", action="resume")
    assert ">paused</span>" not in await browser.get("/queues")
    await wait_for(lambda: depth_is(app, 0), timeout=10)


async def depth_is(app: Matador, number: int) -> bool:
    """Has the queue so many messages?"""
    return (await depth(app, app.topology.full_name("events"))).total == number


async def is_dead_again(browser: Browser, app: Matador) -> bool:
    """Has every redriven message failed a second time?"""
    letters: list[Any] = [one async for one in app.dead_letters.browse()]
    if sorted(one.envelope.docket.attempts for one in letters) != [1] * LETTERS:
        return False
    return await says(browser, "/dead-letters?look=1", f"{LETTERS} dead letters")


async def test_a_group_says_which_of_its_transports_is_not_counted(
    serve: Serve, tmp_path: Path
) -> None:
    members = [SqliteTransport(tmp_path / "shop.db"), RabbitMQTransport("amqp://127.0.0.1:1")]
    app = Matador(
        MultiTransport(members), schema=SCHEMA, topology=Topology("shop", queues=["events"])
    )
    async with app, serve(app) as browser:
        await app.send(OrderPlaced("o-1", 5))
        await wait_for(lambda: says(browser, "/queues", "its messages are not counted"))
        await wait_for(lambda: ready(browser) == 2, message="a message for each subscriber")
        assert "rabbitmq is failed: its messages are not counted." in await browser.get("/queues")
