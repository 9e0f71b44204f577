"""A lake of the first layout becomes Delta tables: every row once, also if it is interrupted.

``first_layout.zip`` was made by the version before Delta: four batches, one row expired, and the
process ended when the last batch was staged, but not in its place.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from tests.spark.inline import SESSION, InlineLake, run_here
from tests.spark.journal_files import NOW, delivery, rows, segment, sent

from matador.errors import ConfigurationError
from matador.spark.tables import convert as module
from matador.spark.tables.convert import ConvertResult, convert
from matador.spark.tables.delta import DeltaTable

LATER = NOW + 86_400_000_000


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InlineLake:
    with zipfile.ZipFile(Path(__file__).with_name("first_layout.zip")) as archive:
        archive.extractall(tmp_path)
    for path in (tmp_path / "lake" / "_checkpoints" / "ingest").iterdir():
        for name, _, modified in json.loads(path.read_bytes())["segments"]:
            if (tmp_path / "journal" / name).exists():  # an archive keeps no nanoseconds
                os.utime(tmp_path / "journal" / name, ns=(modified, modified))
    (tmp_path / "lake" / "volume" / "batches=0-1").mkdir(parents=True)
    monkeypatch.setattr(module, "run_tasks", run_here)
    return InlineLake(tmp_path / "lake", monkeypatch)


def assert_converted(lake: InlineLake, tmp_path: Path) -> None:
    root = lake.layout.root
    assert sorted(row["id"] for row in rows(root, "events")) == [sent(n).id for n in (1, 2, 3)]
    assert [row["way"] for row in rows(root, "deliveries")] == ["event", "event"]
    (refused,) = rows(root, "quarantine")
    assert (refused["raw"], refused["kind"]) == ("not a record", "malformed-record")
    assert {path.name for path in root.iterdir()} == {
        *("events", "deliveries", "quarantine", "volume", "_segments", "_index"),
    }
    assert not any(root.glob("*/batch*"))

    result = lake.ingest(tmp_path / "journal")  # what was ingested is not new

    assert result.segments == 0
    again = [sent(0), sent(1, recorded_at=LATER), delivery(1, recorded_at=LATER), sent(9)]
    segment(tmp_path / "journal", "again", again)
    shutil.copy(tmp_path / "journal" / "c.jsonl", tmp_path / "journal" / "e.jsonl")
    result = lake.ingest(tmp_path / "journal")
    assert (result.events, result.duplicates, result.quarantined) == (1, 4, 0)


def test_every_row_is_there_and_what_has_expired_stays_away(
    tmp_path: Path, lake: InlineLake
) -> None:
    with pytest.raises(ConfigurationError, match="matador lake convert"):
        lake.ingest(tmp_path / "journal")

    assert convert(SESSION, lake.layout) == ConvertResult(3, 2, 1)

    assert_converted(lake, tmp_path)


@pytest.mark.parametrize("table", ["events", "deliveries", "quarantine", "_segments"])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_conversion_is_done_by_the_next(
    tmp_path: Path, lake: InlineLake, monkeypatch: pytest.MonkeyPatch, table: str, after: bool
) -> None:
    commit = DeltaTable.commit

    def ended(self: DeltaTable, *given: object, **options: object) -> int:
        if self.name != table or after:
            version = commit(self, *given, **options)  # type: ignore[arg-type] - passed on
            if self.name != table:
                return version
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "commit", ended)
        with pytest.raises(KeyboardInterrupt):
            convert(SESSION, lake.layout)
    convert(SESSION, lake.layout)

    assert_converted(lake, tmp_path)
