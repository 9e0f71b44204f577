"""What the tests of the command line share: a shop on a real file, and ways to run commands."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from matador import JsonCodec
from matador.cli.program import run
from matador.model.message import Message, StoredMessage
from matador.model.topology import Topology
from matador.testing import make_docket, make_envelope
from matador.transports.sqlite import SqliteTransport

SHOP = '''
"""A shop whose cashier refuses large amounts."""

from dataclasses import dataclass
from pathlib import Path

from matador import (
    DontRetry, Envelope, Matador, Schema, SqliteCheckpointStore, Topology, WorkQueue, event,
    subscriber,
)

print("the shop's module was imported")


@event("order.placed", description="A customer placed an order.", aliases=["order.created"])
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@event("order.lost", description="Nobody cares.")
@dataclass(frozen=True)
class OrderLost:
    order_id: str


@subscriber(description="Email the receipt.", idempotent="yes")
async def email_receipt(envelope: Envelope[OrderPlaced]) -> None:
    with Path("receipts.txt").open("a") as file:
        file.write(envelope.data.order_id + "\\n")


@subscriber(description="Charge the card.", idempotent="resumable", queue="billing")
async def charge(envelope: Envelope[OrderPlaced]) -> None:
    if envelope.data.amount > 100:
        raise DontRetry("the card was declined")


app = Matador(
    "sqlite:///shop.db?lease=1",
    schema=Schema({OrderPlaced: [email_receipt, charge], OrderLost: []}),
    topology=Topology("shop", queues=["events", WorkQueue("billing", concurrency=4)]),
    consume_from=["events", "billing"],
    checkpoints=SqliteCheckpointStore("checkpoints.db"),
)
'''
TOPOLOGY = Topology("shop", queues=["events", "billing"])


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``shop.py``, which is the current one."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.fixture
def cli(folder: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Runs a command in this process."""
    modules, paths = set(sys.modules), list(sys.path)
    level = logging.getLogger().level

    def call(*arguments: str) -> Result:
        capfd.readouterr()
        code = run(arguments)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    yield call
    sys.path[:] = paths
    logging.getLogger().setLevel(level)
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(folder):
            del sys.modules[name]


class Process:
    """A command in a process of its own, ended with the test."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self._out = folder / f"out-{time.monotonic_ns()}.txt"
        self._err = self._out.with_name(self._out.name.replace("out", "err"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "matador", *arguments],
                cwd=folder,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "NO_COLOR": "1"},
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def says(self, text: str, *, times: int = 1, within: float = 60.0) -> None:
        """Wait until it has said something, on stdout or stderr."""
        wait(
            lambda: (self.out + self.err).count(text) >= times,
            lambda: f"{text!r} in:\n{self.out}\n{self.err}",
            within,
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self, within: float = 60.0) -> int:
        """Wait for its exit code."""
        return self.process.wait(within)


def wait(condition: Callable[[], bool], what: Callable[[], str], within: float = 60.0) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, f"waited in vain for {what()}"
        time.sleep(0.01)


Start = Callable[..., Process]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts commands in processes of their own; those that still run are killed at the end."""
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        process = Process(arguments, folder)
        started.append(process)
        return process

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


class Shop:
    """The shop's file, seen past the command line."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "shop.db"

    def put(self, queue: str, bodies: Sequence[tuple[str, bytes]]) -> None:
        """Put messages of these ids and bodies into a queue, which is made if need be."""

        async def put(transport: SqliteTransport) -> None:
            reason = {"x-matador-dead-letter-reason": "it failed"}
            messages = [Message(id_, queue, body, reason) for id_, body in bodies]
            for start in range(0, len(messages), 1000):
                errors = await transport.send(messages[start : start + 1000])
                assert not any(errors)

        self._with(put)

    def bury(self, number: int, *, amount: int = 500, **docket: Any) -> list[str]:
        """Put orders among the undeliverable dead letters of billing; their ids."""
        ids = [f"{index:04d}-{amount}" for index in range(number)]
        bodies = [(id_, envelope(id_, amount, **docket)) for id_ in ids]
        self.put("shop.billing.undeliverable", bodies)
        return ids

    def messages(self, queue: str) -> list[StoredMessage]:
        """What is in a queue."""

        async def look(transport: SqliteTransport) -> list[StoredMessage]:
            return [one async for one in transport.browse(queue)]

        return self._with(look)

    def ids(self, queue: str) -> list[str]:
        """The ids of what is in a queue, in order."""
        return [one.id for one in self.messages(queue)]

    def _with(self, work: Callable[[SqliteTransport], Any]) -> Any:
        async def connected() -> Any:
            transport = SqliteTransport(self._file, lease=1)
            await transport.connect()
            try:
                await transport.apply_topology(TOPOLOGY)
                return await work(transport)
            finally:
                await transport.disconnect()

        return asyncio.run(connected())


def envelope(id_: str, amount: int, **docket: Any) -> bytes:
    """The body of an order on its way to the cashier, as it is after three attempts."""
    given: dict[str, Any] = {
        "event_key": "order.placed",
        "subscriber": "charge",
        "attempts": 3,
        "original_queue": "shop.billing",
        "scheduled_for": datetime(2026, 1, 1, tzinfo=UTC),
        "first_error": "the gateway timed out",
        "last_error": "the card was declined",
        "correlation_id": "c-1",
        "metadata": {"till": 7},
        **docket,
    }
    data = msgspec.Raw(msgspec.json.encode({"order_id": id_, "amount": amount}))
    made = make_envelope(data, id=id_, docket=make_docket(**given))
    return JsonCodec().encode(made).body


@pytest.fixture
def shop(folder: Path) -> Shop:
    return Shop(folder)


def dedent(text: str) -> str:
    """A module's text, without the indentation of the test it stands in."""
    return textwrap.dedent(text).lstrip()
