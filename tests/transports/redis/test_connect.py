"""Ways to reach a server: TLS, a socket, Sentinels that know where it is."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.support.ports import free_ports
from tests.support.redis import OwnServer, plain_client
from tests.transports.redis.test_connection import send_surely

from matador.errors import ConnectionFailedError
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.testing.compliance.bench import Bench, bodies
from matador.transports.redis import RedisTransport

pytestmark = pytest.mark.broker


async def bench_on(url: str) -> Bench:
    transport = RedisTransport(url, lease=1)
    await transport.connect()
    topology = Topology("shop", queues=["events"])
    notes = await transport.apply_topology(topology)
    return Bench(transport, topology, notes, patience=10, quiet=0.1)


async def exchange(url: str) -> None:
    bench = await bench_on(url)
    try:
        await bench.send("a")
        assert bodies(await bench.drain(bench.name(), 1)) == ["a"]
    finally:
        await bench.transport.disconnect()


@contextlib.contextmanager
def running(server: OwnServer, *options: str) -> Generator[OwnServer]:
    server.start(*options)
    try:
        yield server
    finally:
        server.stop()


async def test_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with running(OwnServer(tmp_path), "--unixsocket", str(path)):
        await exchange(f"redis+unix://{path}?db=1")


async def test_tls(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    certificate, key, port = tmp_path / "server.pem", tmp_path / "server.key", free_ports()
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = [openssl, "req", *made, *names, *files]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    tls = f"--tls-port {port} --tls-cert-file {certificate} --tls-key-file {key}".split()
    options = [*tls, "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no"]
    with running(OwnServer(tmp_path), *options):
        url = f"rediss://127.0.0.1:{port}"
        await exchange(f"{url}?tls_ca={certificate}")
        await exchange(f"{url}?tls_verify=false")
        with pytest.raises(ConnectionFailedError, match="check host, port and TLS"):
            await exchange(url)


@pytest.mark.parametrize("url", ["redis://{}/0", "redis+sentinel://{}/shop"])
async def test_a_server_that_accepts_and_does_not_answer_is_given_up(url: str) -> None:
    ended = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = RedisTransport(url.format(f"127.0.0.1:{port}"), timeout=0.2)
    try:
        async with asyncio.timeout(30):
            with pytest.raises(ConnectionFailedError) as caught:
                await transport.connect()
        assert "redis.asyncio" not in str(caught.value)
        assert "no answer in time" in str(caught.value) or "No master found" in str(caught.value)
    finally:
        ended.set()
        server.close()
        await server.wait_closed()


async def test_the_sentinels_name_the_primary_before_and_after_a_failover(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second", "sentinel")]
    for folder in folders:
        folder.mkdir()
    first, second, sentinel = map(OwnServer, folders)
    configuration = folders[2] / "sentinel.conf"
    with running(first), running(second, "--replicaof", "127.0.0.1", str(first.port)):
        configuration.write_text(
            f"port {sentinel.port}\n"
            f"sentinel monitor shop 127.0.0.1 {first.port} 1\n"
            "sentinel down-after-milliseconds shop 500\n"
            "sentinel failover-timeout shop 2000\n"
        )
        sentinel.start_with(str(configuration), "--sentinel")
        try:
            async with plain_client(f"redis://127.0.0.1:{sentinel.port}") as client:

                async def knows_the_replica() -> bool:
                    return len(await client.sentinel_slaves("shop")) == 1

                await wait_for(knows_the_replica, timeout=30)
            bench = await bench_on(f"redis+sentinel://127.0.0.1:{sentinel.port}/shop")
            try:
                subscription = await bench.subscribe()
                await bench.send("before")
                await bench.complete([await bench.receive_one(subscription)])
                await asyncio.to_thread(first.stop)
                await send_surely(bench, "after", patience=60)
                assert bodies([await bench.receive_one(subscription)]) == ["after"]
            finally:
                await bench.transport.disconnect()
        finally:
            sentinel.stop()
