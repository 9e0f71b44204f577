"""The SQLite transport complies, with either level of durability."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.raw_sqlite import SqliteEntries

from matador.testing import TransportCompliance
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Transport
from matador.transports.sqlite import SqliteTransport


class SqliteCompliance(TransportCompliance):
    """One file a test: every transport made for it shares the broker."""

    quiet = 0.05
    file: Path

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.file = tmp_path / "queue.db"

    async def raw_entries(self) -> RawEntries:
        return SqliteEntries(self.file)

    async def delete_queue(self, name: str) -> bool:
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            return connection.execute("DELETE FROM queues WHERE name = ?", (name,)).rowcount == 1


class TestSqlite(SqliteCompliance):
    async def make_transport(self) -> Transport:
        return SqliteTransport(self.file, lease=1)

    async def make_patient_transport(self) -> Transport:
        return SqliteTransport(self.file, lease=30)


class TestSqliteNormal(SqliteCompliance):
    async def make_transport(self) -> Transport:
        return SqliteTransport(self.file, lease=1, synchronous="NORMAL")

    async def make_patient_transport(self) -> Transport:
        return SqliteTransport(self.file, lease=30, synchronous="NORMAL")
