"""Dead letters, lag and the doctor on Kafka, from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from tests.cli.conftest import Cli
from tests.support.brokers import broker_url
from tests.support.kafka import forget_topics, servers_of

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka")]

_ORDER = '{"order_id": "1", "amount": 5}'


@pytest.fixture
def url() -> str:
    return broker_url("kafka")


@pytest.fixture
def namespace(folder: Path, url: str) -> Iterator[str]:
    """The shop is on Kafka, in a namespace that no other test uses."""
    name = f"d{uuid4().hex[:10]}"
    text = (folder / "shop.py").read_text().replace("sqlite:///shop.db?lease=1", url)
    (folder / "shop.py").write_text(text.replace('Topology("shop"', f'Topology("{name}"'))
    yield name
    forget_topics(url, name)


def bury(url: str, namespace: str, count: int) -> None:
    """Dead letters as another program leaves them."""
    producer = Producer({"bootstrap.servers": servers_of(url), "acks": "all"})
    for number in range(count):
        docket = {
            "eventKey": "order.placed",
            "targetSubscriber": "email-receipt",
            "originalQueue": f"{namespace}.events",
            "attempts": 3,
            "createdAt": "2026-11-15T19:02:37.435Z",
            "importance": "should-investigate",
            "lastError": "card declined" if number else "no such customer",
        }
        data = {"order_id": "1", "amount": number}
        producer.produce(
            f"{namespace}.events.undeliverable",
            json.dumps({"id": f"id-{number}", "data": data, "docket": docket}),
            headers=[
                ("x-matador-id", f"id-{number}".encode()),
                ("x-matador-dead-letter-reason", b"max attempts exceeded (3)"),
            ],
        )
    assert producer.flush(30) == 0


def queues(cli: Cli) -> dict[str, Any]:
    return {one["queue"]: one for one in cli("queues", "shop.py", "--json").json["queues"]}


def test_dead_letters_are_listed_shown_redriven_and_purged(
    cli: Cli, url: str, namespace: str
) -> None:
    events = f"{namespace}.events"
    assert cli("topology", "apply", "shop.py").code == 0
    bury(url, namespace, 5)
    for _ in range(2):  # looking changes nothing
        listed = cli("dead-letters", "list", "shop.py", "--json")
        seen = [one["id"] for one in listed.json["dead_letters"]]
        assert seen == [f"id-{number}" for number in range(5)]
    shown = cli("dead-letters", "show", "shop.py", "--id", "id-0")
    assert "no such customer" in shown.out
    redrive = cli("dead-letters", "redrive", "shop.py", "--error", "declined", "--yes")
    assert redrive.code == 0, redrive.err
    assert queues(cli)[events]["waiting"] == 4
    assert queues(cli)[events]["dead_letters"]["undeliverable"] == 1
    left = cli("dead-letters", "list", "shop.py", "--json").json["dead_letters"]
    assert [one["id"] for one in left] == ["id-0"]
    bury(url, namespace, 3)
    purge = cli("dead-letters", "purge", "shop.py", "--all", "--yes")
    assert purge.code == 0, purge.err
    assert queues(cli)[events]["dead_letters"]["undeliverable"] == 0
    assert queues(cli)[events]["waiting"] == 4


def test_queues_show_the_lag(cli: Cli, url: str, namespace: str) -> None:
    assert cli("topology", "apply", "shop.py").code == 0
    for _ in range(3):
        assert cli("send", "shop.py", "order.placed", _ORDER).code == 0
    bury(url, namespace, 1)
    found = queues(cli)
    assert found[f"{namespace}.events"]["waiting"] == 3
    assert found[f"{namespace}.billing"]["waiting"] == 3
    assert found[f"{namespace}.events"]["dead_letters"] == {"unhandled": 0, "undeliverable": 1}


def test_missing_topics_are_noticed(cli: Cli, namespace: str) -> None:
    billing = f"{namespace}.billing"
    checked = cli("topology", "check", "shop.py")
    assert checked.code == 1
    assert billing in checked.out
    assert billing in cli("doctor", "shop.py").out
    assert cli("topology", "apply", "shop.py").code == 0
    assert cli("topology", "check", "shop.py").code == 0
