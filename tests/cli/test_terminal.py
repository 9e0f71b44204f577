"""What people see on a terminal: questions, and counts that move."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Shop, wait
from tests.cli.test_jobs import PROVIDER
from tests.cli.test_jobs_worker import JOBS

_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
DEAD = "shop.billing.undeliverable"


def _take_terminal() -> None:
    """Ctrl-C is a signal to those whose terminal it is typed on."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A command on a terminal of 30 lines and 120 columns, which can be made larger or smaller."""

    def __init__(self, arguments: tuple[str, ...], folder: Path, **settings: str) -> None:
        self._master, slave = pty.openpty()
        self.resize(30, 120)
        unwanted = ("NO_COLOR", "COLUMNS", "LINES")
        environment = {key: value for key, value in os.environ.items() if key not in unwanted}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "matador", *arguments],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=_take_terminal,
            env={**environment, "TERM": "xterm-256color", **settings},
        )
        os.close(slave)
        self._seen = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            self._seen += data

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def text(self) -> str:
        """All that was ever printed, without colours and movements."""
        return _SEQUENCE.sub("", self._seen.decode("utf-8", "replace"))

    @property
    def raw(self) -> str:
        return self._seen.decode("utf-8", "replace")

    def shows(self, pattern: str) -> None:
        wait(
            lambda: re.search(pattern, self.text) is not None,
            lambda: f"{pattern!r} in:\n{self.text}",
        )

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def ends(self) -> int:
        code = self.process.wait(60)
        self._reader.join(10)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)
        os.close(self._master)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(folder: Path) -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_(*arguments: str, **settings: str) -> Terminal:
        opened.append(Terminal(arguments, folder, **settings))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def test_a_redrive_counts_first_and_asks(terminal: Open, shop: Shop) -> None:
    ids = shop.bury(3)
    refused = terminal("dead-letters", "redrive", "shop.py", "--all")
    refused.shows(r"redrive 3 dead letters\? \[y/N\]")
    refused.type("\n")
    assert refused.ends() == 0
    assert "nothing was changed" in refused.text
    assert shop.ids(DEAD) == ids
    agreed = terminal("dead-letters", "redrive", "shop.py", "--all")
    agreed.shows(r"\[y/N\]")
    agreed.type("y\n")
    assert agreed.ends() == 0
    assert "3 dead letters redriven" in agreed.text
    assert shop.ids("shop.billing") == ids


def test_a_long_redrive_shows_how_far_it_is(terminal: Open, shop: Shop) -> None:
    shop.bury(3000)
    redrive = terminal("dead-letters", "redrive", "shop.py", "--all", "--yes")
    assert redrive.ends() == 0
    assert "3000/3000" in redrive.text


def test_a_worker_counts_live_and_keeps_other_lines_apart(
    terminal: Open, cli: Cli, folder: Path
) -> None:
    text = (folder / "shop.py").read_text()
    body = "async def email_receipt(envelope: Envelope[OrderPlaced]) -> None:\n"
    assert body in text
    noise = "    print('printed ' * 3)\n    logging.getLogger('shop').warning('logged ' * 3)\n"
    setup = "import logging\nlogging.basicConfig()\n"
    (folder / "shop.py").write_text(setup + text.replace(body, body + noise))
    worker = terminal("worker", "shop.py")
    worker.shows(r"order\.placed +email-receipt +shop\.events")
    worker.shows(r"shop\.events +0 +0 +0 +0\.0 +0 +0")
    assert cli("send", "shop.py", "order.placed", '{"order_id": "1", "amount": 500}').code == 0
    worker.shows(r"shop\.events +0 +0 +1 +[\d.]+ +0 +0")
    worker.shows(r"shop\.billing +0 +0 +0 +0\.0 +1 +1")
    worker.process.send_signal(signal.SIGINT)
    assert worker.ends() == 0
    lines = worker.text.replace("\r", "\n").split("\n")
    assert "printed printed printed" in [line.strip() for line in lines]
    assert "WARNING:shop:logged logged logged" in [line.strip() for line in lines]


def test_the_log_of_a_worker_is_not_written_into_its_counts(
    terminal: Open, cli: Cli, folder: Path
) -> None:
    assert cli("send", "shop.py", "order.placed", '{"order_id": "1", "amount": 500}').code == 0
    worker = terminal("worker", "shop.py")
    worker.shows(r"shop\.billing +0 +0 +0 +0\.0 +1 +1")
    worker.process.send_signal(signal.SIGINT)
    assert worker.ends() == 0
    lines = worker.text.replace("\r", "\n").split("\n")
    whole = r"\d\d:\d\d:\d\d charge of order\.placed failed in attempt 1 .* the card was declined"
    assert [line for line in lines if re.fullmatch(whole, line)], worker.text


