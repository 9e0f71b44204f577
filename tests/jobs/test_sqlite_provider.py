"""SQLite keeps the contract of job providers, on a real file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.pausing import assert_nothing_is_held_while_paused

from matador.testing.jobs import JobProviderContract
from matador.transports.base import Transport
from matador.transports.sqlite import SqliteTransport


class TestSqlite(JobProviderContract):
    counts_workers = False
    quiet = 0.2
    delay = 0.5
    file: Path

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.file = tmp_path / "jobs.db"

    async def make_transport(self) -> Transport:
        return SqliteTransport(self.file, lease=1.0)

    async def make_patient_transport(self) -> Transport:
        return SqliteTransport(self.file, lease=30.0)

    async def test_all_is_there_but_options_of_its_own(self) -> None:
        lacking = {
            name for name in self.can.__dataclass_fields__ if getattr(self.can, name) is False
        }
        assert lacking == {"provider_options"}


async def test_a_paused_worker_holds_nothing(tmp_path: Path) -> None:
    transport = SqliteTransport(tmp_path / "jobs.db", lease=30)
    await assert_nothing_is_held_while_paused(transport, "paused")
