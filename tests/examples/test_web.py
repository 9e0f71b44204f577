"""Web frameworks: the example of each page runs, sends, and consumes nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

FASTAPI = """
from fastapi.testclient import TestClient
from fastapi_shop import api

with TestClient(api) as client:
    placed = client.post("/orders", json={"order_id": "1", "amount": 5})
    print(placed.status_code, placed.json())
    wrong = client.post("/orders", json={"order_id": "1"})
    print(wrong.status_code)
    print(client.get("/health").json())
"""
FLASK = """
from flask_shop import web

client = web.test_client()
placed = client.post("/orders", json={"order_id": "1", "amount": 5})
print(placed.status_code, placed.json)
print(client.get("/health").json)
"""
FLASK_WAYS = """
import asyncio
from flask_ways import URL, prices, web
from matador.rpc import RpcServer

server = RpcServer(URL, queue="prices")

@server.handler("PRICE")
async def price(product: str) -> int:
    return len(product)

def use():
    client = web.test_client()
    placed = client.post("/users", json={"email": "ada@example.com"})
    print(placed.status_code)
    print(client.get("/jobs/" + placed.json["job"]).json["status"])
    print(client.get("/jobs/7").status_code)
    found = client.get("/prices/pen")
    print(found.status_code, found.json["price"])

async def serve():
    async with server:
        await asyncio.to_thread(use)

asyncio.run(serve())
prices._timeout = 0.1
prices.sync().shutdown()
print(web.test_client().get("/prices/pen").status_code)
"""
DJANGO = """
import django
from django.conf import settings
django.setup()
from django.test import Client
from shop.models import Order

client = Client(raise_request_exception=False)
print(client.post("/orders", b'{"amount": 5}', content_type="text/plain").json())
print(client.post("/orders", b'{}', content_type="text/plain").status_code)
print(client.get("/health").json(), Order.objects.count())
print(client.post("/exports", b'{"since": 0}', content_type="text/plain").status_code)
"""
ROLLED_BACK = """
import django
django.setup()
from django.db import transaction
from matador.django import send, send_on_commit
from shop.events import OrderPlaced
try:
    with transaction.atomic():
        send_on_commit(OrderPlaced(7, 7))
        raise ValueError
except ValueError:
    print("rolled back")
print(send(OrderPlaced(8, 8)).sent)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("shop.py", "fastapi_shop.py", "flask_shop.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    shutil.copytree(EXAMPLES / "django_shop", tmp_path / "django_shop")
    return tmp_path


def run(folder: Path, *arguments: str) -> list[str]:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": "."}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def queued(folder: Path, app: str = "shop.py") -> str:
    return "\n".join(run(folder, "-m", "matador", "queues", app))


def test_fastapi(folder: Path) -> None:
    assert run(folder, "-c", FASTAPI) == [
        "202 {'messages': 2}",
        "422",
        "{'status': 'healthy', 'connection': 'connected'}",
    ]
    assert "2" in queued(folder), "both messages wait for a worker: the web process runs nothing"


def test_flask(folder: Path) -> None:
    assert run(folder, "-c", FLASK) == ["202 {'messages': 2}", "{'status': 'healthy'}"]


def test_flask_with_jobs_calls_and_messages(folder: Path) -> None:
    shutil.copy(ROOT / "docs" / "snippets" / "flask_ways.py", folder)
    assert run(folder, "-W", "error", "-c", FLASK_WAYS) == ["202", "waiting", "404", "200 3", "504"]


class TestDjango:
    @pytest.fixture
    def project(self, folder: Path) -> Path:
        project = folder / "django_shop"
        run(project, "manage.py", "migrate", "--run-syncdb", "--verbosity", "0")
        return project

    def test_a_view_sends_when_its_transaction_is_committed(self, project: Path) -> None:
        assert run(project, "-c", DJANGO) == [
            "{'order': 1}",
            "500",
            "{'status': 'healthy'} 1",
            "202",
        ]
        assert run(project, "-c", ROLLED_BACK) == ["rolled back", "1"]

    @pytest.mark.parametrize("processes", ["1", "2"])
    def test_the_worker_runs_subscribers_with_the_database(
        self, project: Path, processes: str
    ) -> None:
        run(project, "-c", DJANGO)
        lines = self._worker(project, "--processes", processes)
        assert any("receipt for order 1 sent" in line for line in lines)
        look = "import django; django.setup(); from shop.models import Order; "
        look += "print(Order.objects.get().receipt_sent)"
        assert run(project, "-c", look) == ["True"]

    def test_a_view_adds_a_job_and_a_worker_runs_it_with_the_database(self, project: Path) -> None:
        run(project, "-c", DJANGO)
        with subprocess.Popen(
            [sys.executable, "job_worker.py"],
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as worker:
            lines = list(_until(worker, "orders exported"))
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=60)
        assert lines[-1].strip() == "1 orders exported", lines

    @pytest.mark.parametrize("options", [[], ["--processes", "2"], ["--reload"]], ids=" ".join)
    def test_the_worker_has_an_endpoint_json_logs_and_reloads(
        self, project: Path, options: list[str]
    ) -> None:
        run(project, "-c", DJANGO)
        port = free_ports(2)
        command = [sys.executable, "manage.py", "matador_worker", "--log-format", "json"]
        with subprocess.Popen(
            [*command, "--metrics-port", str(port), "--verbosity", "2", *options],
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as worker:
            lines = list(_until(worker, "consuming"))
            if "2" in options:  # the first of them has this port, and may be the second to be ready
                lines += _until(worker, "consuming")
            assert any(line.startswith('{"time"') for line in lines), lines
            with urlopen(f"http://127.0.0.1:{port}/health/live", timeout=30) as answer:
                assert answer.status == 200
            worker.send_signal(signal.SIGTERM)
            lines += worker.communicate(timeout=60)[0].splitlines()
        assert worker.returncode == 0, lines

    def _worker(self, project: Path, *options: str) -> list[str]:
        """What a worker prints until it has sent a receipt, and then ends on a signal."""
        with subprocess.Popen(
            [sys.executable, "manage.py", "matador_worker", *options],
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as worker:
            lines = list(_until(worker, "receipt for order"))
            worker.send_signal(signal.SIGTERM)
            lines += worker.communicate(timeout=60)[0].splitlines()
        assert worker.returncode == 0, lines
        return lines

    def test_a_missing_setting_is_one_line(self, project: Path) -> None:
        settings = project / "shop" / "settings.py"
        settings.write_text(settings.read_text().replace("MATADOR_APP", "OTHER"))
        done = subprocess.run(
            [sys.executable, "manage.py", "matador_worker"],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.strip().endswith('write for example MATADOR_APP = "shop.events:app"')
        assert "Traceback" not in done.stderr


def _until(worker: subprocess.Popen[str], text: str) -> Iterator[str]:
    assert worker.stdout is not None
    for line in worker.stdout:
        yield line
        if text in line:
            return
