"""One file with an object of each way in: run by one worker, shown and redriven by all commands."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.conftest import Cli, Start, dedent, wait
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw
from tests.support.redis import forget_keys

WAYS = {"events", "jobs", "rpc", "pubsub", "channels"}

FILE = dedent('''
    """A program that receives in five ways, and fails until a file says that it is repaired."""

    from dataclasses import dataclass
    from pathlib import Path

    from matador import Matador, Schema, StandardRetryPolicy, Topology, event, subscriber
    from matador.channels import QueueService, Settings, channel, consume
    from matador.channels.settings import QueueSettings
    from matador.jobs import Queue
    from matador.pubsub import Subscriber
    from matador.rpc import RpcServer

    URL, NAME, KIND = {url!r}, {name!r}, {kind!r}
    once = StandardRetryPolicy(max_attempts=1)


    def work(way: str) -> None:
        if not Path("repaired").exists():
            raise KeyError("points")
        with Path("handled.txt").open("a") as file:
            file.write(way + "\\n")


    @event("order.placed", description="A customer placed an order.")
    @dataclass(frozen=True)
    class OrderPlaced:
        number: int


    @subscriber(description="Charge the card.")
    def charge(order: OrderPlaced) -> None:
        work("events")


    app = Matador(
        URL,
        schema=Schema({{OrderPlaced: [charge]}}),
        topology=Topology(NAME, queues=["events"]),
        consume_from=["events"],
        retry=once,
    )
    web = app.producer()
    emails = Queue(f"{{NAME}}-emails", provider=URL)


    @emails.job(attempts=1)
    async def welcome(to: str) -> None:
        work("jobs")


    server = RpcServer(URL, queue=f"{{NAME}}.sums", retry=once)


    @server.handler("ADD")
    async def add(numbers: list[int]) -> None:
        work("rpc")


    sub = Subscriber(URL, exchange=f"{{NAME}}.orders", queue=f"{{NAME}}.analytics", retry=once)


    @sub.on("orders.*")
    async def count(data: dict[str, int]) -> None:
        work("pubsub")


    @channel(f"{{NAME}}-parcels")
    class Parcels:
        @consume("sent")
        async def sent(self, data: dict[str, int]) -> None:
            work("channels")


    mode = {{"mode": "stream"}} if KIND == "redis" else {{}}
    service = QueueService(
        Settings(QueueSettings(type=KIND, url=URL, **mode)), channels=[Parcels], retry=once
    )
''')

SEND = dedent("""
    import asyncio

    from ways import NAME, URL, OrderPlaced, service, web, welcome, emails
    from matador.channels import QueueService
    from matador.pubsub import Publisher
    from matador.rpc import RpcClient
    import ways

    async def main() -> None:
        async with web:
            await web.send(OrderPlaced(1))
        async with emails:
            await welcome.add(to="ada@example.com")
        async with RpcClient(URL, queue=f"{NAME}.sums") as client:
            await client.notify("ADD", [1, 2])
        async with Publisher(URL, exchange=f"{NAME}.orders") as publisher:
            await publisher.publish("orders.created", {"id": 1})
        async with QueueService(service._settings) as sender:
            await sender.send(f"{NAME}-parcels", "sent", {"id": 1})

    asyncio.run(main())
""")


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis", marks=pytest.mark.broker),
        pytest.param("rabbitmq", marks=pytest.mark.broker),
    ]
)
def ways(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The file, with names of its own on a broker that others use as well."""
    kind, name = str(request.param), f"w{uuid4().hex[:8]}"
    server = "" if kind == "sqlite" else broker_url(kind)
    url = {"sqlite": "sqlite:///ways.db", "redis": f"{server}?prefix={name}"}.get(kind, server)
    (folder / "ways.py").write_text(FILE.format(url=url, name=name, kind=kind))
    (folder / "send.py").write_text(SEND)
    yield kind
    if kind == "redis":
        asyncio.run(forget_keys(server, name))
    elif kind == "rabbitmq":
        from matador.loading import load_objects
        from matador.observe.sources import KINDS, sources

        found, _, _ = load_objects(str(folder / "ways.py"), KINDS, "object")
        with Raw(server) as raw:
            raw.delete([one.topology for one in sources(found)])


