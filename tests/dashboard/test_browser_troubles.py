"""A person at the dashboard when something is in the way: a session that ends, very long names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from tests.dashboard.conftest import OPERATOR
from tests.dashboard.test_browser import running
from tests.dashboard.test_dead_letters import put
from tests.support.browser import browser, require_chromium

from matador import Matador
from matador.dashboard import Dashboard, DashboardOptions
from matador.dashboard.server import listening, serve

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PATIENCE = 60_000  # milliseconds
TOO_WIDE = """() => [document.scrollingElement, ...document.querySelectorAll(".scroll")]
  .map((one) => one.scrollWidth - one.clientWidth)"""


@asynccontextmanager
async def served(app: Matador, folder: Path, token: str | None = None) -> AsyncGenerator[str]:
    """A dashboard behind a real server; its address."""
    options = DashboardOptions(history=folder / "history.db", port=0, token=token)
    listener = listening(options)
    port = listener.getsockname()[1]
    ready = asyncio.Event()
    serving = asyncio.create_task(serve(Dashboard(app, options), listener, ready.set))
    try:
        await ready.wait()
        yield f"http://127.0.0.1:{port}"
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def opened() -> AsyncGenerator[Page]:
    require_chromium()
    async with browser() as chromium:
        page = await (await chromium.new_context()).new_page()
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield page


async def log_in(page: Page) -> None:
    await page.get_by_label("Token").fill(OPERATOR)
    await page.get_by_role("button", name="Log in").click()


async def log_out_elsewhere(page: Page, url: str) -> None:
    other = await page.context.new_page()
    await other.goto(f"{url}/audit")
    await other.get_by_role("button", name="Log out").click()
    await expect(other.get_by_label("Token")).to_be_visible()
    await other.close()


async def test_a_session_ends_in_the_middle_of_a_form(
    tmp_path: Path, shop: Callable[..., Matador]
) -> None:
    app = shop()
    await put(app, 1)
    async with served(app, tmp_path, OPERATOR) as url, opened() as page:
        await page.goto(f"{url}/dead-letters")
        await log_in(page)
        await page.locator("td.name a").first.click()
        await page.get_by_role("link", name="Edit and redrive").click()
        address = page.url
        await page.get_by_label("Payload").fill('{"order_id": "corrected"}')
        await log_out_elsewhere(page, url)
        await page.get_by_role("button", name="Redrive with this payload").click()
        await expect(page.get_by_role("alert")).to_contain_text("Nothing was done")
        await expect(page.get_by_text('{"order_id": "corrected"}')).to_be_visible()
        await page.get_by_role("link", name="Log in").click()
        await log_in(page)
        await expect(page).to_have_url(address)
        await expect(page.get_by_label("Payload")).to_contain_text('"order_id": "o0"')


async def test_a_live_page_says_when_it_is_not_live_any_more(
    tmp_path: Path, shop: Callable[..., Matador]
) -> None:
    async with served(shop(), tmp_path, OPERATOR) as url, opened() as page:
        await page.goto(url)
        await log_in(page)
        stale = page.locator("#stale")
        await expect(stale).to_be_hidden()
        await log_out_elsewhere(page, url)
        await expect(stale).to_contain_text("no longer changes by itself")


async def test_a_live_page_says_when_the_dashboard_is_gone(tmp_path: Path) -> None:
    async with running("sqlite", tmp_path) as shop, opened() as page:
        await page.goto(shop.url)
        await expect(page.locator("#stale")).to_be_hidden()
        shop.dashboard.kill()
        await expect(page.locator("#stale")).to_contain_text("does not answer")


@pytest.mark.parametrize("width", [390, 1280])
async def test_very_long_names_push_nothing_off_the_page(
    tmp_path: Path, shop: Callable[..., Matador], width: int
) -> None:
    app = shop()
    await put(app, 1, subscriber="a-subscriber-" + "long-" * 30, error="x" * 300)
    await put(app, 1, subscriber="y" * 150, error="wörter " * 40)
    async with served(app, tmp_path) as url, opened() as page:
        await page.set_viewport_size({"width": width, "height": 800})
        await page.goto(f"{url}/dead-letters")
        await expect(page.get_by_role("heading", name="2 dead letters")).to_be_visible()
        assert max(await page.evaluate(TOO_WIDE)) <= 0
