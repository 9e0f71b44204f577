"""One object of each way in: every page shows all of them, and redrives what has failed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from playwright.async_api import expect
from tests.dashboard.conftest import Browser, Serve
from tests.dashboard.test_browser import CHECK, PAGES, PATIENCE, watch
from tests.dashboard.test_transports import says
from tests.support.browser import browser, require_chromium
from tests.ways.places import Place, place_on

from matador.dashboard.letter_index import IndexFilter
from matador.jobs import Worker
from matador.observe import History
from matador.testing import wait_for

FILE = Path(__file__).with_name("every_way.py")
NAMES = ("order.placed", "welcome", "ADD", "orders.created", "created")
WAYS = ("events", "jobs", "rpc", "pubsub", "channels")
BROKERS = [
    "sqlite",
    *(pytest.param(one, marks=pytest.mark.broker) for one in ("redis", "rabbitmq")),
]


@asynccontextmanager
async def file_on(
    transport: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[ModuleType, Place]]:
    """The file as a module here, with messages of its own. Whatever it makes is deleted."""
    async with place_on(transport, folder) as place:
        monkeypatch.setenv("EVERY_URL", place.url())
        monkeypatch.setenv("EVERY_NAME", place.tag)
        monkeypatch.chdir(folder)
        (folder / "every_way.py").write_text(FILE.read_text())
        (folder / "broken").touch()
        spec = importlib.util.spec_from_file_location("every_way", folder / "every_way.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "every_way", module)
        spec.loader.exec_module(module)
        if transport == "rabbitmq":
            for one in module.SERVICES:  # so that the place deletes their queues
                transport_ = one.transport
                await transport_.connect()
                await transport_.apply_topology(one.topology)
                await transport_.disconnect()
                place.used.add(transport_)
        yield module, place


@pytest.mark.parametrize("transport", BROKERS)
async def test_every_way_in_is_shown_and_redriven(
    transport: str, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path / "history.db", interval=0.05)
    async with (
        file_on(transport, tmp_path, monkeypatch) as (file, _),
        AsyncExitStack() as stack,
    ):
        runners: list[Any] = [
            Worker(file.emails) if one is file.emails else one for one in file.SERVICES
        ]
        for one in runners:
            one.add_hooks(history)
            await stack.enter_async_context(one)
        shown = await stack.enter_async_context(serve(*file.SERVICES))
        await file.send()
        number = len(file.SERVICES)
        await wait_for(
            lambda: says(shown, "/dead-letters?look=1", f"{number} dead letters"), timeout=60
        )
        monitor = shown.desk.monitor
        await wait_for(lambda: monitor.snapshot.dead == number, timeout=60)

        overview = await shown.get("/")
        queues = await shown.get("/queues")
        for way, queue in zip(WAYS, file.QUEUES, strict=True):
            what = "failed job" if way == "jobs" else "dead letter"
            assert f"1 {what} of {queue}" in overview
            assert f"<span>{way}<small>" in queues
        letters = await shown.get("/dead-letters")
        for name in NAMES:
            assert f">{name}<" in letters
        assert "&lt;img src=x onerror=alert(1)&gt; the bank is out of order" in letters
        await wait_for(lambda: handlers_fail(shown), timeout=30)
        await wait_for(
            lambda: consumes(shown, [one.full_name for one in shown.desk.sources.queues])
        )

        for link in set(re.findall(r'href="(/dead-letters/\d+)"', letters)):
            page = await shown.get(link)
            assert "<img src=x" not in page
            assert "attempt 1" in page
            assert "Traceback (most recent call last)" in page
            assert "every_way.py" in page
            assert "Edit and redrive" in page

        (tmp_path / "broken").unlink()
        edited = await edit_one(shown, "ADD", {"a": 1, "b": 41})
        assert "Redriven with the new payload" in edited
        await wait_for(
            lambda: says(shown, "/dead-letters?look=1", f"{number - 1} dead letters"), timeout=60
        )
        page = await shown.move(verb="redrive", scope="all")
        assert f"{number - 1} of {number - 1} redriven" in page
        await wait_for(lambda: says(shown, "/dead-letters?look=1", "No dead letters."), timeout=60)
        await wait_for(lambda: monitor.snapshot.dead == 0, timeout=30)
        assert f" of {file.QUEUES[0]}<" not in await shown.get("/")
        await wait_for(lambda: handled_by_all(shown), timeout=60)


async def handlers_fail(shown: Browser) -> bool:
    """Does every handler have its failed attempt and its dead letter?"""
    page = await shown.get("/handlers")
    return page.count(">failing</span>") == len(WAYS) == page.count(">1 dead letter</a>")


async def consumes(shown: Browser, queues: list[str]) -> bool:
    """Does the worker consume all queues, as its page says?"""
    page = await shown.get("/workers")
    return all(one in page for one in queues) and ">alive<" in page


async def handled_by_all(shown: Browser) -> bool:
    """Has every handler succeeded in its second attempt?"""
    return (await shown.get("/handlers")).count("50.0% fail") == len(WAYS)


async def edit_one(shown: Browser, name: str, payload: Any) -> str:
    """Redrive the letter of a name with another payload."""
    entry = next(one for one in shown.desk.index.page(IndexFilter(name=name), None, 9))
    path = f"/dead-letters/{entry.number}/edit"
    return (await shown.post(path, 200, payload=json.dumps(payload))).text


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", BROKERS)
async def test_a_person_sees_and_redrives_every_way_in(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_chromium()
    async with (
        file_on(transport, tmp_path, monkeypatch) as (file, _),
        running(tmp_path) as url,
        browser() as chromium,
    ):
        await asyncio.to_thread(
            subprocess.run, [sys.executable, "every_way.py"], cwd=tmp_path, check=True
        )
        context = await chromium.new_context(viewport={"width": 1280, "height": 900})
        page = await context.new_page()
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        wrong = watch(page)

        # The overview, the queues, the workers: each has all five.
        await page.goto(url)
        for way, queue in zip(WAYS, file.QUEUES, strict=True):
            what = "failed job" if way == "jobs" else "dead letter"
            await expect(page.get_by_text(f"1 {what} of {queue}", exact=True)).to_be_visible()
        await page.goto(f"{url}/queues")
        for queue in file.QUEUES:
            row = page.locator("tr", has=page.get_by_role("link", name=queue, exact=True))
            await expect(row.locator("[data-label='Dead letters']")).to_have_text("1")
            await expect(row.locator("[data-label=Workers]")).to_have_text("1")
        await page.goto(f"{url}/workers")
        for queue in file.QUEUES:
            await expect(page.get_by_text(queue)).to_be_visible()
        for width in (1280, 390):
            await page.set_viewport_size({"width": width, "height": 900})
            for path in PAGES:
                await page.goto(url + path)
                found = await page.evaluate(CHECK)
                assert found["unnamed"] == [], path
                assert found["tooWide"] <= 0, f"{path} is too wide by {found['tooWide']} pixels"
        await page.set_viewport_size({"width": 1280, "height": 900})

        # Every dead letter has its attempt and its traceback; all are redriven at once.
        for name in NAMES:
            await page.goto(f"{url}/dead-letters?look=1")
            row = page.locator("tr", has=page.locator(f"[data-label=Name] >> text='{name}'"))
            await row.locator("td.name a").click()
            await expect(page.get_by_text("attempt 1")).to_be_visible()
            await page.get_by_text("Traceback", exact=True).first.click()
            await expect(page.get_by_text("every_way.py").first).to_be_visible()
        (tmp_path / "broken").unlink()
        await page.goto(f"{url}/dead-letters")
        await page.get_by_label("all that match").check()
        await page.get_by_role("button", name="Redrive…", exact=True).click()
        await page.get_by_role("button", name=f"Redrive {len(NAMES)} dead letters").click()
        await expect(page.get_by_text(f"{len(NAMES)} of {len(NAMES)} redriven")).to_be_visible()
        await page.goto(url)
        await expect(page.get_by_text("dead letter of")).to_have_count(0)
        await expect(page.get_by_text("failed job of")).to_have_count(0)
        await page.goto(f"{url}/handlers")
        await expect(page.get_by_text("50.0% fail")).to_have_count(len(NAMES))
        assert wrong == []
        await context.close()


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[str]:
    """A worker and a dashboard of the file, each a process; the address of the dashboard."""
    settings = {**os.environ, "NO_COLOR": "1"}
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "matador", *arguments]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(line, cwd=folder, env=settings, stdout=pipe, text=True))
        return started[-1]

    def says_at_the_end(process: subprocess.Popen[str], end: str) -> str:
        assert process.stdout is not None
        said = ""
        while not said.rstrip().endswith(end):
            line = process.stdout.readline()
            assert line, "it has ended"
            said += line
        return said

    def finish() -> None:
        for one in started:
            one.terminate()
        for one in started:
            one.wait(60)
            if one.stdout is not None:
                one.stdout.close()

    try:
        worker = start("worker", "every_way.py", "--history", "history.db", "--json")
        await asyncio.to_thread(says_at_the_end, worker, "}")
        options = ("--port", "0", "--history", "history.db", "--json")
        dashboard = start("dashboard", "every_way.py", *options)
        yield json.loads(await asyncio.to_thread(says_at_the_end, dashboard, "}"))["url"]
    finally:
        await asyncio.to_thread(finish)
