"""The clock of the database: delays and leases do not mind when the machine's clock is set."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.transports.sqlite.conftest import Make, Open

from matador.testing import ManualClock
from matador.transports.sqlite.clock import DatabaseClock, Machine
from matador.transports.sqlite.database import open_for_writing


class FakeMachine(Machine):
    """A machine that can be rebooted and whose clock can be set."""

    def __init__(self) -> None:
        super().__init__()
        self.boot_id = "first"
        self.time_of_day = 1_000_000.0
        self.since_boot = 50.0

    def wall(self) -> float:
        return self.time_of_day

    def uptime(self) -> float:
        return self.since_boot

    def pass_(self, seconds: float) -> None:
        self.time_of_day += seconds
        self.since_boot += seconds


def database(file: Path) -> sqlite3.Connection:
    return open_for_writing(file, synchronous="NORMAL", busy_timeout=1)


def anchored(machine: FakeMachine, connection: sqlite3.Connection) -> DatabaseClock:
    clock = DatabaseClock(machine)
    clock.anchor(connection)
    return clock


def test_setting_the_clock_moves_nothing(file: Path) -> None:
    machine, connection = FakeMachine(), database(file)
    clock = anchored(machine, connection)
    assert clock.now() == 1_000_000_000
    machine.time_of_day += 3600
    assert clock.now() == 1_000_000_000
    machine.pass_(5)
    assert clock.now() == 1_000_005_000
    connection.close()


def test_a_process_that_starts_after_the_clock_was_set_agrees_with_the_others(file: Path) -> None:
    machine, connection = FakeMachine(), database(file)
    before = anchored(machine, connection)
    machine.time_of_day -= 3600
    after = anchored(machine, connection)
    assert before.now() == after.now()
    connection.close()


def test_a_reboot_goes_by_the_time_of_day_but_never_back(file: Path) -> None:
    machine, connection = FakeMachine(), database(file)
    clock = anchored(machine, connection)
    machine.pass_(100)
    clock.remember(connection)
    machine.boot_id, machine.since_boot = "second", 1.0
    machine.time_of_day += 500
    assert anchored(machine, connection).now() == 1_000_600_000
    machine.boot_id = "third"
    machine.time_of_day -= 10_000  # the battery of the hardware clock is empty
    assert anchored(machine, connection).now() >= 1_000_100_000
    connection.close()


def test_without_a_boot_id_the_time_of_day_is_all_there_is(file: Path) -> None:
    machine, connection = FakeMachine(), database(file)
    machine.boot_id = None
    clock = anchored(machine, connection)
    assert clock.now() == 1_000_000_000
    machine.time_of_day += 7
    assert clock.now() == 1_000_007_000
    connection.close()


def test_this_machine_has_an_uptime_that_all_processes_share() -> None:
    machine = Machine()
    assert machine.boot_id == Machine().boot_id
    first = machine.uptime()
    assert 0 < first <= machine.uptime()


async def test_after_a_crash_the_newest_message_tells_how_late_it_was(
    file: Path, connect: Open, make: Make
) -> None:
    """Nobody noted the time; a clock that is behind must not put delays off."""
    transport = await connect()
    await transport.send([make()])
    with closing(database(file)) as connection:
        connection.execute("DELETE FROM meta")
        (newest,) = connection.execute("SELECT max(stored_at) FROM messages").fetchone()
        assert anchored(FakeMachine(), connection).now() == newest


def test_a_delay_counts_from_within_a_millisecond(file: Path) -> None:
    """``now`` rounds down: a delay that did the same would end up to a millisecond early."""
    machine, connection = FakeMachine(), database(file)
    clock = anchored(machine, connection)
    assert clock.after(2) == clock.now() + 2000, "at a whole millisecond: exactly"
    machine.pass_(0.0009)
    due = clock.after(2)
    machine.pass_(1.9995)
    assert clock.now() < due
    machine.pass_(0.001)
    assert clock.now() == due
    connection.close()


async def test_a_delay_fires_neither_early_nor_never(connect: Open, make: Make) -> None:
    clock = ManualClock()
    transport = await connect(clock=clock)
    subscription = await transport.subscribe("t.q", prefetch=1)
    await transport.send([make(delay=60)])
    clock.set_back(3600)
    clock.advance(59.9)
    receiving = asyncio.ensure_future(subscription.receive(1))
    await asyncio.sleep(0.05)
    assert not receiving.done()
    clock.advance(0.2)
    async with asyncio.timeout(60):
        (delivery,) = await receiving
    assert delivery.body == b"1"
