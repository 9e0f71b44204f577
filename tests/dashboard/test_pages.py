"""The other pages: what they show, and what they say when they cannot."""

from __future__ import annotations

import asyncio
import html
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.dashboard.conftest import Serve, depth, fail_orders
from tests.support.shop import OrderPlaced, subscribed
from tests.ways.places import place_on

from matador import Matador, Schema, Topology
from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.dashboard import link
from matador.dashboard.journal_reader import read_new_segments
from matador.dashboard.live import PARTS, rendered
from matador.dashboard.stats import read_stats
from matador.errors import ConfigurationError, ConnectionFailedError
from matador.jobs import ActiveJob, Queue, Worker
from matador.observe import History, Journal
from matador.observe.history.store import HistoryStore
from matador.testing import wait_for

Shop = Callable[..., Matador]


async def test_the_overview_says_what_is_wrong_and_since_when(serve: Serve, shop: Shop) -> None:
    app = shop()
    await fail_orders(app, [500, 1])
    async with serve(app) as browser:
        await wait_for(lambda: browser.desk.monitor.snapshot.dead == 1, timeout=30)
        await wait_for(lambda: browser.desk.store.dead_since("events") is not None, timeout=30)
        page = await browser.get("/")
        assert "1 problem" in page
        assert "1 dead letter of events" in page
        assert "since <time" in page
        assert "No worker reports here yet" in page


async def test_the_overview_says_that_nothing_is_wrong(serve: Serve, shop: Shop) -> None:
    app = shop()
    await fail_orders(app, [1])
    async with serve(app) as browser:
        await wait_for(lambda: browser.desk.monitor.snapshot.at > 0, timeout=30)
        assert "Nothing is wrong" in await browser.get("/")


async def test_charts_have_their_style(serve: Serve, shop: Shop) -> None:
    async with serve(shop()) as browser:
        page = await browser.get("/")
        sheets = re.findall(r'<link rel="stylesheet" href="([^"]+)">', page)
        assert sheets == ["/static/charts.css", "/static/style.css"]
        found = await browser.client.get(sheets[0])
        assert found.headers["content-type"].startswith("text/css")
        assert "svg.chart" in found.text


async def test_a_history_shows_throughput_failures_and_workers(
    serve: Serve, shop: Shop, tmp_path: Path
) -> None:
    file = tmp_path / "history.db"
    app = shop(hooks=[History(file, interval=0.05)])
    await fail_orders(app, [500, 1, 2])
    async with serve(shop()) as browser:
        await wait_for(lambda: browser.desk.monitor.snapshot.dead == 1, timeout=30)
        page = await browser.get("/")
        assert "handled a minute" in page
        assert "% of the attempts fail: order.placed for charge" in page
        for chart in ("Attempts by outcome", "Running time of subscribers"):
            assert chart in page
        zone = f"{datetime.now().astimezone():%Z}"
        assert re.search(rf"<time[^>]*>[-0-9]+ [:0-9]+ {zone}</time>", page)
        assert f'text-anchor="end">{zone}</text>' in page
        for period in ("15m", "24h", "7d", "nonsense"):
            page = await browser.get(f"/?period={period}")
            assert page.count('role="img" aria-label="Chart: ') == page.count('class="chart"') > 0
        events = await browser.get("/handlers")
        assert "failing" in events
        assert "3 attempts" in events
        workers = await browser.get("/workers")
        assert "stopped" in workers
        queues = await browser.get("/queues")
        assert "shop.events" in queues
        assert file.stat().st_mode & 0o777 == 0o600


async def test_a_worker_says_what_it_does_now_and_is_lost_when_it_dies(
    serve: Serve, shop: Shop, tmp_path: Path
) -> None:
    history = History(tmp_path / "history.db", interval=0.05)
    app = shop(hooks=[history])
    release = asyncio.Event()
    app = _blocked(app, release)
    async with app:
        await app.send(OrderPlaced("slow", 1))
        async with serve(shop()) as browser:
            await wait_for(
                lambda: any(one.running for one in browser.desk.store.workers(0)), timeout=30
            )
            page = await browser.get("/workers")
            assert "alive" in page
            assert "charge" in page
            release.set()
            await wait_for(
                lambda: not any(one.running for one in browser.desk.store.workers(0)), timeout=30
            )
            assert "Idle." in await browser.get("/workers")
    store = HistoryStore(tmp_path / "history.db")
    (state,) = store.workers(0)
    assert state.stopped_at is not None
    async with serve(shop()) as browser:
        await wait_for(lambda: browser.desk.monitor.snapshot.queues, timeout=30)
        assert "was lost" not in await browser.get("/")
    dead = type(state)(state.name, state.host, 1, 1.0, time.time() - 60, None, queues=state.queues)
    store.record("worker", dead, dead.name, {})
    store.close()
    async with serve(shop()) as browser:
        assert "lost" in await browser.get("/workers")
        await wait_for(lambda: browser.desk.monitor.snapshot.queues, timeout=30)
        page = await browser.get("/")
        assert "no worker consumes events any more: the last one was lost" in page


