"""``matador worker`` and ``matador jobs worker``: metrics, health checks and JSON logs."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, Process, Start, wait
from tests.cli.test_jobs import PROVIDER
from tests.cli.test_jobs_worker import JOBS
from tests.support.ports import free_ports

pytestmark = pytest.mark.slow  # it starts many processes

ORDER = '{"order_id": "1", "amount": 500}'


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def _json_lines(process: Process) -> list[dict[str, Any]]:
    said = process.err.splitlines()
    return [json.loads(line) for line in said if line != "the shop's module was imported"]


def test_a_worker_serves_metrics_and_health(start: Start, cli: Cli, folder: Path) -> None:
    port = free_ports(1)
    assert cli("send", "shop.py", "order.placed", ORDER).code == 0
    worker = start("worker", "shop.py", "--metrics-port", str(port))
    wait(lambda: _get(port, "/health/ready")[0] == 200, lambda: worker.err)
    wanted = (
        'outcome="success",queue="shop.events",subscriber="email-receipt",way="event"} 1.0',
        'outcome="dead-letter",queue="shop.billing",subscriber="charge",way="event"} 1.0',
        'matador_queue_depth{queue="shop.events",state="waiting"} 0.0',
        'matador_connection_up{transport="sqlite"} 1.0',
    )
    wait(lambda: all(one in _get(port, "/metrics")[1] for one in wanted), lambda: worker.err)
    status, body = _get(port, "/health/live")
    assert (status, json.loads(body)["status"]) == (200, "healthy")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err
    assert _get(port, "/health/live")[0] == 0


def test_each_of_several_processes_has_a_port(start: Start) -> None:
    port = free_ports(2)
    worker = start("worker", "shop.py", "--processes", "2", "--metrics-port", str(port))
    for one in (port, port + 1):
        wait(lambda one=one: _get(one, "/health/ready")[0] == 200, lambda: worker.err)
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err


def test_metrics_that_the_application_has_are_served(start: Start, folder: Path) -> None:
    text = (folder / "shop.py").read_text()
    text = text.replace(
        "app = Matador(",
        "from matador.observe import Metrics\n\nMINE = Metrics(max_series=1)\napp = Matador(",
    )
    text = text.replace(
        '    consume_from=["events"', '    hooks=[MINE],\n    consume_from=["events"'
    )
    (folder / "shop.py").write_text(
        text + "\nfrom prometheus_client import Gauge\n"
        'Gauge("shop_mood", "Mine.", registry=MINE.registry)\n'
    )
    port = free_ports(1)
    worker = start("worker", "shop.py", "--metrics-port", str(port))
    wait(lambda: "shop_mood 0.0" in _get(port, "/metrics")[1], lambda: worker.err)


def test_wrong_ports_are_one_line(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = cli("worker", "shop.py", "--metrics-port", port)
        assert (result.code, "choose another host or port" in result.err) == (2, True), result.err
    assert cli("worker", "shop.py", "--metrics-port", "70000").code == 2
    arguments = ("--processes", "9", "--metrics-port", "65530")
    assert cli("worker", "shop.py", *arguments).code == 2
    assert "json" in cli("worker", "shop.py", "--log-format", "jsn").err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--metrics-host", "0.0.0.0"), "--metrics-host needs --metrics-port"),
        (("--reload-folder", "."), "--reload-folder needs --reload"),
        (("--reload", "--reload-folder", "nowhere"), "there is no folder nowhere"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(
    cli: Cli, options: tuple[str, ...], said: str
) -> None:
    result = cli("worker", "shop.py", *options)
    assert (result.code, said in result.err) == (2, True), result.err


def test_a_job_worker_serves_them_too(start: Start, cli: Cli, folder: Path) -> None:
    (folder / "jobs.py").write_text(JOBS)
    port = free_ports(1)
    assert cli("jobs", "add", "emails", "welcome", "1", *PROVIDER).code == 0
    worker = start("worker", "jobs.py:worker", "--metrics-port", str(port))
    wanted = ('name="welcome",outcome="success"', 'way="job"', 'matador_queue_depth{queue="emails"')
    wait(lambda: all(one in _get(port, "/metrics")[1] for one in wanted), lambda: worker.err)
    assert _get(port, "/health/ready")[0] == 200
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err


@pytest.mark.parametrize("processes", ["1", "2"])
def test_json_logs_say_which_message_they_are_about(
    start: Start, cli: Cli, folder: Path, processes: str
) -> None:
    text = (folder / "shop.py").read_text()
    text = text.replace(
        "    with Path(", '    logging.getLogger("shop").warning("sending it")\n    with Path('
    )
    (folder / "shop.py").write_text(
        "import logging\n"
        + text.lstrip().replace('"""A shop', '# "', 1).replace('amounts."""', "amounts", 1)
    )
    sent = cli("send", "shop.py", "order.placed", ORDER, "--correlation-id", "c-7")
    assert sent.code == 0, sent.err
    arguments = ("--log-format", "json", "--processes", processes)
    worker = start("worker", "shop.py", *arguments)
    worker.says("sending it")
    worker.says("dead-lettered")
    worker.says("consuming shop.billing", times=int(processes))
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 0, worker.err
    lines = _json_lines(worker)
    mine = next(one for one in lines if one["message"] == "sending it")
    assert (mine["logger"], mine["level"], mine["correlation_id"]) == ("shop", "WARNING", "c-7")
    assert (mine["queue"], mine["subscriber"]) == ("shop.events", "email-receipt")
    failed = next(one for one in lines if "dead-lettered" in one["message"])
    assert (failed["queue"], failed["event"]) == ("shop.billing", "order.placed")
    assert failed["correlation_id"] == "c-7"
    assert failed["message_id"] != mine["message_id"]
    assert mine.get("process") == (None if processes == "1" else failed["process"])
