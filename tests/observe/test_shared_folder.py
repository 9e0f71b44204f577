"""Several processes in one folder: nothing that was acknowledged is lost, nothing is doubled."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec

from matador.observe.journal.records import SentRecord, decode_record
from matador.observe.journal.segments import finished, recover
from matador.testing import wait_for

ROOT = Path(__file__).parents[2]
LANDED, SENT = 600, 150


def start(role: str, folder: Path, number: int = 0) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.observe.folder_program", role, folder, str(number)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE)


def taken(folder: Path, found: Counter[tuple[str, int]]) -> int:
    """Read what is finished and delete it, as an ingest and whoever tidies up after it do."""
    paths = list(finished(folder))
    for path in paths:
        for line in path.read_bytes().splitlines():
            record = decode_record(line)
            assert isinstance(record, SentRecord)
            found[record.subscriber, msgspec.json.decode(record.data)["n"]] += 1
        path.unlink()
    return len(paths)


async def test_a_tap_a_hook_a_reader_and_many_starts_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    found: Counter[tuple[str, int]] = Counter()
    segments = 0
    starting = [start("recover", folder) for _ in range(2)]
    working = [start("tap", folder, LANDED), start("hook", folder, SENT)]

    def over() -> bool:
        nonlocal segments
        segments += taken(folder, found)
        return all(process.poll() is not None for process in working)

    try:
        await wait_for(over, timeout=120)
    finally:
        errors = [process.communicate(timeout=60)[1] for process in (*working, *starting)]
    assert errors == [b""] * 4, errors
    assert recover(folder) == []
    segments += taken(folder, found)
    wanted = {("tap", n) for n in range(LANDED)} | {("hook", n) for n in range(SENT)}
    assert {key for key in wanted if key not in found} == set(), "lost"
    assert {key for key, count in found.items() if count > 1} == set(), "doubled"
    assert found.keys() == wanted
    assert segments > 50, "they did not meet often"
    assert list(folder.iterdir()) == []
