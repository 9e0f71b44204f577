"""The journal records RPC calls and messages of pub/sub and channels, when asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from matador.channels import QueueService, QueueSettings, RetrySettings, Settings, channel, consume
from matador.errors import ConfigurationError
from matador.observe import Journal
from matador.observe.journal.records import DeliveryRecord, SentRecord, decode_record
from matador.observe.journal.segments import finished
from matador.pubsub import AckStrategy, Publisher, Subscriber
from matador.rpc import RemoteError, RpcClient, RpcServer
from matador.testing import wait_for


def records(folder: Path, kind: type[Any]) -> list[Any]:
    lines = [line for path in finished(folder) for line in path.read_bytes().splitlines()]
    return [one for one in map(decode_record, lines) if isinstance(one, kind)]


async def test_calls_and_their_attempts(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    url = f"sqlite:///{tmp_path / 'rpc.db'}"
    server = RpcServer(url, queue="maths", journal=journal)

    @server.handler("ADD")
    async def add(numbers: list[int]) -> int:
        if not numbers:
            raise ValueError("nothing to add")
        return sum(numbers)

    async with server, RpcClient(url, queue="maths", journal=journal) as client:
        assert await client.call("ADD", [1, 2], correlation_id="c-1") == 3
        with pytest.raises(RemoteError, match="nothing to add"):
            await client.call("ADD", [])
    sent = records(tmp_path, SentRecord)
    assert [(one.way, one.event_key, one.subscriber) for one in sent] == [
        ("rpc", "ADD", "maths")
    ] * 2
    assert [json.loads(bytes(one.data)) for one in sent] == [[1, 2], []]
    assert sent[0].correlation_id == "c-1"
    attempts = records(tmp_path, DeliveryRecord)
    assert [(one.way, one.id, one.outcome) for one in attempts] == [
        ("rpc", sent[0].id, "success"),
        ("rpc", sent[1].id, "discard"),
    ]
    assert (attempts[1].error_type, attempts[1].error) == ("ValueError", "nothing to add")


async def test_published_messages_and_retries(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    url = "memory://?name=recording"
    ack = AckStrategy(max_retries=2)
    subscriber = Subscriber(url, exchange="shop", queue="analytics", ack=ack, journal=journal)
    seen: list[int] = []

    @subscriber.on("orders.*")
    async def order(data: dict[str, int]) -> None:
        seen.append(data["id"])
        if data["id"] == 2:
            raise OSError("never")

    async with subscriber, Publisher(url, exchange="shop", journal=journal) as publisher:
        await publisher.publish_many([("orders.created", {"id": 1}), ("orders.paid", {"id": 2})])
        await publisher.publish("nobody.cares", {"id": 3})
        await wait_for(lambda: len(seen) == 3)
    sent = {one.event_key: one for one in records(tmp_path, SentRecord)}
    assert sent.keys() == {"orders.created", "orders.paid", "nobody.cares"}
    assert {one.subscriber for one in sent.values()} == {"shop"}
    found = [(one.event_key, one.attempt, one.outcome) for one in records(tmp_path, DeliveryRecord)]
    assert sorted(found) == [
        ("orders.created", 1, "success"),
        ("orders.paid", 1, "retry"),
        ("orders.paid", 2, "dead-letter"),
    ]


@dataclass(frozen=True)
class Order:
    id: str


async def test_channels_are_recorded_as_plain_data(tmp_path: Path) -> None:
    got: list[str] = []

    @channel("recorded-orders")
    class Orders:
        @consume("created")
        async def created(self, order: Order) -> None:
            got.append(order.id)

    queue = QueueSettings(type="memory", url="memory://?name=channels", compression=True)
    settings = Settings(queue, RetrySettings(enabled=False))
    async with QueueService(settings, channels=[Orders], journal=Journal(tmp_path)) as service:
        await service.send("recorded-orders", "created", Order("1"))
        await service.publish("recorded-orders", "created", Order("2"))
        await wait_for(lambda: len(got) == 2)
    sent = records(tmp_path, SentRecord)
    assert sorted(json.loads(bytes(one.data))["id"] for one in sent) == ["1", "2"]
    assert [one.outcome for one in records(tmp_path, DeliveryRecord)] == ["success"] * 2


@pytest.mark.parametrize("make", [Publisher, RpcClient, RpcServer, Subscriber])
def test_a_wrong_journal_is_an_error_at_once(make: Any) -> None:
    given: dict[str, Any] = {"exchange": "e"} if make in (Publisher, Subscriber) else {"queue": "q"}
    given["journal"] = "journal/"
    with pytest.raises(ConfigurationError, match=r"write Journal\('journal/'\)"):
        make("memory://", **given)


async def test_a_recorder_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def on_start(self) -> None:
            raise OSError("no disk")

        async def on_stop(self) -> None:
            raise OSError("no disk")

        def record_sent(self, message: object) -> None:
            raise OSError("no disk")

        def record_attempt(self, attempt: object) -> None:
            raise OSError("no disk")

    got: list[object] = []
    url = "memory://?name=broken"
    broken: Any = Broken()
    subscriber = Subscriber(url, exchange="shop", queue="q", journal=broken)

    @subscriber.on("#")
    async def anything(data: object) -> None:
        got.append(data)

    async with subscriber, Publisher(url, exchange="shop", journal=broken) as publisher:
        await publisher.publish("a", {"n": 1})
        await publisher.publish("a", {"n": 2})
        await wait_for(lambda: len(got) == 2)
    assert "not recorded" in caplog.text