def test_a_reloaded_worker_says_what_keeps_it_above_its_counts(
    terminal: Open, folder: Path
) -> None:
    worker = terminal("worker", "shop.py", "--reload")
    worker.shows(r"shop\.billing +0 +0 +0 +0\.0 +0 +0")
    good = (folder / "shop.py").read_text()
    (folder / "shop.py").write_text(good + "def broken(\n")
    worker.shows(r"waiting for the next change")
    (folder / "shop.py").write_text(good + "# better\n")
    worker.shows(r"shop\.py changed: restarting")
    worker.type("\x03")
    assert worker.ends() == 0
    lines = worker.text.replace("\r", "\n").split("\n")
    for whole in (r"shop\.py:\d+: .* was never closed; waiting for .*", r"shop\.py changed: .*"):
        assert [line for line in lines if re.fullmatch(rf"[\d:]+ {whole}", line)], worker.text


@pytest.mark.parametrize("columns", [30, 60, 120])
def test_a_narrow_terminal_shows_names_and_leaves_out_numbers(
    terminal: Open, cli: Cli, shop: Shop, columns: int
) -> None:
    shop.bury(1)
    assert cli("queues", "pause", "shop.py", "billing").code == 0
    listing = terminal("queues", "shop.py", COLUMNS=str(columns))
    assert listing.ends() == 0
    _, head, events, billing, *rest = listing.text.replace("\r", "").splitlines()
    shown = {30: ["state", "waiting"], 60: ["state", "waiting", "delayed", "dead", "letters"]}
    every = ["state", "waiting", "delayed", "in", "flight", "dead", "letters"]
    assert head.split() == ["queue", *shown.get(columns, every)]
    assert events.startswith("shop.events")
    assert billing.startswith("shop.billing  paused")
    assert all(len(line) <= columns for line in (head, events, billing))
    assert ("the terminal is too narrow" in " ".join(rest)) == (columns < 120)


def test_a_worker_on_a_narrow_terminal_names_the_queue(terminal: Open, shop: Shop) -> None:
    worker = terminal("worker", "shop.py", "--queues", "billing")
    worker.shows(r"queue +waiting +in flight")
    worker.resize(30, 60)
    worker.shows(r"queue +waiting +handled +failed +dead letters\s+shop.billing +0 +0 +0 +0")
    worker.process.send_signal(signal.SIGINT)
    assert worker.ends() == 0


def test_a_worker_of_jobs_counts_live(terminal: Open, cli: Cli, folder: Path) -> None:
    (folder / "jobs.py").write_text(JOBS)
    add = ["jobs", "add", "emails", *PROVIDER]
    assert cli(*add, "welcome", "1").code == cli(*add, "bad").code == 0
    assert cli(*add, "later", "--delay", "600").code == 0
    worker = terminal("worker", "jobs.py:worker")
    worker.shows(r"queue +waiting +in flight +handled +per second +failed +dead letters")
    worker.shows(r"emails +1 +0 +1 +[\d.]+ +1 +1")
    worker.process.send_signal(signal.SIGINT)
    assert worker.ends() == 0


def test_colours_are_left_out_where_they_are_not_wanted(terminal: Open, shop: Shop) -> None:
    shop.bury(1)
    colourful = terminal("queues", "shop.py")
    plain = terminal("queues", "shop.py", NO_COLOR="1")
    assert colourful.ends() == plain.ends() == 0
    red = "\x1b[1;31m"
    assert red in colourful.raw, "dead letters are red"
    assert red not in plain.raw


@pytest.mark.parametrize(("key", "code"), [("\x03", 130), (None, 143)])
def test_a_question_can_be_interrupted(
    terminal: Open, shop: Shop, key: str | None, code: int
) -> None:
    ids = shop.bury(2)
    asked = terminal("dead-letters", "purge", "shop.py", "--all")
    asked.shows(r"\[y/N\]")
    if key is None:
        asked.process.send_signal(signal.SIGTERM)
    else:
        asked.type(key)
    assert asked.ends() == code
    assert "error: interrupted" in asked.text
    assert "Traceback" not in asked.text
    assert shop.ids(DEAD) == ids
