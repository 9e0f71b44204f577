"""Alerts: what is told when, and a real server that is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.conftest import Serve, fail_orders

from matador import Matador
from matador.dashboard import DashboardOptions, alerts
from matador.dashboard.alerts import ProblemChanges
from matador.dashboard.problems import Problem
from matador.errors import ConfigurationError
from matador.testing import wait_for


def letters(number: int) -> Problem:
    return Problem(f"{number} dead letters of events", None, "/", subject="dead letters of events")


PAUSED = Problem("events is paused", None, "/")


def test_what_lasts_is_told_once_when_it_begins_and_when_it_ends() -> None:
    changes = ProblemChanges(steady=20)
    told: list[tuple[float, list[str], list[str]]] = []
    for now, problems in (
        (0.0, [letters(1)]),
        (10.0, [letters(2), PAUSED]),
        (20.0, [letters(3), PAUSED]),
        (25.0, [letters(4)]),  # the pause was too short
        (35.0, [letters(5), PAUSED]),
        (45.0, [PAUSED]),
        (50.0, [letters(6), PAUSED]),  # they are back
        (55.0, [letters(6), PAUSED]),
        (60.0, []),
        (79.0, []),
        (80.0, []),
    ):
        begun, ended = changes.seen(problems, now)
        changes.told(begun, ended)
        if begun or ended:
            told.append((now, [one.text for one in begun.values()], list(ended)))
    assert told == [
        (20.0, ["3 dead letters of events"], []),
        (55.0, [PAUSED.text], []),
        (80.0, [], ["dead letters of events", PAUSED.text]),
    ]


def test_what_could_not_be_told_is_told_later() -> None:
    changes = ProblemChanges(steady=0)
    assert changes.seen([PAUSED], 1.0)[0]
    assert changes.seen([PAUSED], 2.0)[0]
    changes.told(*changes.seen([PAUSED], 3.0))
    assert changes.seen([PAUSED], 4.0) == ({}, {})
    assert changes.seen([], 5.0)[1]
    assert changes.seen([PAUSED], 6.0) == ({}, {})


class Hook(HTTPServer):
    """A webhook that refuses the first request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Told)
        self.bodies: list[dict[str, Any]] = []
        self.refused = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook/secret-of-the-hook"


class Told(BaseHTTPRequestHandler):
    server: Hook  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_first = not self.server.refused
        self.server.refused += is_first
        if not is_first:
            self.server.bodies.append(body)
        self.send_response(503 if is_first else 204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


async def test_a_webhook_is_told_when_a_problem_begins_and_ends(
    serve: Serve,
    shop: Callable[..., Matador],
    hook: Hook,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(alerts, "STEADY", 0.0)
    monkeypatch.setattr(alerts, "_FIRST_PAUSE", 0.01)
    app = shop()
    await fail_orders(app, [500])
    async with serve(app, webhook=hook.url) as browser:
        await wait_for(lambda: bool(hook.bodies), timeout=60)
        begun = hook.bodies[0]
        assert begun["source"] == "shop"
        assert "1 dead letter of events" in begun["text"]
        assert [one["link"] for one in begun["begun"]] == ["/dead-letters?queue=events"]
        await browser.letters_known(1)
        await browser.move(verb="purge", scope="all")
        await wait_for(lambda: bool(hook.bodies[-1]["ended"]), timeout=60)
        assert "✓ over: 1 dead letter of events" in hook.bodies[-1]["text"]
        assert (hook.bodies[-1]["problems"], hook.bodies[-1]["begun"]) == (0, [])
    assert "it answered 503" in caplog.text
    assert "secret-of-the-hook" not in caplog.text


def test_a_webhook_is_an_address_and_a_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must begin with http"):
        DashboardOptions(history="h.db", webhook="file:///etc/passwd")
    assert "secret" not in repr(DashboardOptions(history="h.db", webhook="https://x/secret"))
