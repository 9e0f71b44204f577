"""A person at the dashboard: a real browser, server, worker and broker, through every page.

Sees a failing subscriber, opens the group, redrives all, and watches the count fall to zero.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect
from tests.support.brokers import broker_url
from tests.support.browser import browser, require_chromium
from tests.support.rabbitmq import Raw
from tests.support.redis import forget_keys

from matador import Topology

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LETTERS = 12
PATIENCE = 60_000  # milliseconds
SHOP = """
import os
from dataclasses import dataclass
from pathlib import Path
from matador import DontRetry, Envelope, Matador, Schema, Topology, event, subscriber

@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int
    note: str = "<script>document.title = 'hacked'</script>"

@subscriber(description="Charge the card.", idempotent="yes")
async def charge(envelope: Envelope[OrderPlaced]) -> None:
    if Path("broken").exists():
        raise DontRetry(f"<img src=x onerror=alert(1)> order {envelope.data.order_id} declined")

@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None: ...

app = Matador(
    os.environ["SHOP_URL"],
    schema=Schema({OrderPlaced: [charge, email_receipt]}),
    topology=Topology(os.environ["SHOP_NAMESPACE"], queues=["events"]),
    consume_from=["events"],
)
"""
SEND = f"""
import asyncio
from shop import OrderPlaced, app
async def main():
    async with app.producer() as shop:
        for number in range({LETTERS}):
            await shop.send(OrderPlaced(str(number), number))
