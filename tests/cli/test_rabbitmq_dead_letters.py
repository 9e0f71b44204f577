"""Dead letters and queues on RabbitMQ, from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.conftest import Cli
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw

from matador.model.topology import Topology

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]


@pytest.fixture
def raw() -> Iterator[Raw]:
    with Raw(broker_url("rabbitmq")) as connection:
        yield connection


@pytest.fixture
def namespace(folder: Path, raw: Raw) -> Iterator[str]:
    """The shop is on RabbitMQ, in a namespace that no other test uses."""
    name = f"d{uuid4().hex[:10]}"
    text = (folder / "shop.py").read_text()
    text = text.replace("sqlite:///shop.db?lease=1", broker_url("rabbitmq"))
    (folder / "shop.py").write_text(text.replace('Topology("shop"', f'Topology("{name}"'))
    yield name
    raw.delete([Topology(name, queues=["events", "billing"])])


def bury(raw: Raw, namespace: str, number: int) -> None:
    """A dead letter as another implementation leaves it."""
    raw.publish(
        f"{namespace}.dlx",
        f"{namespace}.events.undeliverable",
        json.dumps({"id": f"id-{number}", "data": {"order_id": "1", "amount": number}}).encode(),
        {
            "x-matador-attempts": 3,
            "x-matador-created-at": "2026-11-15T19:02:37.435Z",
            "x-matador-event-key": "order.placed",
            "x-matador-importance": "should-investigate",
            "x-matador-subscriber": "email-receipt",
            "x-matador-original-queue": f"{namespace}.events",
            "x-matador-last-error": "card declined" if number else "no such customer",
            "x-matador-dead-letter-reason": "max attempts exceeded (3)",
        },
        message_id=f"id-{number}",
        delivery_mode=2,
    )


def test_dead_letters_are_listed_shown_redriven_and_purged(
    cli: Cli, raw: Raw, namespace: str
) -> None:
    letters = f"{namespace}.events.undeliverable"
    assert cli("topology", "apply", "shop.py").code == 0
    for number in range(5):
        bury(raw, namespace, number)
    for _ in range(2):  # looking changes nothing
        listed = cli("dead-letters", "list", "shop.py", "--json")
        seen = [one["id"] for one in listed.json["dead_letters"]]
        assert seen == [f"id-{number}" for number in range(5)]
    shown = cli("dead-letters", "show", "shop.py", "--id", "id-0")
    assert "no such customer" in shown.out
    redrive = cli("dead-letters", "redrive", "shop.py", "--error", "declined", "--yes")
    assert redrive.code == 0, redrive.err
    redriven = [raw.get(f"{namespace}.events") for _ in range(4)]
    assert [one[1].message_id for one in redriven] == [f"id-{number}" for number in range(1, 5)]
    assert {one[1].headers["x-matador-attempts"] for one in redriven} == {1}
    assert raw.count(letters) == 1
    purge = cli("dead-letters", "purge", "shop.py", "--all", "--yes")
    assert purge.code == 0, purge.err
    assert raw.count(letters) == 0


def test_queues_and_doctor_tell_what_amqp_tells(cli: Cli, raw: Raw, namespace: str) -> None:
    assert cli("topology", "apply", "shop.py").code == 0
    order = '{"order_id": "1", "amount": 5}'
    assert cli("send", "shop.py", "order.placed", order).code == 0
    bury(raw, namespace, 1)
    events, billing = cli("queues", "shop.py", "--json").json["queues"]
    assert (events["queue"], events["waiting"]) == (f"{namespace}.events", 1)
    assert (billing["queue"], billing["waiting"]) == (f"{namespace}.billing", 1)
    assert events["dead_letters"] == {"unhandled": 0, "undeliverable": 1}
    doctor = cli("doctor", "shop.py")
    assert doctor.code == 0, doctor.out
    assert "RabbitMQ 3." in doctor.out or "RabbitMQ 4." in doctor.out
    assert "guest:guest" not in doctor.out + doctor.err
