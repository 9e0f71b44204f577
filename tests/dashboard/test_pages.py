"""The other pages: what they show, and what they say when they cannot."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.conftest import Serve, fail_orders
from tests.support.shop import OrderPlaced

from matador import Matador
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
        assert "50% of the attempts" in page or "% of the attempts of charge" in page
        for period in ("15m", "24h", "7d", "nonsense"):
            assert 'class="chart"' in await browser.get(f"/?period={period}")
        events = await browser.get("/events")
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
        await wait_for(lambda: browser.desk.monitor.snapshot.problem is not None, timeout=30)
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
    assert again.attempts_by_worker(now - 3600)
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
        raise ValueError(f"<b>no</b> {job.data['card']}")

    app = shop("memory://")
    async with app:
        emails = Queue("emails", provider=app.transport)
        await emails.add("welcome", {"card": "4111"}, attempts=1, job_id="one/1")
        await emails.add("welcome", {"card": "4222"}, attempts=1, job_id="two")
        await emails.schedule("nightly", "report", {}, cron="0 3 * * *")
        async with Worker("emails", fail, provider=app.transport):
            await wait_for(lambda: _failed(emails, 2), timeout=30)
        async with serve(app, job_queues=[emails], mask=("card",)) as browser:
            page = await browser.get("/jobs")
            assert "nightly" in page
            assert "0 3 * * *" in page
            listed = await browser.get("/jobs/queue?queue=emails&status=failed")
            assert "one/1" in listed
            assert "&lt;b&gt;no&lt;/b&gt;" in listed
            one = await browser.get("/jobs/job?queue=emails&id=one/1")
            assert "&#34;card&#34;: &#34;••••••&#34;" in one
            await browser.post("/jobs/queue?queue=emails", action="pause")
            assert "paused" in await browser.get("/jobs")
            await browser.post("/jobs/job?queue=emails&id=one/1", action="retry")
            asked = await browser.post("/jobs/job?queue=emails&id=two", 200, action="remove")
            assert "would be removed for good" in asked.text
            assert (await emails.stats()).failed == 1  # nothing happened yet
            await browser.post("/jobs/job?queue=emails&id=two", action="remove", sure="yes")
            stats = await emails.stats()
            assert (stats.failed, stats.waiting, stats.paused) == (0, 1, True)
            await browser.post("/jobs/queue?queue=emails", action="resume")
            await browser.post("/jobs/job?queue=emails&id=nobody", 404, action="remove")
            await browser.post("/jobs/job?queue=emails&id=nobody", 404, action="remove", sure="yes")
            await browser.post("/jobs/job?queue=emails&id=nobody", 404, action="retry")
            await browser.post("/jobs/job?queue=emails&id=one/1", 409, action="retry")
            await browser.post("/jobs/queue?queue=other", 404, action="pause")
            await browser.get("/jobs/queue?queue=other", 404)
            await browser.get("/jobs/queue?queue=emails&status=nonsense", 404)
            audit = await browser.get("/audit")
            for action in ("pause jobs", "retry job", "remove job", "resume jobs"):
                assert action in audit


async def _failed(queue: Queue, number: int) -> bool:
    return (await queue.stats()).failed == number


async def test_all_failed_jobs_are_retried(serve: Serve, shop: Shop) -> None:
    async def fail(job: ActiveJob[Any]) -> None:
        raise ValueError("no")

    app = shop("memory://")
    async with app:
        emails = Queue("emails", provider=app.transport)
        for _ in range(3):
            await emails.add("welcome", {}, attempts=1)
        async with Worker("emails", fail, provider=app.transport):
            await wait_for(lambda: _failed(emails, 3), timeout=30)
        async with serve(app, job_queues=[emails]) as browser:
            await browser.post("/jobs/queue?queue=emails", action="retry-all")
            assert (await emails.stats()).waiting == 3


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
            part = await rendered(browser.desk, session, name, {})
            assert "<html" not in part
            assert part.strip()
        row = re.search(r'class="n" data-label="Undeliverable">.*?</td>', page)
        assert row is not None
        assert row[0] in await rendered(browser.desk, session, "queues", {})


async def test_a_broker_that_is_gone_is_said_and_found_again(serve: Serve, shop: Shop) -> None:
    app = shop()
    await fail_orders(app, [500])
    async with serve(app) as browser:
        await browser.letters_known(1)
        await app.transport.disconnect()
        browser.desk.monitor.look_soon()
        await wait_for(lambda: browser.desk.monitor.snapshot.problem is not None, timeout=30)
        page = await browser.get("/")
        assert "problem" in page
        await browser.post("/dead-letters/1/edit", 503, payload="{}")
        await app.transport.connect()
        browser.desk.monitor.look_soon()
        await wait_for(lambda: browser.desk.monitor.snapshot.problem is None, timeout=30)


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
        await wait_for(lambda: browser.desk.monitor.snapshot.problem is not None)
        for path in ("/", "/queues", "/events", "/dead-letters", "/workers", "/jobs", "/audit"):
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

    async def refused() -> None:
        raise ConfigurationError("this database is of a newer version")

    monkeypatch.setattr(app.transport, "connect", refused)
    with pytest.raises(ConfigurationError, match="newer version"):
        async with serve(app):
            pytest.fail("it has started")
