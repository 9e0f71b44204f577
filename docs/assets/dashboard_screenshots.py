"""Takes the pictures of the dashboard: `python docs/assets/dashboard_screenshots.py`.

Runs a shop with workers, failures, jobs and a lake in a temporary folder, serves its dashboard, and
takes every page in light and dark, wide and narrow. Needs Chromium, Java for Spark, and some time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.browser import browser  # noqa: E402 - the tests are beside the documentation

from matador.testing import wait_for  # noqa: E402

MATADOR = [sys.executable, "-m", "matador"]
TARGET = HERE / "dashboard"
WIDE, NARROW = (1280, 860), (390, 844)
_CUSTOMERS = ("Ada", "Grace", "Edsger", "Barbara", "Alan", "Radia")


def matador(*arguments: str, folder: Path) -> None:
    """Run a command to its end."""
    subprocess.run([*MATADOR, *arguments], cwd=folder, check=True)


async def _traffic(shop: Any, seconds: float) -> None:
    """Orders and parcels, some of which fail."""
    until = asyncio.get_running_loop().time() + seconds
    number = 0
    async with shop.app.producer() as producer:
        while asyncio.get_running_loop().time() < until:
            number += 1
            who = random.choice(_CUSTOMERS)
            amount = random.randint(1, 1000)
            order = shop.OrderPlaced(f"o-{number}", who, amount, "4111 1111 1111 1111")
            await producer.send(order, correlation_id=f"cart-{number}")
            await producer.send(shop.OrderShipped(f"o-{number}", f"P{random.randint(1, 99999)}"))
            await asyncio.sleep(random.uniform(0.0, 0.05))
        await producer.send(shop.OrderShipped("o-0", "P1"), delay=3600)


async def _jobs(shop: Any) -> None:
    async with shop.emails as emails:
        for name in ("ada", "grace", "bounce-1", "edsger", "bounce-2"):
            await emails.add("welcome", {"to": f"{name}@example.com"}, attempts=1)
        await emails.add("newsletter", {"to": "all@example.com"}, delay=7200)
        await emails.schedule("nightly-report", "report", {}, cron="0 3 * * *")

        async def is_done() -> bool:
            stats = await emails.stats()
            return not stats.waiting and not stats.active

        async with shop.worker:
            await wait_for(is_done, timeout=60)


PAGES = {
    "overview": "/?period=15m",
    "queues": "/queues",
    "handlers": "/handlers",
    "jobs": "/jobs",
    "dead-letters": "/dead-letters",
    "workers": "/workers",
    "audit": "/audit",
}


async def _take(url: str, pages: dict[str, str]) -> None:
    async with browser() as chromium:
        for scheme in ("light", "dark"):
            for size, name in ((WIDE, "wide"), (NARROW, "narrow")):
                context = await chromium.new_context(
                    viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
                )
                page = await context.new_page()
                for title, path in pages.items():
                    await page.goto(url + path, wait_until="load")
                    file = TARGET / f"{title}-{name}-{scheme}.png"
                    await page.screenshot(path=file, animations="disabled")
                await context.close()


async def _redrive(url: str) -> str:
    """Redrive a few letters, and find the path of another one."""
    async with browser() as chromium:
        page = await chromium.new_page()
        await page.goto(f"{url}/dead-letters?name=order.shipped")
        boxes = page.locator("input[name=letter]")
        for at in range(3):
            await boxes.nth(at).check()
        await page.get_by_role("button", name="Redrive…").last.click()
        await page.get_by_role("button", name=re.compile("Redrive 3")).click()
        await page.get_by_text("3 of 3 redriven").wait_for(timeout=30_000)
        await page.goto(f"{url}/dead-letters?receiver=charge&error=bank")
        link = await page.locator("td.name a").first.get_attribute("href")
        assert link is not None
        return link


async def _use_lake(url: str) -> None:
    """Make a report, and run a query in every form of the page."""
    async with browser() as chromium:
        page = await chromium.new_page()
        page.set_default_timeout(400_000)  # Spark starts
        await page.goto(f"{url}/lake")
        await page.get_by_role("button", name="Make a report now").click()
        await page.get_by_role("link", name="Open the report").wait_for()
        for scheme in ("light", "dark"):
            for size, name in ((WIDE, "wide"), (NARROW, "narrow")):
                await page.emulate_media(color_scheme=scheme)
                await page.set_viewport_size({"width": size[0], "height": size[1]})
                await page.goto(f"{url}/lake")
                await page.get_by_role("button", name="Run").click()
                await page.get_by_text(re.compile("rows, in")).wait_for()
                file = TARGET / f"lake-{name}-{scheme}.png"
                await page.screenshot(path=file, animations="disabled")


async def _show(url: str, shop: Any) -> None:
    """Take the pages while there is traffic."""
    letter = await _redrive(url)
    busy = asyncio.create_task(_traffic(shop, 120))
    await asyncio.sleep(3)
    await _take(url, {**PAGES, "message": letter})
    busy.cancel()


@contextlib.contextmanager
def _serving(folder: Path, *options: str) -> Generator[str]:
    """A dashboard, and its address."""
    serving = subprocess.Popen(
        [*MATADOR, "dashboard", "shop.py", "--port", "0", "--json", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout is not None
        said = ""
        while not said.rstrip().endswith("}"):
            said += serving.stdout.readline()
        yield json.loads(said)["url"]
    finally:
        serving.terminate()
        serving.wait(30)


def main() -> None:
    """Do it all."""
    TARGET.mkdir(exist_ok=True)
    random.seed(7)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "shop.py").write_text((HERE / "dashboard_shop.py").read_text())
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        shop = import_module("shop")
        matador("topology", "apply", "shop.py", folder=folder)
        worker = subprocess.Popen(
            [*MATADOR, "worker", "shop.py"], cwd=folder, stderr=subprocess.DEVNULL
        )
        try:
            with _serving(folder, "--mask", "card_number") as url:
                asyncio.run(_jobs(shop))
                asyncio.run(_traffic(shop, 45))
                asyncio.run(_show(url, shop))
            ingest = ("lake", "ingest", "shop.py", "--journal", "journal", "--lake", "lake")
            matador(*ingest, folder=folder)
            with _serving(folder, "--lake", "lake") as url:
                asyncio.run(_use_lake(url))
        finally:
            worker.terminate()
            worker.wait(30)
            os.chdir(ROOT)
    print(f"took {len(list(TARGET.glob('*.png')))} pictures")


if __name__ == "__main__":
    main()
