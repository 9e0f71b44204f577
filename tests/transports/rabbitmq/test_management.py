"""The management plugin: what it adds where it is, what a stranger on its port must not get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.transports.rabbitmq.conftest import OwnServer

from matador import Topology, WorkQueue
from matador.model.message import Message
from matador.testing import wait_for
from matador.transports.kit.options import read_address
from matador.transports.rabbitmq import RabbitMQTransport
from matador.transports.rabbitmq.options import RabbitMQAddress
from matador.transports.rabbitmq.session import Management, Node, about_cluster

TOPOLOGY = Topology("managed", queues=[WorkQueue("orders")])
QUEUE = "managed.orders"


async def test_what_workers_hold_is_counted(server: OwnServer) -> None:
    transport = RabbitMQTransport(f"amqp://127.0.0.1:{server.port}/?management=true")
    await transport.connect()
    try:
        await transport.apply_topology(TOPOLOGY)
        await transport.send([Message(str(number), QUEUE, b"{}") for number in range(5)])
        subscription = await transport.subscribe(QUEUE, prefetch=2)
        await subscription.receive(2)

        async def known() -> bool:
            return (await transport.depth(QUEUE)).in_flight == 2

        await wait_for(known, timeout=30, message="the plugin to have counted")
        depth = await transport.depth(QUEUE)
        assert (depth.ready, depth.in_flight, depth.unknown) == (3, 2, {"delayed"})
    finally:
        await transport.disconnect()


async def test_doctor_sees_the_cluster(server: OwnServer) -> None:
    transport = RabbitMQTransport(f"amqp://127.0.0.1:{server.port}/?management=true")
    await transport.connect()
    try:
        findings = {one.subject: one for one in await transport.examine()}
    finally:
        await transport.disconnect()
    assert findings["cluster"].text == "1 of 1 servers running"
    assert not any(one.fix for one in findings.values())


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([Node("a"), Node("b", running=False)], "not running: b"),
        ([Node("a", partitions=("b",)), Node("b")], "network partition between: a"),
        ([Node("a", mem_alarm=True)], "low on memory, publishers are blocked: a"),
        ([Node("a"), Node("b", disk_free_alarm=True)], "low on disk, publishers are blocked: b"),
    ],
)
def test_trouble_in_the_cluster_is_serious(nodes: list[Node], said: str) -> None:
    (finding,) = [one for one in about_cluster(nodes) if one.fix]
    assert (finding.text, finding.serious) == (said, True)


@pytest.mark.parametrize("options", ["", "management=false", "management=true"])
async def test_without_it_the_rest_works(
    make: Callable[..., RabbitMQTransport], namespace: str, options: str
) -> None:
    transport = make(options)
    await transport.connect()
    topology = Topology(namespace, queues=[WorkQueue("orders")])
    await transport.apply_topology(topology)
    await transport.send([Message("1", topology.full_name("orders"), b"{}")])
    depth = await transport.depth(topology.full_name("orders"))
    assert (depth.ready, depth.unknown) == (1, {"delayed", "in_flight"})
    told = [one.text for one in await transport.examine() if one.subject == "cluster"]
    assert bool(told) == (options != "management=true"), "what is not looked at, and why"


async def test_a_wrong_password_is_no_more_than_not_knowing(server: OwnServer) -> None:
    address = read_address(RabbitMQAddress, "amqp://guest:wrong@127.0.0.1/?management=true")
    assert await Management(address, "127.0.0.1", server.port).nodes() is None


async def test_somebody_else_on_the_port_is_not_told_the_password() -> None:
    heard: list[bytes] = []
    async with _stranger(heard) as port:
        address = read_address(
            RabbitMQAddress, f"amqp://me:hunter2@h?management=http://127.0.0.1:{port}"
        )
        management = Management(address, "h", 5672)
        assert await management.unacknowledged("orders") is None
        assert await management.nodes() is None
    assert len(heard) == 2
    assert not any(b"Authorization" in request for request in heard)
    assert "hunter2" not in repr(management)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("amqp://host", None),
        ("amqp://host?management=auto", None),
        ("amqp://host?management=off", None),
        ("amqp://host?management=true", "http://host:15672"),
        ("amqp://host?management=http://other:1/", "http://other:1"),
        ("amqps://host", "https://host:15671"),
        ("amqps://host?tls_verify=false", None),
        ("amqps://host?tls_verify=false&management=true", "https://host:15671"),
        ("amqps://host?management=false", None),
    ],
)
def test_who_is_asked_is_who_we_were_told_of_or_who_can_prove_it(
    url: str, asked: str | None
) -> None:
    address = read_address(RabbitMQAddress, url)
    (host, port) = address.hosts[0]
    assert Management(address, host, port)._base == asked


async def test_who_listens_there_is_not_asked_without_being_told_to() -> None:
    # Not even if it says that it is RabbitMQ's management: everybody can say that.
    heard: list[bytes] = []
    claim = (
        b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm="RabbitMQ Management"\r\n'
        b"Content-Length: 0\r\nConnection: close\r\n\r\n"
    )
    async with _stranger(heard, answer=claim) as port:
        for options in ("", "?management=false"):
            management = Management(
                read_address(RabbitMQAddress, f"amqp://me:hunter2@127.0.0.1{options}"),
                "127.0.0.1",
                port - 10_000,
            )
            assert await management.unacknowledged("orders") is None
            assert await management.nodes() is None
    assert heard == []


async def test_who_does_not_answer_is_left_alone_for_a_while() -> None:
    heard: list[bytes] = []
    async with _stranger(heard, answer=b"what?\r\n\r\n") as port:
        address = read_address(RabbitMQAddress, f"amqp://h?management=http://127.0.0.1:{port}")
        management = Management(address, "h", 5672)
        assert await management.nodes() is None
        assert await management.nodes() is None
    assert len(heard) == 1


@asynccontextmanager
async def _stranger(
    heard: list[bytes],
    answer: bytes = (
        b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm="somewhere else"\r\n'
        b"Content-Length: 0\r\nConnection: close\r\n\r\n"
    ),
) -> AsyncGenerator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
