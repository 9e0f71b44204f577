"""The second half of the demo: events as tables, a report, and a redrive of dead letters.

`./script/demo` runs it. It takes about a minute, most of it for Spark. Its data is in
.demo/pipeline, and each run starts afresh. All commands run in this process, so Spark starts once.
"""

import asyncio
import logging
import os
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from matador.cli.program import run
from matador.spark import Lake
from matador.testing import wait_for
from matador.transports import SqliteTransport

SHOP = "demo_pipeline_shop.py"
FIXED = "bug-is-fixed"  # this file exists once the fix is deployed
ORDERS = 1500

console = Console(highlight=False)


def chapter(number: int, title: str) -> None:
    console.print()
    console.print(Panel(f"[bold]{number}[/]  {title}", expand=False, border_style="magenta"))


def command(*words: str) -> None:
    """Print a command, and run it."""
    shown = " ".join(f'"{word}"' if " " in word else word for word in words)
    console.print(f"[dim]$[/] [bold]matador {shown}[/]", soft_wrap=True)
    arguments = [str(Path(__file__).with_name(SHOP)) if word == SHOP else word for word in words]
    code = run(arguments)
    if code:
        raise SystemExit(code)


async def work(send: int = 0) -> None:
    """Send orders, and handle messages until the queues are empty."""
    # Imported here, because it opens files in the current folder.
    from demo_pipeline_shop import make_app, orders

    async with make_app() as app:
        if send:
            await app.send_many(orders(send))
        broker = app.transport
        assert isinstance(broker, SqliteTransport)

        async def done() -> bool:
            queues = [app.topology.full_name(queue.name) for queue in app.topology.queues]
            depths = [await broker.depth(queue) for queue in queues]
            return not any(depth.total for depth in depths)

        await wait_for(done, timeout=120, message="the orders to be handled")


def show_accounts(lake: Lake) -> None:
    """Sent = handled + dead letters + waiting, according to the tables and to the broker."""
    from demo_pipeline_shop import make_app

    found = lake.reconcile(make_app(works=False))
    names = ("sent", "handled", "dead_lettered", "discarded", "waiting")
    table = Table(
        "event", "subscriber", "sent", "=", "handled", "+", "dead", "+", "waiting", box=None
    )
    for line in found.lines:
        dead = line.dead_lettered
        table.add_row(
            *(line.event_key, line.subscriber, str(line.sent), "=", f"[green]{line.handled}[/]"),
            *("+", f"[red]{dead}[/]" if dead else "0", "+", str(line.waiting)),
        )
    sent, handled, dead, discarded, waiting = (found.total(name) for name in names)
    table.add_row(
        "",
        "[bold]in all[/]",
        f"[bold]{sent}[/]",
        "=",
        str(handled),
        "+",
        str(dead),
        "+",
        str(waiting),
    )
    console.print(table)
    if not found.adds_up or sent != handled + dead + discarded + waiting:
        raise SystemExit("the numbers do not add up")
    console.print("[green]It adds up[/], and the broker agrees with the tables.")


def main() -> None:
    start = time.perf_counter()
    chapter(10, f"{ORDERS:,} orders are sent and handled, and recorded in a journal")
    asyncio.run(work(send=ORDERS))
    size = sum(path.stat().st_size for path in Path("journal").iterdir())
    took = time.perf_counter() - start
    console.print(
        f"Done in {took:.1f} s. The journal has {size / 1e6:.1f} MB: one line for each message "
        f"sent, and one for each attempt to handle a message."
    )

    chapter(11, "The journal becomes tables, without any code")
    console.print("[dim]Spark is starting. This takes a while.[/]")
    command("lake", "ingest", SHOP, "--journal", "journal/", "--lake", "lake/")
    sql = (
        "SELECT data.country, count(*) AS orders, sum(data.amount) AS amount "
        "FROM order_placed WHERE subscriber = 'ship' GROUP BY 1 ORDER BY 3 DESC"
    )
    command("lake", "query", "--lake", "lake/", "--app", SHOP, sql)

    chapter(12, "How are the subscribers doing, and what fails?")
    command("lake", "report", "--lake", "lake/", "--html", "report.html")

    chapter(13, "The coupon bug is fixed, and its group of dead letters is redriven")
    Path(FIXED).touch()
    lake = Lake("lake/")
    group = lake.triage().where("array_contains(subscribers, 'book')").first()
    assert group is not None
    console.print(f"{group['count']} dead letters say: {group['text']}")
    redrive = ("lake", "redrive", SHOP, "--lake", "lake/", "--signature", group["signature"])
    command(*redrive, "--yes")
    asyncio.run(work())
    command("lake", "ingest", SHOP, "--journal", "journal/", "--lake", "lake/")

    chapter(14, "Do the numbers add up?")
    show_accounts(lake)
    console.print()
    page = Path("report.html").resolve()
    took = time.perf_counter() - start
    console.print(f"The report as a page: [bold]{page}[/] [dim]({took:.0f} s)[/]", soft_wrap=True)


if __name__ == "__main__":
    data = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/pipeline")
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    os.chdir(data)
    logging.basicConfig(filename="demo.log", level=logging.INFO)
    main()
