"""What the doctor hears about a server."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.redis import OwnServer
from tests.transports.redis.conftest import Open

from matador import Matador, Schema
from matador.cli.doctor import check_broker
from matador.errors import NotConnectedError
from matador.model.message import Finding
from matador.observe.sources import Source
from matador.transports.base import Examining
from matador.transports.redis import RedisPubSubTransport, RedisTransport
from matador.transports.redis_client.doctor import about_server

pytestmark = pytest.mark.broker


async def found(transport: Examining) -> dict[str, Finding]:
    return {finding.subject: finding for finding in await transport.examine()}


async def test_a_server_set_up_for_messages_is_fine(open_bench: Open) -> None:
    bench = await open_bench()
    assert isinstance(bench.transport, Examining)
    findings = await found(bench.transport)
    assert [one.fix for one in findings.values()] == [""] * 3
    assert "Redis" in findings["server"].text


async def test_an_eviction_policy_is_a_warning(open_bench: Open, client: Any) -> None:
    bench = await open_bench()
    await client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        memory = (await found(bench.transport))["memory"]
    finally:
        await client.config_set("maxmemory-policy", "noeviction")
    assert "allkeys-lru" in memory.text
    assert "noeviction" in memory.fix
    assert not memory.serious


@pytest.mark.parametrize(
    ("setting", "value"), [("appendonly", "no"), ("appendfsync", "no"), ("appendfsync", "everysec")]
)
async def test_no_persistence_is_a_warning(
    open_bench: Open, client: Any, setting: str, value: str
) -> None:
    bench = await open_bench()
    before = (await client.config_get(setting))[setting]
    await client.config_set(setting, value)
    try:
        disk = (await found(bench.transport))["persistence"]
    finally:
        await client.config_set(setting, before)
    assert f"CONFIG SET {setting}" in disk.fix


async def test_what_keeps_nothing_needs_no_disk(server: OwnServer) -> None:
    transport = RedisPubSubTransport(server.url)
    await transport.connect()
    assert list(await found(transport)) == ["server"]
    await transport.disconnect()


async def test_it_needs_a_connection(server: OwnServer) -> None:
    with pytest.raises(NotConnectedError):
        await RedisTransport(server.url).examine()


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"redis_version": "5.0.14"}, "too old"),
        ({"redis_version": "7.0.1", "role": "slave"}, "is a replica"),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1", "cluster_enabled": "1"}, "cluster"),
    ],
)
def test_a_server_that_will_not_do_is_a_problem(facts: dict[str, str], said: str) -> None:
    assert [
        one for one in about_server(facts, "name the primary") if one.serious and said in one.text
    ]


def test_valkey_is_known_by_its_name() -> None:
    (finding,) = about_server(
        {"redis_version": "7.2.4", "valkey_version": "8.0.1"}, "name the primary"
    )
    assert finding.text == "Valkey 8.0.1"


async def test_the_doctor_says_it(server: OwnServer, client: Any, prefix: str) -> None:
    transport = RedisTransport(server.url, prefix=prefix)
    app = Matador(transport, schema=Schema())
    await client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        checks = {check.name: check async for check in check_broker(Source("app", app))}
    finally:
        await client.config_set("maxmemory-policy", "noeviction")
    assert {name: check.status for name, check in checks.items()} == {
        "connection": "ok",
        "server": "ok",
        "memory": "warning",
        "persistence": "ok",
        "queues": "warning",
    }
    assert "noeviction" in checks["memory"].fix
