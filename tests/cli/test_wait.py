"""``--wait``: how long a command tries to reach a broker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from tests.cli.conftest import SHOP, Cli


class Refuses:
    """A server that closes every connection at once, and counts them."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.connections = 0
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                one, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            one.close()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture
def refuses() -> Iterator[Refuses]:
    server = Refuses()
    yield server
    server.close()


@pytest.mark.parametrize(
    "command",
    [
        ("queues", "shop.py"),
        ("messages", "list", "shop.py", "--queue", "events"),
        ("dead-letters", "list", "shop.py"),
        ("topology", "apply", "shop.py"),
        ("send", "shop.py", "order.placed", '{"order_id": "1", "amount": 5}'),
        ("tail", "shop.py"),
        ("top", "shop.py", "--once"),
        ("journal", "tap", "shop.py", "--queue", "events", "--journal", "journal"),
        ("dashboard", "shop.py", "--port", "0"),
        ("worker", "shop.py"),
        ("spark", "worker", "shop.py"),
        ("channels", "check", "matador.toml", "--connect"),
        ("jobs", "stats", "emails", "--provider", "{url}"),
    ],
    ids=" ".join,
)
def test_a_command_tries_again_for_as_long_as_it_may(
    cli: Cli, folder: Path, refuses: Refuses, command: tuple[str, ...]
) -> None:
    url = f"redis://127.0.0.1:{refuses.port}/0"
    (folder / "shop.py").write_text(SHOP.replace("sqlite:///shop.db?lease=1", url))
    (folder / "matador.toml").write_text(f'[queue]\ntype = "redis"\nmode = "stream"\nurl = "{url}"')
    command = tuple(one.format(url=url) if one == "{url}" else one for one in command)
    if command[0] in ("dashboard", "spark"):  # without --wait, they go on without a broker
        once = 1
    else:
        found = cli(*command)
        assert (found.code, "Traceback" in found.err) == (1, False), found.err
        once = refuses.connections
    waited = cli(*command, "--wait", "1.5")
    assert waited.code == 1, waited.err
    assert f"127.0.0.1:{refuses.port}" in waited.err
    assert refuses.connections - once > once, "it tried again"
