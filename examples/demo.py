"""Matador at work, without a server: 120 orders, a killed worker, a bug, and nothing lost.

`./script/demo` runs it in about ten seconds. Its data is in .demo/shop; each run starts afresh.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path

from demo_shop import CALM, FIXED, STUCK, WORLD, OrderPlaced, make_app
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from matador import Matador
from matador.testing import wait_for
from matador.transports import SqliteTransport

SHOP = Path(__file__).with_name("demo_shop.py")
ORDERS = 120

console = Console(highlight=False)


@dataclass(frozen=True)
class Numbers:
    """Where every message is."""

    sent: int
    handled: int
    dead: int
    waiting: int
    in_doubt: int
    """How many of the waiting messages had done their work but were not acknowledged."""

    @property
    def add_up(self) -> bool:
        return self.sent == self.handled + self.dead + self.waiting


class Demo:
    """Tells the story, and checks it against the queues and the recorded side effects."""

    def __init__(self, folder: Path, app: Matador) -> None:
        self.folder = folder
        self.app = app
        self.sent = 0

    # -- facts ------------------------------------------------------------------------------------

    def world(self) -> list[dict[str, str]]:
        file = self.folder / WORLD
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    async def numbers(self) -> Numbers:
        topology = self.app.topology
        waiting = await self.ids([topology.full_name(queue.name) for queue in topology.queues])
        dead = await self.ids([name for _, _, name in topology.dead_letter_names()])
        finished = {line["envelope"] for line in self.world() if line["what"] != "charge"}
        handled = finished - waiting - dead
        in_doubt = finished & waiting
        return Numbers(self.sent, len(handled), len(dead), len(waiting), len(in_doubt))

    async def ids(self, queues: Iterable[str]) -> set[str]:
        transport = self.app.transport
        assert isinstance(transport, SqliteTransport)
        return {message.id for queue in queues async for message in transport.browse(queue)}

    async def show_numbers(self) -> None:
        numbers = await self.numbers()
        table = Table("sent", "=", "handled", "+", "dead letters", "+", "waiting", box=None)
        table.add_row(
            f"[bold]{numbers.sent}[/]",
            "=" if numbers.add_up else "[red]≠[/]",
            f"[green]{numbers.handled}[/]",
            "+",
            f"[red]{numbers.dead}[/]" if numbers.dead else "0",
            "+",
            f"[yellow]{numbers.waiting}[/]" if numbers.waiting else "0",
        )
        console.print(table)
        if numbers.in_doubt:
            console.print(
                f"[dim]{numbers.in_doubt} of the waiting messages had done their work but were not "
                f"acknowledged: they run again.[/]"
            )
        if not numbers.add_up:
            raise SystemExit("the numbers do not add up")

    def show_charges(self) -> None:
        charges = Counter(line["order"] for line in self.world() if line["what"] == "charge")
        twice = [order for order, times in charges.items() if times > 1]
        console.print(f"cards charged: {len(charges)}, charged twice: {len(twice)}")
        if twice:
            raise SystemExit(f"charged twice: {twice}")

    # -- actions ----------------------------------------------------------------------------------

    def command(self, *arguments: str) -> None:
        """Print a command, and run it."""
        shown = " ".join(arguments)
        console.print(f"[dim]$[/] [bold]matador {shown}[/]")
        words = [str(SHOP) if word == SHOP.name else word for word in arguments]
        done = subprocess.run(
            [sys.executable, "-m", "matador", *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        console.print(done.stdout.rstrip(), markup=False, soft_wrap=True)
        if done.returncode:
            raise SystemExit(done.stderr)

    @contextlib.contextmanager
    def worker(self) -> Generator[subprocess.Popen[bytes]]:
        """A worker process. It is stopped with SIGTERM at the end, if it is still running."""
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "matador", "worker", str(SHOP)],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(40)

    async def watch(self, done: Callable[[Numbers], bool]) -> None:
        """Show progress until it is done."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        live = console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=not live) as progress:
            task = progress.add_task("handled", total=self.sent)

            async def look() -> bool:
                numbers = await self.numbers()
                progress.update(task, completed=numbers.handled)
                await asyncio.sleep(0.05)
                return done(numbers)

            await wait_for(look, timeout=60, message="the orders to be handled")

    # -- the story --------------------------------------------------------------------------------

    async def send(self) -> None:
        chapter("1", f"{ORDERS} orders are sent to three subscribers each")
        start = time.perf_counter()
        results = await self.app.send_many(
            OrderPlaced(number, amount=number * 3, coupon="SUMMER" if number % 40 == 1 else None)
            for number in range(ORDERS)
        )
        self.sent = sum(result.sent for result in results)
        took = 1000 * (time.perf_counter() - start)
        console.print(
            f"{self.sent} messages are on disk after {took:.0f} ms. No worker is running."
        )
        self.command("queues", SHOP.name)

    async def crash(self) -> None:
        chapter("2", "A worker starts and is killed in the middle of a payment")
        with self.worker() as process:
            await self.watch(lambda _: (self.folder / STUCK).exists())
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        (self.folder / CALM).touch()
        console.print("kill -9: the card of order 40 was charged, but its parcel was not booked.")
        await self.show_numbers()

    async def recover(self) -> None:
        chapter("3", "Two other workers take over")
        with self.worker(), self.worker():
            await self.watch(lambda numbers: numbers.waiting == 0)
        console.print("Order 40 resumed after its charge. Emails that had failed were retried.")
        self.show_charges()
        await self.show_numbers()

    async def look(self) -> None:
        chapter("4", "Some orders have a coupon that the code does not know")
        self.command("dead-letters", "list", SHOP.name, "--limit", "3")

    async def redrive(self) -> None:
        chapter("5", "The bug is fixed and the dead letters are redriven")
        (self.folder / FIXED).touch()
        self.command("dead-letters", "redrive", SHOP.name, "--all", "--yes")
        with self.worker():
            await self.watch(lambda numbers: numbers.waiting == 0 and numbers.dead == 0)
        self.show_charges()
        await self.show_numbers()
        self.command("queues", SHOP.name)


def chapter(number: str, title: str) -> None:
    console.print()
    console.print(Panel(f"[bold]{number}[/]  {title}", expand=False, border_style="magenta"))


async def main(folder: Path, shown: str | None = None) -> None:
    start = time.perf_counter()
    async with make_app(folder) as app:
        demo = Demo(folder, app)
        await demo.send()
        await demo.crash()
        await demo.recover()
        await demo.look()
        await demo.redrive()
    console.print()
    took = time.perf_counter() - start
    where = shown or str(folder)
    console.print(
        f"[green]All orders are handled, and none is lost.[/] [dim]{took:.0f} s; {where}[/]"
    )


if __name__ == "__main__":
    data = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/shop")
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    asyncio.run(main(data))
