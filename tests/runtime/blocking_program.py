"""Programs without an event loop, to see what they leave behind: ``blocking_program.py URL WHAT``.

Prints ``fine`` at the end, and whatever Python has to say about what was left open.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from matador import Matador, Schema, SubscriberStub, Topology, event
from matador.channels import QueueService, QueueSettings, Settings
from matador.jobs import Queue
from matador.pubsub import Publisher
from matador.rpc import RpcClient, RpcServer
from matador.runtime.blocking import THREAD

URL, WHAT = sys.argv[1], sys.argv[2]
TAG = uuid4().hex[:8] if len(sys.argv) < 4 else sys.argv[3]


@event("thing.happened", description="Something happened.")
@dataclass(frozen=True)
class ThingHappened:
    n: int


queue = Queue(f"blocking-{TAG}", provider=URL)
publisher = Publisher(URL, exchange=f"blocking-{TAG}")
client = RpcClient(URL, queue=f"blocking-calls-{TAG}")
app = Matador(
    URL,
    schema=Schema({ThingHappened: [SubscriberStub("other", description="Elsewhere.")]}),
    topology=Topology(f"blocking-{TAG}", queues=["events"]),
)
scheme = URL.partition(":")[0]
settings: dict[str, Any] = {"type": "rabbitmq" if scheme == "amqp" else scheme, "url": URL}
if scheme == "redis":
    settings["mode"] = "stream"
service = QueueService(Settings(QueueSettings(**settings)))


@queue.job
async def double(n: int) -> int:
    return 2 * n


async def serve() -> None:
    """Make the queue of the RPC server."""
    server = RpcServer(URL, queue=f"blocking-calls-{TAG}")

    @server.handler("DOUBLE")
    async def twice(n: int) -> int:
        return 2 * n

    async with server:
        pass


def send_all() -> None:
    """Send with everything that sends, from several threads at once."""

    def each(n: int) -> None:
        assert app.sync().send(ThingHappened(n)).sent == 1
        assert queue.sync().add("plain", {"n": n}).name == "plain"
        assert double.sync().add(n).id
        assert client.sync().notify("DOUBLE", n)
        assert publisher.sync().publish("things.happened", n).routing_key == "things.happened"
        assert len(publisher.sync().publish_many([("a", n), ("b", n)])) == 2
        assert service.sync().send(f"blocking-{TAG}", "happened", n)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(each, range(8)))


def left() -> tuple[int, int]:
    """How many descriptors and threads there are."""
    return len([*Path("/proc/self/fd").iterdir()]), threading.active_count()


def is_open() -> bool:
    """Is there a background?"""
    return any(one.name == THREAD for one in threading.enumerate())


def check_left(before: tuple[int, int], files: bool = True) -> None:
    """Threads and connections that were abandoned end in a moment."""
    moment = threading.Event()
    for _ in range(500):
        gc.collect()
        now = left()
        if now[1] <= before[1] and (now[0] <= before[0] or not files):
            return
        moment.wait(0.01)
    raise AssertionError(
        f"{left()} descriptors and threads, after {before}: {threading.enumerate()}"
    )


def runs(run: Callable[[Any], None]) -> None:
    """Use the same objects in one event loop after another."""

    def once() -> None:
        run(double.add(1))
        run(queue.stats())
        if run is asyncio.run:
            run(publisher.publish("things.happened", 1))

    once()  # what is imported on first use
    before = left()
    for _ in range(10):
        once()
    # SQLite closes a file late while another connection has it open.
    check_left(before, files=run is asyncio.run or scheme != "sqlite")


def closed(call: Any) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(call)
    loop.close()  # and nothing else is closed


def used_in_two_loops() -> None:
    """Two threads, each with an event loop that goes on, use the queue in turn."""
    before, begun = left(), threading.Barrier(2)

    async def use() -> None:
        for _ in range(5):
            await asyncio.to_thread(begun.wait, 20)
            await double.add(1)

    with ThreadPoolExecutor(2) as threads:
        for one in [threads.submit(asyncio.run, use()) for _ in range(2)]:
            one.result(60)
    check_left(before)


def shut_down() -> None:
    send_all()  # what is imported on first use
    for one in (app, queue, client, publisher, service):
        one.sync().shutdown()
    before = left()
    for _ in range(3):
        with app.sync(), queue.sync(), client.sync(), publisher.sync(), service.sync():
            assert is_open()
            send_all()
        assert not is_open()
    check_left(before)


def collect() -> None:
    def use() -> None:
        Queue(f"blocking-{TAG}", provider=URL).sync().add("plain", 1)
        Publisher(URL, exchange=f"blocking-{TAG}").sync().publish("a", 1)

    queue.sync().add("plain", 1)
    queue.sync().shutdown()
    before = left()
    use()
    check_left(before)


def fork() -> None:
    """A server that has used everything forks workers, which do so, too."""
    send_all()
    for _ in range(2):
        child = os.fork()
        if not child:
            send_all()
            return
        assert os.waitpid(child, 0)[1] == 0
    send_all()


def fork_while_busy() -> None:
    """Fork while other threads are sending."""
    go_on = threading.Event()

    def send() -> None:
        while not go_on.is_set():
            double.sync().add(1)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for one in threads:
        one.start()
    children: list[int] = []
    for _ in range(5):
        child = os.fork()
        if not child:
            double.sync().add(1)
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    go_on.set()
    for one in threads:
        one.join()


def in_a_thread_that_outlives_the_main_one() -> None:
    began = threading.Event()

    def send() -> None:
        double.sync().add(1)
        began.set()
        threading.main_thread().join()
        assert double.sync().add(2).id
        print("outlived it", flush=True)

    threading.Thread(target=send).start()
    began.wait()


if __name__ == "__main__":
    asyncio.run(serve())
    match WHAT:
        case "asyncio.run":
            runs(asyncio.run)
        case "closed loops":
            runs(closed)
        case "two loops":
            used_in_two_loops()
        case "exit":
            send_all()
        case "shutdown":
            shut_down()
        case "collected":
            collect()
        case "fork":
            fork()
        case "fork while busy":
            fork_while_busy()
        case "outlived":
            in_a_thread_that_outlives_the_main_one()
        case _:
            raise ValueError(WHAT)
    print("fine", flush=True)