async def test_a_worker_of_jobs_says_what_it_does_now(serve: Serve, tmp_path: Path) -> None:
    jobs, release = Queue("emails", provider=f"sqlite:///{tmp_path}/jobs.db"), asyncio.Event()

    @jobs.job
    async def welcome() -> None:
        await release.wait()

    history = History(tmp_path / "history.db", interval=0.05)
    async with Worker(jobs, hooks=[history]), serve(jobs) as browser:
        job = await jobs.add("welcome")
        store = browser.desk.store
        await wait_for(lambda: any(one.running for one in store.workers(0)), timeout=30)
        page = await browser.get("/workers")
        assert job.id in page
        assert ">welcome (job)<" in page
        assert "Idle." not in page
        release.set()
        await wait_for(lambda: not any(one.running for one in store.workers(0)), timeout=30)


async def test_a_database_that_was_deleted_is_a_problem(
    serve: Serve, shop: Shop, tmp_path: Path
) -> None:
    app = shop()
    async with app:
        pass
    async with serve(app) as browser:
        await wait_for(lambda: browser.desk.monitor.snapshot.queues, timeout=30)
        assert "Nothing is wrong" in await browser.get("/")
        (tmp_path / "shop.db").unlink()
        await wait_for(lambda: browser.desk.monitor.snapshot.problems, timeout=30)
        page = await browser.get("/")
        assert "was deleted or replaced" in page
        assert "Nothing is wrong" not in page


def _blocked(app: Matador, release: asyncio.Event) -> Matador:
    from tests.support.shop import subscribed

    from matador import Schema

    async def wait(envelope: Any) -> None:
        await release.wait()

    return app.with_(schema=Schema({OrderPlaced: [subscribed(wait, "charge")]}))


async def test_pausing_a_queue_is_recorded_and_what_is_odd_is_refused(
    serve: Serve, shop: Shop, tmp_path: Path
) -> None:
    app = shop()
    await fail_orders(app, [1])
    async with serve(app) as browser:
        await browser.post("/queues/change?queue=events", action="pause")
        await browser.post("/queues/change?queue=shop.events", action="resume")
        await browser.post("/queues/change?queue=events", 400, action="delete")
        await browser.post("/queues/change?queue=%3Cb%3E", 404, action="pause")
        await browser.post("/queues/change?queue=shop.events.undeliverable", 404, action="pause")
        assert (
            await browser.raw_post("/queues/change?queue=events", {"action": "pause"})
        ).status_code == 403
        page = await browser.get("/audit")
        assert "pause queue" in page
    lines = (tmp_path / "history.db.audit.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [(one["action"], one["queue"]) for one in entries] == [
        ("pause queue", "shop.events"),
        ("resume queue", "shop.events"),
    ]


async def test_a_worker_goes_on_when_the_history_cannot_be_written(
    shop: Shop, tmp_path: Path
) -> None:
    (tmp_path / "broken.db").write_text("this is no database, it is a text of some length " * 50)
    await fail_orders(shop(hooks=[History(tmp_path / "broken.db", interval=0.01)]), [1, 2])


