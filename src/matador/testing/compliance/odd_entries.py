"""Entries of foreign programs neither stop a worker nor get lost."""

from __future__ import annotations

from matador.testing.compliance.base import ComplianceBase
from matador.testing.compliance.raw import feed


class OddEntryCompliance(ComplianceBase):
    """Entries that are odd in every part, below the transport, under a whole application."""

    raw_count: int = 300
    """How many odd entries are written."""

    raw_seed: int = 1
    """Another seed, other entries."""

    async def test_odd_entries_are_kept_and_stop_nobody(self) -> None:
        transport = await self.make()
        entries = await self.raw_entries()
        if entries is None:
            await transport.connect()
            assert transport.capabilities.in_process, "others can write there: give raw_entries()"
            return
        try:
            report = await feed(
                transport,
                entries,
                self.topology(),
                count=self.raw_count,
                seed=self.raw_seed,
                patience=self.patience,
                quiet=self.quiet,
            )
        finally:
            await entries.close()
        assert report.problems == []
        assert report.written == self.raw_count
        assert report.dead_letters, "odd entries that are all good ones prove nothing"