def test_a_file_with_every_way_in_is_run_shown_and_redriven(
    start: Start, cli: Cli, ways: str, folder: Path
) -> None:
    assert cli("topology", "check", "ways.py").code == 1, "nothing is there yet"
    assert cli("topology", "apply", "ways.py").code == 0
    assert cli("topology", "check", "ways.py").code == 0
    shown = cli("topology", "show", "ways.py", "--json").json["queues"]
    assert {one["way"] for one in shown} == WAYS
    assert {name["name"] for one in shown for name in one["subscribers"]} == {
        "charge", "welcome", "ADD", "count", "Parcels.sent"
    }  # fmt: skip
    subprocess.run([sys.executable, "send.py"], check=True, cwd=folder, timeout=60)

    counts = cli("queues", "ways.py", "--json")
    assert {one["way"]: one["waiting"] for one in counts.json["queues"]} == dict.fromkeys(WAYS, 1)
    assert "waiting" in cli("queues", "ways.py").out
    waiting = cli("messages", "list", "ways.py", "--json").json["messages"]
    assert {one["way"]: one["attempts"] for one in waiting} == dict.fromkeys(WAYS, 0)
    top = cli("top", "ways.py", "--once", "--interval", "0.1", "--json").json["queues"]
    assert sum(one["waiting"] for one in top) == 5

    worker = start("worker", "ways.py", "--concurrency", "2")
    worker.says("with concurrency 2", times=5)

    def dead() -> list[dict[str, object]]:
        found = cli("dead-letters", "list", "ways.py", "--json")
        assert found.code == 0, found.err
        return found.json["dead_letters"]

    wait(lambda: len(dead()) == 5, lambda: f"five dead letters: {dead()}\n{worker.err}")
    letters = dead()
    assert {str(one["way"]) for one in letters} == WAYS
    assert {one["error_type"] for one in letters} == {"KeyError"}
    listed = cli("dead-letters", "list", "ways.py")
    assert listed.out.count("KeyError: points") == 5, listed.out
    ids = [text for one in letters for text in ("--id", str(one["id"]))]
    full = cli("dead-letters", "show", "ways.py", *ids)
    assert full.out.count("ways.py") >= 5
    assert "src/matador" not in full.out, "the traceback is the user's alone"
    doctor = cli("doctor", "ways.py", "--json")
    assert doctor.code == 0, doctor.out
    dead_checks = [one for one in doctor.json["checks"] if one["name"].endswith("dead letters")]
    assert [one["status"] for one in dead_checks] == ["warning"] * 5

    (folder / "repaired").touch()
    moved = cli("dead-letters", "redrive", "ways.py", "--all", "--yes", "--json")
    assert (moved.code, moved.json["redriven"]) == (0, 5), moved.err
    handled = folder / "handled.txt"
    wait(
        lambda: handled.exists() and sorted(handled.read_text().split()) == sorted(WAYS),
        lambda: f"five handled: {handled.exists() and handled.read_text()}\n{worker.err}",
    )
    assert dead() == []
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err


@pytest.mark.parametrize("ways", ["sqlite"], indirect=True)
def test_one_that_cannot_start_ends_the_others_with_its_error(
    start: Start, ways: str, folder: Path
) -> None:
    text = (folder / "ways.py").read_text()
    (folder / "ways.py").write_text(
        text + "\nlost = RpcServer('redis://127.0.0.1:1', queue='x')\nlost.register('ADD', add)\n"
    )
    worker = start("worker", "ways.py")
    assert worker.ends() == 1
    assert "127.0.0.1:1" in worker.err.splitlines()[-1]
    assert "Traceback" not in worker.err
    waiting = start("worker", "ways.py", "--wait", "600")
    waiting.says("trying again for")
    waiting.signal(signal.SIGINT)
    assert waiting.ends() == 0, waiting.err