asyncio.run(main())
"""
PAGES = [
    *("/", "/queues", "/handlers", "/jobs", "/messages", "/dead-letters", "/workers", "/lake"),
    "/audit",
]
# Every control has a name, every page its landmarks, and nothing is wider than the screen.
CHECK = """() => {
  const named = (one) => one.labels?.length || one.getAttribute("aria-label")
    || one.type === "hidden" || one.textContent.trim();
  return {
    unnamed: [...document.querySelectorAll("input, select, textarea, button, a")]
      .filter((one) => !named(one)).map((one) => one.outerHTML),
    headings: document.querySelectorAll("h1").length,
    mains: document.querySelectorAll("main").length,
    navs: document.querySelectorAll("nav[aria-label]").length,
    current: document.querySelectorAll("nav [aria-current=page]").length,
    live: document.querySelectorAll("[aria-live]").length,
    tooWide: document.scrollingElement.scrollWidth - window.innerWidth,
    title: document.title,
  };
}"""


@dataclass
class Running:
    """A shop with a worker and a dashboard, each a process."""

    url: str
    folder: Path
    dashboard: subprocess.Popen[str]


@asynccontextmanager
async def running(transport: str, folder: Path) -> AsyncGenerator[Running]:
    namespace = f"dash{uuid.uuid4().hex[:8]}"
    broker = "" if transport == "sqlite" else broker_url(transport)
    url = broker or f"sqlite:///{folder}/shop.db"
    (folder / "shop.py").write_text(SHOP)
    (folder / "broken").touch()
    settings = {**os.environ, "SHOP_URL": url, "SHOP_NAMESPACE": namespace, "NO_COLOR": "1"}
    line = [sys.executable, "-m", "matador"]
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*line, *arguments],
            cwd=folder,
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        started.append(process)
        return process

    def finish() -> None:
        for one in started:
            one.terminate()
        for one in started:
            one.wait(60)
            if one.stdout is not None:
                one.stdout.close()

    def served(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        said = ""
        while not said.rstrip().endswith("}"):
            said += process.stdout.readline()
        return json.loads(said)["url"]

    def send() -> None:
        subprocess.run([sys.executable, "-c", SEND], cwd=folder, env=settings, check=True)

    try:
        await asyncio.to_thread(send)
        start("worker", "shop.py", "--history", "history.db")
        options = ("--port", "0", "--history", "history.db", "--json")
        dashboard = start("dashboard", "shop.py", *options)
        yield Running(await asyncio.to_thread(served, dashboard), folder, dashboard)
    finally:
        await asyncio.to_thread(finish)
        if transport == "rabbitmq":
            with Raw(broker) as raw:
                raw.delete([Topology(namespace, queues=["events"])])
        elif transport == "redis":
            await forget_keys(broker, namespace)


def watch(page: Page) -> list[str]:
    """What goes wrong in a page: errors of scripts, and what its security policy refuses."""
    wrong: list[str] = []

    def said(message: Any) -> None:
        if message.type == "error":
            wrong.append(message.text)

    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", said)
    page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
    return wrong


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "transport",
    [
        "sqlite",
        pytest.param("rabbitmq", marks=pytest.mark.broker),
        pytest.param("redis", marks=pytest.mark.broker),
    ],
)
async def test_a_failing_subscriber_is_found_and_its_letters_are_redriven(
    transport: str, tmp_path: Path
) -> None:
    require_chromium()
    async with running(transport, tmp_path) as shop, browser() as chromium:
        context = await chromium.new_context(viewport={"width": 1280, "height": 900})
        page = await context.new_page()
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        wrong = watch(page)

        # The overview changes by itself, without a reload.
        await page.goto(shop.url)
        await expect(page.get_by_text(f"{LETTERS} dead letters of events")).to_be_visible()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()

        await page.get_by_role("link", name="Handlers", exact=True).click()
        edge = page.locator(".edge", has_text="charge")
        await expect(edge).to_contain_text("failing")

        for width in (1280, 390):
            await page.set_viewport_size({"width": width, "height": 900})
            for path in PAGES:
                await page.goto(shop.url + path)
                found = await page.evaluate(CHECK)
                assert found["unnamed"] == [], path
                assert (found["headings"], found["mains"], found["current"]) == (1, 1, 1), path
                assert found["live"] == 1
                assert found["navs"] >= 1
                assert found["tooWide"] <= 0, f"{path} is too wide by {found['tooWide']} pixels"
                assert "hacked" not in found["title"]
        await page.set_viewport_size({"width": 1280, "height": 900})

        await page.goto(f"{shop.url}/workers")
        await expect(page.get_by_text("alive")).to_be_visible()

        # A queue is paused and resumed, where the transport can.
        await page.goto(f"{shop.url}/queues")
        pause = page.get_by_role("button", name="Pause events")
        if transport == "rabbitmq":
            await expect(pause).to_have_count(0)
            await expect(page.get_by_text("rabbitmq cannot pause a queue")).to_be_visible()
        else:
            await pause.click()
            await expect(page.get_by_text("paused", exact=True)).to_be_visible()
            await page.get_by_role("button", name="Resume events").click()
            await expect(pause).to_be_visible()

        # One letter, with its payload as text and its attempt.
        await page.goto(f"{shop.url}/dead-letters")
        await expect(page.locator("td.name a").first).to_be_visible()
        await page.locator("td.name a").first.click()
        await expect(page.get_by_role("heading", name="Attempts")).to_be_visible()
        await expect(page.get_by_label("payload")).to_contain_text("<script>")

        # Open the group, redrive all of it.
        (shop.folder / "broken").unlink()
        await page.goto(f"{shop.url}/dead-letters")
        await page.locator(".cause a").first.click()
        await page.get_by_role("button", name="Redrive all").click()
        await page.get_by_role("button", name=f"Redrive {LETTERS} dead letters").click()
        await expect(page.get_by_text(f"{LETTERS} of {LETTERS} redriven")).to_be_visible()

        await page.goto(shop.url)
        tile = page.locator(".tile", has_text="dead letters").locator("b")
        await expect(tile).to_have_text("0")
        await page.goto(f"{shop.url}/dead-letters")
        await expect(page.get_by_text("No dead letters.")).to_be_visible()
        await page.goto(f"{shop.url}/audit")
        await expect(page.get_by_text("redrive done")).to_be_visible()
        assert wrong == []
        await context.close()
