"""The page of the lake: report, SQL, and a replay that is counted, confirmed and sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.dashboard.conftest import Serve, depth, fail_orders
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

        await browser.post("/lake/report")
        await wait_for(lambda: desk.report is not None, timeout=120)
        report = await browser.client.get("/lake/report")
        assert "Reconciliation" in report.text
        assert "sandbox" in report.headers["content-security-policy"]

        bad = await browser.post("/lake/replays", event="order.nothing")
        replay = desk.find(bad.headers["location"].rpartition("/")[2])
        assert replay is not None
        await wait_for(lambda: replay.state == "failed", timeout=60)

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
