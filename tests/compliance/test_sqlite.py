"""The SQLite transport complies, with either level of durability."""

from __future__ import annotations

from pathlib import Path

import pytest

from matador.testing import TransportCompliance
from matador.transports.base import Transport
from matador.transports.sqlite import SqliteTransport


class SqliteCompliance(TransportCompliance):
    """One file a test: every transport made for it shares the broker."""

    quiet = 0.05
    file: Path

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.file = tmp_path / "queue.db"


class TestSqlite(SqliteCompliance):
    async def make_transport(self) -> Transport:
        return SqliteTransport(self.file, lease=1)


class TestSqliteNormal(SqliteCompliance):
    async def make_transport(self) -> Transport:
        return SqliteTransport(self.file, lease=1, synchronous="NORMAL")
