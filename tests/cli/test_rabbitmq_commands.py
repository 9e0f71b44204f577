"""Commands on RabbitMQ: what is there in another shape is shown, and the log is ours alone."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.conftest import Cli, Start
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw

from matador.model.topology import Topology


@pytest.fixture
def namespace(folder: Path) -> Iterator[str]:
    """The shop is on RabbitMQ now, in a namespace that no other test uses."""
    url, name = broker_url("rabbitmq"), f"c{uuid4().hex[:10]}"
    text = (folder / "shop.py").read_text()
    text = text.replace("sqlite:///shop.db?lease=1", url).replace(
        'Topology("shop"', f'Topology("{name}"'
    )
    (folder / "shop.py").write_text(text)
    yield name
    with Raw(url) as raw:
        raw.delete([Topology(name, queues=["events", "billing"])])


def test_a_queue_in_another_shape_is_shown_and_is_no_failure(cli: Cli, namespace: str) -> None:
    assert cli("topology", "check", "shop.py").code == 1, "nothing is there yet"
    with Raw(broker_url("rabbitmq")) as raw:
        raw.declare_queue(f"{namespace}.events", x_max_length=1000)
    assert cli("topology", "apply", "shop.py").code == 0
    result = cli("topology", "check", "shop.py")
    assert result.code == 0
    row = next(line for line in result.out.splitlines() if f"{namespace}.events " in line)
    assert row.split() == ["!", f"{namespace}.events", *["is", "used", "as", "it", "is:"]]
    assert "x-max-length is 1000, ours would be not set" in result.out
    (note,) = cli("topology", "check", "shop.py", "--json").json["notes"]
    assert note["queue"] == f"{namespace}.events"
    checks = cli("doctor", "shop.py", "--json").json["checks"]
    (check,) = [one for one in checks if one["name"] == f"{namespace}.events"]
    assert check["status"] == "warning"


def test_the_log_of_a_worker_is_not_that_of_the_client_library(
    start: Start, namespace: str
) -> None:
    worker = start("worker", "shop.py")
    worker.says(f"consuming {namespace}.events")
    assert "pika" not in worker.out + worker.err


def test_a_difference_is_told_once(start: Start, namespace: str) -> None:
    with Raw(broker_url("rabbitmq")) as raw:
        raw.declare_queue(f"{namespace}.events", x_max_length=1000)
    worker = start("worker", "shop.py")
    worker.says(f"consuming {namespace}.events")
    assert (worker.out + worker.err).count("x-max-length is 1000") == 1


def test_what_the_broker_does_not_tell_is_not_called_zero(cli: Cli, namespace: str) -> None:
    assert cli("topology", "apply", "shop.py").code == 0
    assert cli("send", "shop.py", "order.placed", '{"order_id": "1", "amount": 5}').code == 0
    row = next(line for line in cli("queues", "shop.py").out.splitlines() if ".events" in line)
    assert row.split() == [f"{namespace}.events", "1", "–", "–", "0"]
    listed = cli("queues", "shop.py", "--json").json["queues"]
    assert [(one["waiting"], one["delayed"], one["in_flight"]) for one in listed] == [
        (1, None, None),
        (1, None, None),
    ]


def test_a_queue_that_cannot_be_paused_is_left_alone(cli: Cli, namespace: str) -> None:
    assert cli("topology", "apply", "shop.py").code == 0
    for command in ("pause", "resume"):
        result = cli("queues", command, "shop.py", "events")
        assert result.code == 1
        assert (
            "rabbitmq cannot pause a queue for all of its workers; stop the workers" in result.err
        )
    listed = cli("queues", "shop.py", "--json").json["queues"]
    assert [one["paused"] for one in listed] == [None, None], "nobody knows"


def test_a_warning_that_the_pages_promise_is_printed(start: Start, namespace: str) -> None:
    order = '{"order_id": "1", "amount": 5}'
    process = start("send", "shop.py", "order.placed", order, "--ordering-key", "a")
    assert process.ends() == 0
    assert "sent without its ordering key" in process.err


def test_messages_that_are_ready_can_be_cancelled_and_others_not_seen(
    cli: Cli, namespace: str
) -> None:
    assert cli("send", "shop.py", "order.placed", '{"order_id": "1", "amount": 5}').code == 0
    result = cli("messages", "list", "shop.py")
    assert result.code == 0, result.err
    assert "rabbitmq shows waiting messages only" in result.err
    assert len(result.out.splitlines()) == 3
    delayed = cli("messages", "list", "shop.py", "--state", "delayed")
    assert delayed.code == 1
    assert "rabbitmq shows waiting messages only, not delayed ones" in delayed.err
    cancelled = cli("messages", "cancel", "shop.py", "--queue", "billing", "--all", "--yes")
    assert (cancelled.code, cancelled.out) == (0, "1 message cancelled\n")
    left = cli("messages", "list", "shop.py", "--json").json["messages"]
    assert [one["queue"] for one in left] == ["events"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (lambda: broker_url("redis").replace("redis", "amqp"), "is Redis, not rabbitmq"),
        (lambda: f"redis://{broker_url('rabbitmq').partition('@')[2]}0", "is RabbitMQ, not redis"),
    ],
    ids=["amqp", "redis"],
)
@pytest.mark.parametrize("command", [["send"], ["queues"], ["doctor"]], ids=" ".join)
def test_a_wrong_server_behind_an_address_is_named(
    cli: Cli, folder: Path, url: Callable[[], str], says: str, command: list[str]
) -> None:
    text = (folder / "shop.py").read_text()
    (folder / "shop.py").write_text(text.replace("sqlite:///shop.db?lease=1", url()))
    event = ["order.placed", '{"order_id": "1", "amount": 5}'] if command == ["send"] else []
    result = cli(*command, "shop.py", *event)
    assert result.code == 1
    assert says in result.out + result.err
    if command != ["doctor"]:
        assert result.err.splitlines()[-1].startswith("error: the server at 127.0.0.1:")
        assert "WARNING matador.transport" not in result.err


def test_a_server_that_never_answers_is_given_up_and_nothing_was_sent(
    cli: Cli, folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"amqp://127.0.0.1:{silent.getsockname()[1]}"
        text = (folder / "shop.py").read_text()
        (folder / "shop.py").write_text(text.replace("sqlite:///shop.db?lease=1", url))
        order = '{"order_id": "1", "amount": 5}'
        result = cli("send", "shop.py", "order.placed", order, "--timeout", "1")
    assert result.code == 1
    assert result.err.splitlines()[-1] == (
        "error: sending took longer than 1 s (--timeout); rabbitmq could not be reached and "
        "nothing was sent"
    )


def test_tail_shows_only_numbers_where_looking_would_disturb(
    cli: Cli, start: Start, namespace: str
) -> None:
    assert cli("topology", "apply", "shop.py").code == 0
    process = start("tail", "shop.py", "--json", "--interval", "0.1")
    process.says("does not show messages without taking them")
    while '"waiting"' not in process.out:  # what is sent before the first look is no change
        assert process.process.poll() is None
        cli("send", "shop.py", "order.placed", '{"order_id": "1", "amount": 5}')
    found = json.loads(process.out.splitlines()[0])
    assert found["type"] == "depth"
    assert found["queue"].startswith(namespace)
    process.signal(signal.SIGINT)
    assert process.ends() == 0