async def test_a_message_is_found_with_every_attempt(
    serve: Serve, shop: Shop, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    hooks = [journal, History(tmp_path / "history.db", interval=0.05)]
    await fail_orders(shop(hooks=hooks), [500, 7])
    async with serve(shop(hooks=[journal])) as browser:
        await browser.letters_known(1)
        (entry,) = browser.desk.index.find("c0")
        page = await browser.get(f"/messages?id={entry.id}")
        assert "order o0 of 500 was declined" in page
        assert "Traceback (most recent call last)" in page
        assert "attempt 1" in page
        assert "&#34;amount&#34;: 500" in page
        assert "Edit and redrive" in page
        correlated = await browser.get("/messages?id=c1")
        assert "success" in correlated
        assert "&#34;amount&#34;: 7" in correlated
        assert "from the journal" in correlated
        nothing = await browser.get("/messages?id=nobody")
        assert "No attempt is recorded" in nothing


async def test_a_waiting_message_is_found(serve: Serve, shop: Shop) -> None:
    app = shop().producer()
    async with app:
        await app.send(OrderPlaced("later", 3), delay=600, correlation_id="tomorrow")
    async with serve(shop()) as browser:
        page = await browser.get("/messages?id=tomorrow")
        assert page.count("delayed in shop.events") == 2
        assert "no journal" in page


async def test_the_history_is_read_from_the_journal_once(shop: Shop, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    await fail_orders(shop(hooks=[journal]), [500, 1, 2])
    store = HistoryStore(tmp_path / "history.db")
    now = time.time()
    assert read_new_segments(journal.folder, store, now) == 1
    assert read_new_segments(journal.folder, store, now) == 0
    store.close()
    again = HistoryStore(tmp_path / "history.db")
    assert read_new_segments(journal.folder, again, now) == 0
    stats = read_stats(again, "1h", now)
    assert sum(map(sum, stats.outcomes.values())) == 6
    assert stats.edges["order.placed", "charge"].totals == {"success": 2, "dead-letter": 1}
    assert again.attempts_by_worker(now - 3600, "journal")
    again.close()


async def test_a_journal_with_foreign_lines_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    (folder / f"{stamp}-a-1-b-000001.jsonl").write_bytes(
        b'not json\n{"kind": "other"}\n\xff\xfe\n' + b"[" * 100_000 + b"\n"
    )
    store = HistoryStore(tmp_path / "history.db")
    assert read_new_segments(folder, store, time.time()) == 1
    store.close()


async def test_jobs_are_listed_paused_retried_and_removed(serve: Serve, shop: Shop) -> None:
    async def fail(job: ActiveJob[Any]) -> None:
        await job.update_progress(40)
        raise ValueError(f"<b>no</b> {job.data['card']}")

    app = shop("memory://")
    async with app:
        emails = Queue("emails", provider=app.transport)
        await emails.add("welcome", {"card": "4111"}, attempts=1, job_id="one/1")
        await emails.add("welcome", {"card": "4222"}, attempts=1, job_id="two")
        async with Worker("emails", fail, provider=app.transport):
            await wait_for(lambda: _failed(emails, 2), timeout=30)
        async with serve(app, emails, mask=("card",)) as browser:
            await browser.letters_known(2)
            listed = await browser.get("/dead-letters?queue=emails")
            assert "&lt;b&gt;no&lt;/b&gt;" in listed
            assert "2 failed jobs of emails" in await browser.get("/")
            (letter,) = set(browser.desk.index.find("one/1"))
            page = await browser.get(f"/dead-letters/{letter.number}")
            assert "&#34;card&#34;: &#34;••••••&#34;" in page
            assert "in fail" in page  # its traceback
            one = await browser.get("/jobs/job?queue=emails&id=one/1")
            assert "&#34;card&#34;: &#34;••••••&#34;" in one
            assert "40" in one
            assert f'href="/dead-letters/{letter.number}"' in one
            found = await browser.get("/messages?id=two")
            assert found.count("<h2><code>two</code>") == 1
            await browser.post("/queues/change?queue=emails", action="pause", back="/jobs")
            assert "paused" in await browser.get("/jobs")
            await browser.post("/jobs/job?queue=emails&id=one/1", action="retry")
            assert "welcome" in await browser.get("/jobs/queue?queue=emails&status=waiting")
            asked = await browser.post("/jobs/job?queue=emails&id=two", 200, action="remove")
            assert "would be removed for good" in asked.text
            assert (await emails.stats()).failed == 1  # nothing happened yet
            await browser.post("/jobs/job?queue=emails&id=two", action="remove", sure="yes")
            stats = await emails.stats()
            assert (stats.failed, stats.waiting, stats.paused) == (0, 1, True)
            await browser.post("/queues/change?queue=emails", action="resume")
            await browser.post("/jobs/job?queue=emails&id=nobody", 404, action="remove")
            await browser.post("/jobs/job?queue=emails&id=nobody", 404, action="remove", sure="yes")
            await browser.post("/jobs/job?queue=emails&id=nobody", 404, action="retry")
            await browser.post("/jobs/job?queue=emails&id=one/1", 409, action="retry")
            await browser.get("/jobs/queue?queue=other", 404)
            await browser.get("/jobs/queue?queue=emails&status=nonsense", 404)
            audit = await browser.get("/audit")
            for action in ("pause queue", "retry job", "remove job", "resume queue"):
                assert action in audit


async def _failed(queue: Queue, number: int) -> bool:
    return (await queue.stats()).failed == number


@pytest.mark.parametrize(
    "transport", ["memory", "sqlite", pytest.param("redis", marks=pytest.mark.broker)]
)
async def test_schedules_run_now_pause_and_end(
    transport: str, serve: Serve, tmp_path: Path
) -> None:
    async with place_on(transport, tmp_path) as place:
        emails = Queue("emails", provider=place.open(jobs=True))
        async with emails, serve(emails) as browser:
            key = "<b>nightly"
            await emails.schedule(key, "report", {"to": "ada"}, cron="0 3 * * *", attempts=7)
            page = await browser.get("/jobs")
            assert "&lt;b&gt;nightly" in page
            assert "0 3 * * *" in page
            path = f"/jobs/schedule?{urlencode({'queue': 'emails', 'key': key})}"
            assert html.escape(path) in page
            await browser.post(path, action="run")
            (job,) = await emails.list("waiting")
            assert (job.name, job.data, job.max_attempts) == ("report", {"to": "ada"}, 7)

            await browser.post(path, action="pause")
            await emails.schedule(key, "report", {"to": "bob"}, cron="0 3 * * *")  # a restart
            (schedule,) = await emails.schedules()
            assert (schedule.paused, schedule.next_at) == (True, None)
            assert ">paused</span>" in await browser.get("/jobs")
            async with Worker("emails", _succeed, provider=emails.provider):
                await wait_for(lambda: _waiting(emails, 0), timeout=30)
            assert (await emails.stats()).delayed <= 1  # BullMQ keeps the next job of a schedule
            await browser.post(path, action="resume")
            (schedule,) = await emails.schedules()
            assert not schedule.paused
            assert schedule.next_at is not None
            assert schedule.next_at - datetime.now(UTC) < timedelta(days=1, hours=1)

            asked = await browser.post(path, 200, action="remove")
            assert "would not run any more" in asked.text
            assert len(await emails.schedules()) == 1
            await browser.post(path, action="remove", sure="yes")
            assert await emails.schedules() == []
            for action in ("run", "pause", "resume"):
                await browser.post(path, 404, action=action)
            await browser.post(path, 404, action="remove", sure="yes")
            await browser.post(path, 404, action="delete")
            audit = await browser.get("/audit")
            for action in ("run schedule", "pause schedule", "resume schedule", "remove schedule"):
                assert action in audit


async def _succeed(job: ActiveJob[Any]) -> None:
    """Does nothing."""


async def _waiting(queue: Queue, number: int) -> bool:
    stats = await queue.stats()
    return stats.waiting + stats.active == number


def order_on(page: str, *names: str) -> list[str]:
    """The names, in the order in which a page has them as the names of rows; only those it has."""
    places = {one: page.find(f">{one}</a>") for one in names}
    return sorted((one for one in names if places[one] >= 0), key=lambda one: places[one])


async def test_queues_are_searched_sorted_and_shown_in_parts(serve: Serve, tmp_path: Path) -> None:
    names = ["emails", "invoices", *(f"q{number:03}" for number in range(120))]
    app = Matador(
        f"sqlite:///{tmp_path}/shop.db",
        schema=Schema({OrderPlaced: [subscribed(_nothing, "one", queue="invoices")]}),
        topology=Topology("shop", queues=names),
        consume_from=[],
    )
    async with app:
        await app.send(OrderPlaced("1", 1))
    async with serve(app) as browser:
        await wait_for(lambda: browser.desk.monitor.snapshot.queues, timeout=30)
        page = await browser.get("/queues")
        assert order_on(page, "emails", "invoices", "q097", "q098") == [*names[:2], "q097"]
        assert "More of 122" in page
        rest = await browser.get("/queues?from=100")
        assert order_on(rest, "emails", "q097", "q098", "q119") == ["q098", "q119"]
        found = await browser.get("/queues?q=INVOICE")
        assert order_on(found, *names) == ["invoices"]
        assert 'value="INVOICE"' in found
        assert "No queue matches." in await browser.get("/queues?q=nothing")
        first = await browser.get("/queues?sort=waiting")
        assert order_on(first, "emails", "invoices") == ["invoices", "emails"]
        session = next(iter(browser.desk.sessions._sessions.values()))
        live = await rendered(browser.desk, session, "queues", {"q": "email"})
        assert order_on(live, *names) == ["emails"]
        for odd in ("from=-1", "from=99999999999", "sort=nonsense", "q=%00<b>"):
            assert "<b>" not in (await browser.get(f"/queues?{odd}")).partition("<main")[2][:2000]


async def test_consumers_of_one_name_have_a_row_each(serve: Serve, tmp_path: Path) -> None:
    @channel("orders")
    class Orders:
        @consume("created")
        async def created(self, order: dict[str, int]) -> None: ...

    @channel("audit")
    class Audit:
        @consume("created")
        async def noted(self, order: dict[str, int]) -> None: ...

    queue = QueueSettings(type="sqlite", url=f"sqlite:///{tmp_path / 'orders.db'}")
    async with serve(QueueService(Settings(queue), channels=[Orders, Audit])) as browser:
        page = await browser.get("/handlers")
        assert "<h2>orders, audit</h2>" in page
        for channel_, function in (("orders", "Orders.created"), ("audit", "Audit.noted")):
            assert f"{function}</span><small>queue {channel_}.created</small>" in page


async def test_a_delayed_message_does_not_wait(serve: Serve, shop: Shop) -> None:
    app = shop()
    async with app.producer() as producer:
        stored = (await producer.send(OrderPlaced("1", 1), delay=3600)).sent
    async with serve(app) as browser:
        await wait_for(lambda: browser.desk.monitor.snapshot.queues, timeout=30)
        page = await browser.get("/")
        assert f'<b>0</b><span><a href="/queues">waiting, {stored} delayed</a>' in page


async def test_handlers_are_searched_and_sorted(serve: Serve, shop: Shop) -> None:
    app = shop()
    await fail_orders(app, [500])
    async with serve(app) as browser:
        await browser.letters_known(1)
        page = await browser.get("/handlers?sort=dead+letters")
        assert page.index("<h2>order.placed") < page.index("<h2>order.paid")
        found = await browser.get("/handlers?q=book")
        assert "<h2>order.paid" in found
        assert "<h2>order.placed" not in found
        assert "Nothing matches." in await browser.get("/handlers?q=nothing")


async def test_the_page_of_a_queue_shows_it_alone_and_cancels_what_waits(
    serve: Serve, shop: Shop, tmp_path: Path
) -> None:
    history = History(tmp_path / "history.db", interval=0.05)
    await fail_orders(shop(hooks=[history]), [500, 1])
    app = shop()
    async with app.producer() as sender:
        for number in range(3):
            await sender.send(OrderPlaced(f"waits{number}", 1))
    async with serve(app) as browser:
        await wait_for(lambda: browser.desk.monitor.snapshot.queues, timeout=30)
        page = await browser.get("/queues/queue?queue=events")
        assert "shop.events" in page
        assert "What became of every attempt: attempts in 1 min each." in page
        boxes = re.findall(r'name="message" value="([^"]+)"', page)
        assert len(boxes) == 6  # two subscribers each
        await browser.get("/queues/queue?queue=nothing", 404)
        await browser.post("/queues/cancel?queue=nothing", 404, message=boxes[:2])
        await browser.post("/queues/cancel?queue=events", 400)
        asked = await browser.post("/queues/cancel?queue=events", 200, message=boxes[:2])
        assert "2 messages of events would be deleted" in asked.text
        assert (await depth(app)).total == 6
        done = await browser.post("/queues/cancel?queue=events", 200, message=boxes[:2], sure="yes")
        assert "2 messages canceled." in done.text
        again = await browser.post(
            "/queues/cancel?queue=events", 200, message=boxes[1:3], sure="yes"
        )
        assert "1 message canceled. 1 message handled, or gone, in the meantime." in again.text
        assert (await depth(app)).total == 3
        audit = await browser.get("/audit")
        assert boxes[0].split(" ")[0] in audit


async def test_the_latest_attempts_are_listed(serve: Serve, shop: Shop, tmp_path: Path) -> None:
    async with serve(shop()) as browser:
        assert "No attempt is recorded." in await browser.get("/messages")
    history = History(tmp_path / "history.db", interval=0.05)
    await fail_orders(shop(hooks=[history]), [500, 1])
    async with serve(shop()) as browser:
        page = await browser.get("/messages")
        assert "only failed attempts are known" in page
        assert (page.count(">dead-letter</span>"), page.count(">success</span>")) == (1, 0)
    app = shop(hooks=[Journal(tmp_path / "journal")])
    await fail_orders(app, [1, 2])
    async with serve(app) as browser:
        page = await browser.get("/messages")
        assert page.count(">success</span>") == 4
        assert page.count('<a href="/messages?id=') == 4


async def _nothing(envelope: Any) -> None: ...


async def test_pages_without_jobs_or_a_lake_say_so(serve: Serve, shop: Shop) -> None:
    async with serve(shop()) as browser:
        assert "No job queue is known" in await browser.get("/jobs")
        assert "started without a lake" in await browser.get("/lake")
        await browser.get("/lake/report", 404)
        await browser.post("/lake/query", 404, sql="SELECT 1")
        assert "no such page" in await browser.get("/nowhere", 404)


async def test_sql_is_off_while_fields_are_masked(serve: Serve, shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "lake" / "events").mkdir(parents=True)
    async with serve(shop(), lake=tmp_path / "lake", mask=("amount",)) as browser:
        assert "so it is off" in await browser.get("/lake")
        await browser.post("/lake/query", 403, sql="SELECT * FROM events")


async def test_every_live_part_is_what_its_page_shows(serve: Serve, shop: Shop) -> None:
    app = shop()
    await fail_orders(app, [500])
    async with serve(app) as browser:
        await browser.letters_known(1)
        page = await browser.get("/queues")
        session = next(iter(browser.desk.sessions._sessions.values()))
        for name in set(PARTS) - {"move", "lake", "replay"}:
            part = await rendered(browser.desk, session, name, {"queue": "events"})
            assert "<html" not in part
            assert part.strip()
        row = re.search(r'class="n" data-label="Dead letters">.*?</td>', page)
        assert row is not None
        assert row[0] in await rendered(browser.desk, session, "queues", {})


async def test_a_broker_that_is_gone_is_said_and_found_again(serve: Serve, shop: Shop) -> None:
    app = shop()
    await fail_orders(app, [500])
    async with serve(app) as browser:
        await browser.letters_known(1)
        await app.transport.disconnect()
        browser.desk.monitor.look_soon()
        await wait_for(lambda: browser.desk.monitor.snapshot.problems, timeout=30)
        page = await browser.get("/")
        assert "problem" in page
        await browser.post("/dead-letters/1/edit", 503, payload="{}")
        await app.transport.connect()
        browser.desk.monitor.look_soon()
        await wait_for(lambda: not browser.desk.monitor.snapshot.problems, timeout=30)


async def test_a_broker_that_is_down_at_the_start_is_waited_for(
    serve: Serve, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = shop()
    await fail_orders(app, [500])
    monkeypatch.setattr(link, "_FIRST_PAUSE", 0.01)
    connect, failures = app.transport.connect, 3

    async def refused() -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ConnectionFailedError("cannot reach the broker; start it")
        await asyncio.wait_for(may_connect.wait(), 60)
        await connect()

    may_connect = asyncio.Event()
    monkeypatch.setattr(app.transport, "connect", refused)
    async with serve(app) as browser:
        await wait_for(lambda: failures < 0)
        await wait_for(lambda: browser.desk.monitor.snapshot.problems)
        for path in ("/", "/queues", "/handlers", "/dead-letters", "/workers", "/jobs", "/audit"):
            assert "1 dead letter of events" not in await browser.get(path)
        assert "the connection to sqlite is" in await browser.get("/")
        may_connect.set()
        await browser.letters_known(1)
        await wait_for(lambda: browser.desk.monitor.snapshot.dead == 1, timeout=30)
        assert "1 dead letter of events" in await browser.get("/")


async def test_what_will_not_pass_ends_the_start(
    serve: Serve, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = shop()
    await fail_orders(app, [1])

    async def refused() -> None:
        raise ConfigurationError("this database is of a newer version")

    monkeypatch.setattr(app.transport, "connect", refused)
    with pytest.raises(ConfigurationError, match="newer version"):
        async with serve(app):
            pytest.fail("it has started")
