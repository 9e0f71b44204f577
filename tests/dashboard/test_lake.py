"""The page of the lake: report, SQL, and a replay that is counted, confirmed and sent."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import pytest_asyncio
from tests.dashboard.conftest import HOST, READER, Browser, Serve, depth, fail_orders
from tests.support.s3 import SECRET, s3_folder, s3_options

from matador import Matador
from matador.observe import Journal
from matador.testing import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.slow]


@pytest.mark.timeout(600)
async def test_the_lake_is_queried_reported_and_replayed(
    serve: Serve, shop: Callable[..., Matador], tmp_path: Path
) -> None:
    from matador.spark import Lake

    app = shop(hooks=[Journal(tmp_path / "journal")])
    await fail_orders(app, [500, 1, 2])
    lake = Lake(tmp_path / "lake", schema=app.schema)
    lake.ingest(tmp_path / "journal")
    async with serve(app, lake=tmp_path / "lake") as browser:
        desk = browser.desk.lake
        assert desk is not None
        sql = "SELECT outcome, count(*) AS n FROM deliveries GROUP BY 1 ORDER BY 1"
        answer = await browser.post("/lake/query", 200, sql=sql)
        assert "dead-letter" in answer.text
        for wrong in ("DROP TABLE events", "SELECT nonsense FROM events", "SELECT", ""):
            refused = await browser.post("/lake/query", 400, sql=wrong)
            assert 'role="alert"' in refused.text
        twice = await browser.post("/lake/query", 200, sql="SELECT 11 AS n, 22 AS n, 33 AS n_2")
        for name, value in (("n", 11), ("n_3", 22), ("n_2", 33)):
            assert f'<td data-label="{name}">{value}</td>' in twice.text
        cut = await browser.post("/lake/query", 200, sql="SELECT repeat('x', 301) AS n")
        assert f">{'x' * 300}…</td>" in cut.text
        long = await browser.post("/lake/query", 400, sql="SELECT 1 --" + "x" * 10_000)
        assert "the query has 10,011 characters; at most 10,000 are allowed" in long.text

        await browser.post("/lake/report")
        await wait_for(lambda: desk.report is not None, timeout=120)
        report = await browser.client.get("/lake/report")
        assert "Reconciliation" in report.text
        assert "sandbox" in report.headers["content-security-policy"]

        bad = await browser.post("/lake/replays", event="order.nothing")
        replay = desk.find(bad.headers["location"].rpartition("/")[2])
        assert replay is not None
        await wait_for(lambda: replay.state == "failed", timeout=60)
        assert "Nothing was sent." in await browser.get(bad.headers["location"])

        begun = await browser.post(
            "/lake/replays", event="order.placed", subscriber="charge", where="data.amount < 100"
        )
        location = begun.headers["location"]
        found = desk.find(location.rpartition("/")[2])
        assert found is not None
        await wait_for(lambda: found.state == "counted", timeout=120)
        assert "<b>2 messages</b> would be sent" in await browser.get(location)
        assert (await depth(app)).ready == 0
        await browser.post(f"{location}/confirm")
        await wait_for(lambda: found.state in ("done", "failed"), timeout=120)
        assert (found.state, found.problem, found.sent) == ("done", None, 2)
        assert (await depth(app)).ready == 2
        await browser.post(f"{location}/confirm", 409)
        audit = await browser.get("/audit")
        assert "replay done" in audit
        assert "nonsense" in audit


ENDLESS = "SELECT count(*) FROM range(1000000000000000) WHERE id % 7 = 3"
# Stopped after two minutes by no interrupt of Spark, as it is one call of Java's.
BACKTRACKING = "SELECT rlike(concat(repeat('x', 60), '!'), '^(x+x+)+\\\\1y$')"
GREEDY = "SELECT size(collect_list(repeat('x', 1000000) || id)) FROM range(100000)"


@pytest_asyncio.fixture
async def lake(shop: Callable[..., Matador], tmp_path: Path) -> Matador:
    """The application of a small lake in the folder ``lake``."""
    from matador.spark import Lake

    app = shop(hooks=[Journal(tmp_path / "journal")])
    await fail_orders(app, [1])
    Lake(tmp_path / "lake", schema=app.schema).ingest(tmp_path / "journal")
    return app


def runs(pid: int) -> bool:
    """Is there a process with this id?"""
    return Path(f"/proc/{pid}").exists()


def processes() -> dict[int, str]:
    """The processes that answer queries, with those that they have started."""
    found: dict[int, str] = {}
    for child in multiprocessing.active_children():
        if child.name == "matador-lake-query" and child.pid is not None:
            ours = subprocess.run(
                ["ps", "-o", "pid=,comm=", "--sid", str(child.pid)],
                capture_output=True,
                text=True,
                check=False,
            )
            rows = (line.split(None, 1) for line in ours.stdout.splitlines())
            found |= {int(pid): name for pid, name in rows}
    return found


@pytest.mark.timeout(600)
async def test_a_query_that_takes_too_long_or_is_left_is_stopped(
    serve: Serve, lake: Matador, tmp_path: Path
) -> None:
    async with serve(lake, lake=tmp_path / "lake") as browser:
        assert browser.desk.lake is not None
        queries = browser.desk.lake.queries
        await browser.post("/lake/query", 200, sql="SELECT 1 AS x")  # Spark has started
        before = processes()
        assert "java" in before.values()

        queries.seconds = 2.0
        late = await browser.post("/lake/query", 400, sql=ENDLESS)
        assert "the query was stopped after 2 seconds" in late.text
        assert "id % 7" in late.text  # what was typed is still there
        queries.seconds = 600.0
        await wait_for(lambda: not queries._tasks, timeout=60)
        assert processes() == {}

        gone = asyncio.Event()
        asking = asyncio.create_task(_post_and_leave(browser, "/lake/query", ENDLESS, gone))
        await wait_for(lambda: bool(queries._users), timeout=60)
        again = await browser.post("/lake/query", 400, sql="SELECT 1")
        assert "your last query still runs" in again.text
        gone.set()
        await asyncio.wait_for(asking, 60)
        await browser.post("/lake/query", 200, sql="SELECT 1 AS x")

        last = asyncio.create_task(browser.post("/lake/query", 400, sql=ENDLESS))
        await wait_for(lambda: bool(queries._users), timeout=60)
        browser.dashboard.end_live_pages()
        assert "the dashboard is shutting down" in (await last).text
    await wait_for(lambda: not any(map(runs, before)), timeout=60)


@pytest.mark.timeout(600)
async def test_a_query_that_spark_cannot_interrupt_is_killed_and_others_are_answered(
    serve: Serve, lake: Matador, tmp_path: Path
) -> None:
    async with serve(lake, lake=tmp_path / "lake", read_token=READER) as browser:
        assert browser.desk.lake is not None
        queries = browser.desk.lake.queries
        await browser.login(READER)
        other = await login_again(browser)
        reader = asyncio.create_task(browser.post("/lake/query", 400, sql=BACKTRACKING))
        await wait_for(lambda: bool(queries._users), timeout=60)
        assert "<td" in (await other.post("/lake/query", 200, sql="SELECT 17 AS x")).text
        assert not reader.done()
        reader.cancel()  # the browser has gone
        await asyncio.gather(reader, return_exceptions=True)
        await wait_for(lambda: not queries._tasks, timeout=60)
        assert list(processes().values()).count("java") == 1  # that of the other one
        await browser.post("/lake/query", 200, sql="SELECT 1 AS x")


@pytest.mark.timeout(600)
async def test_a_query_that_takes_all_memory_ends_its_own_process_only(
    serve: Serve, lake: Matador, tmp_path: Path
) -> None:
    async with serve(lake, lake=tmp_path / "lake") as browser:
        greedy = await browser.post("/lake/query", 400, sql=GREEDY)
        assert "most likely it needs more memory" in greedy.text
        await browser.post("/lake/query", 200, sql="SELECT 1 AS x")
        wide = ", ".join(f"{number} AS c{number}" for number in range(101))
        assert "at most 100" in (await browser.post("/lake/query", 400, sql=f"SELECT {wide}")).text


async def login_again(browser: Browser) -> Browser:
    """Another browser of the same dashboard."""
    transport = httpx.ASGITransport(browser.dashboard)
    other = Browser(
        httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}"), browser.dashboard
    )
    await other.login(READER)
    return other


async def _post_and_leave(browser: Browser, path: str, sql: str, gone: asyncio.Event) -> None:
    """Send a form, and close the connection when ``gone`` is set."""
    body = urlencode({"csrf": await browser.csrf(), "sql": sql}).encode()
    cookies = "; ".join(f"{name}={value}" for name, value in browser.client.cookies.items())
    headers = {
        "host": HOST,
        "origin": f"http://{HOST}",
        "cookie": cookies,
        "content-type": "application/x-www-form-urlencoded",
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None: ...

    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "server": tuple(HOST.split(":")),
    }
    await browser.dashboard(scope, receive, send)


@pytest.mark.broker
@pytest.mark.timeout(600)
async def test_a_lake_in_an_object_store(
    serve: Serve,
    shop: Callable[..., Matador],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from matador.spark import Lake

    monkeypatch.setenv("MATADOR_CACHE", str(tmp_path / "cache"))
    app = shop(hooks=[Journal(tmp_path / "journal")])
    await fail_orders(app, [500, 1])
    with s3_folder() as folder:
        place, options = f"{folder.root}/lake", s3_options()
        async with serve(app, lake=place, storage_options=options) as browser:
            desk = browser.desk.lake
            assert desk is not None
            sql = "SELECT outcome, count(*) AS n FROM deliveries GROUP BY 1 ORDER BY 1"
            await browser.get("/lake")
            empty = await browser.post("/lake/query", 400, sql=sql)
            assert f"{place} has no tables" in empty.text

            Lake(place, schema=app.schema, storage_options=options).ingest(tmp_path / "journal")
            answer = await browser.post("/lake/query", 200, sql=sql)
            assert "dead-letter" in answer.text
            await browser.post("/lake/report")
            await wait_for(lambda: desk.report is not None, timeout=120)
            assert SECRET not in answer.text + str(desk.report) + caplog.text
            assert SECRET not in repr(browser.desk)
