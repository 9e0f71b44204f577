"""``x.sync()``: what programs without an event loop leave behind, and what their threads may do.

That calls block, errors come out as they are, and a shutdown lets no thread wait is tested with
events, in ``tests/events/test_sync.py``: it is the same for all.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.brokers import broker_url

from matador import Matador, Schema, SyncMatador
from matador.channels import QueueService, QueueSettings, Settings
from matador.errors import LifecycleError, WrongLoopError
from matador.jobs import RESULT, Queue, Worker, chain
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer
from matador.runtime.blocking import THREAD, Blocking
from matador.transports import SqliteTransport

PROGRAM = Path(__file__).with_name("blocking_program.py")
WHAT = [
    "asyncio.run",
    "closed loops",
    "two loops",
    "exit",
    "shutdown",
    "collected",
    "fork",
    "fork while busy",
    "outlived",
]
SAYS_SO = ("closed loops",)  # Python warns of loops that were closed with tasks in them


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize(
    "transport",
    ["sqlite", *(pytest.param(one, marks=pytest.mark.broker) for one in ("redis", "rabbitmq"))],
)
def test_a_program_leaves_nothing_behind(transport: str, what: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/all.db" if transport == "sqlite" else broker_url(transport)
    done = subprocess.run(
        [sys.executable, "-W", "always", str(PROGRAM), url, what],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "fine" in done.stdout
    assert ("outlived it" in done.stdout) == (what == "outlived")
    if what not in SAYS_SO:
        for bad in ("Warning", "Traceback", "destroyed", "ERROR"):
            assert bad not in done.stderr, done.stderr


MAKERS: dict[str, Callable[[str], Any]] = {
    "SyncMatador": lambda url: Matador(url, schema=Schema({})),
    "SyncQueue": lambda url: Queue("any", provider=url),
    "SyncRpcClient": lambda url: RpcClient(url, queue="any"),
    "SyncPublisher": lambda url: Publisher(url, exchange="any"),
    "SyncQueueService": lambda url: QueueService(Settings(QueueSettings(type="sqlite", url=url))),
}


def test_everything_that_sends_has_a_blocking_form() -> None:
    forms: Any = Blocking
    assert {kind.__name__ for kind in forms.__subclasses__()} == set(MAKERS)


@pytest.mark.parametrize("name", MAKERS)
def test_in_a_thread_with_an_event_loop_each_method_names_the_form_to_write(
    name: str, tmp_path: Path
) -> None:
    form: Any = MAKERS[name](f"sqlite:///{tmp_path}/all.db").sync()
    members = inspect.getmembers(form.__class__, inspect.isfunction)
    methods = [one for one, value in members if hasattr(value, "__wrapped__")]
    assert methods

    async def use() -> None:
        for one in methods:
            with pytest.raises(WrongLoopError, match=rf"write `await \w+\.{one}\(\.\.\.\)`"):
                getattr(form, one)()
        with pytest.raises(WrongLoopError, match="write `async with"), form:
            pass

    asyncio.run(use())
    assert THREAD not in {thread.name for thread in threading.enumerate()}, "nothing was started"


def test_declared_jobs_and_flows_wait_for_results(tmp_path: Path) -> None:
    queue = Queue("sums", provider=f"sqlite:///{tmp_path}/all.db")

    @queue.job
    async def add(a: int, b: int) -> int:
        return a + b

    async def work() -> None:
        async with Worker(queue, concurrency=1):
            await asyncio.to_thread(use)

    def use() -> None:
        handle = add.with_options(attempts=1).sync().add(1, b=2)
        assert handle.result(timeout=20) == 3
        assert handle.status() == "completed"
        assert handle.id == handle.job().id
        flow = chain(add.using(1, 2), add.using(RESULT, 3)).sync().add()
        assert flow.result(timeout=20) == 6
        queue.sync().shutdown()
        assert handle.result(timeout=20) == 3  # connects again
        queue.sync().shutdown()

    asyncio.run(work())


def test_calls_and_messages_arrive(tmp_path: Path) -> None:
    url, got = f"sqlite:///{tmp_path}/all.db", list[Any]()
    server, client = RpcServer(url, queue="maths"), RpcClient(url, queue="maths")
    publisher = Publisher(url, exchange="events")
    subscriber = Subscriber(url, exchange="events", queue="all")

    @server.handler("DOUBLE")
    async def double(n: int) -> int:
        return 2 * n

    @subscriber.on("#")
    async def note(message: Any) -> None:
        got.append(message)

    async def receive() -> None:
        async with server, subscriber:
            await asyncio.to_thread(use)
            assert await subscriber.wait_idle(20)

    def use() -> None:
        with client.sync() as maths, publisher.sync() as events:
            assert maths.call("DOUBLE", 4, result_type=int, timeout=20) == 8
            assert maths.notify("DOUBLE", 4)
            assert events.publish("a.b", 1).queues == 1
            assert len(events.publish_many([("a", 2), ("b", 3)])) == 2

    asyncio.run(receive())
    assert sorted(got) == [1, 2, 3]


def test_a_transport_object_is_used_in_one_loop_at_a_time(tmp_path: Path) -> None:
    transport = SqliteTransport(tmp_path / "all.db")
    queue = Queue("any", provider=transport)
    with queue.sync() as jobs:
        jobs.add("plain", 1)
        with pytest.raises(LifecycleError, match="give a URL"):
            Queue("any", provider=transport).another()
    assert transport.state.status == "disconnected"  # nobody else could
    asyncio.run(queue.add("plain", 2))
    assert transport.state.status == "disconnected"
    with queue.sync() as jobs:
        assert jobs.stats().waiting == 2


def test_what_has_no_blocking_form_can_be_waited_for() -> None:
    app = Matador("memory://", schema=Schema({}))
    with app.sync() as shop:
        assert isinstance(shop, SyncMatador)
        assert list(shop.wait(lambda running: running.apply_topology())) == []

        async def waits(running: Matador) -> None:
            with pytest.raises(WrongLoopError):
                shop.wait(waits)

        shop.wait(waits)
