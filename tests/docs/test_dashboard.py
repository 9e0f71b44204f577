"""The program of the page on the dashboard serves one beside its application."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.cli.conftest import wait
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
PROGRAM = "import asyncio, dashboard, sys; asyncio.run(dashboard.main(int(sys.argv[1])))"


@pytest.mark.slow
def test_the_embedded_dashboard_answers(tmp_path: Path) -> None:
    port = free_ports()
    (tmp_path / "dashboard.py").write_text((ROOT / "docs/snippets/dashboard.py").read_text())
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(port)], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}/queues"
    found: list[str] = []

    def answers() -> bool:
        try:
            found.append(httpx.get(url, headers={"accept": "text/html"}).text)
        except httpx.TransportError:
            return False
        return "matador.events" in found[-1]

    try:
        wait(answers, lambda: f"an answer from {url}: {found[-1:]}")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
