"""Adds new segments of the application's journal to the history, once each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from matador.charts.markup import titled
from matador.errors import HistoryError
from matador.observe.history.records import BUCKET, FailedAttempt, OutcomeKey, OutcomeTotals
from matador.observe.history.store import HistoryStore
from matador.observe.journal.records import DeliveryRecord
from matador.observe.journal.search import segment_records
from matador.observe.journal.segments import finished

log = logging.getLogger("matador.dashboard")

EVERY: Final = 5.0
"""Seconds between two scans of the folder."""

_LOOK_BACK = 24 * 3600  # seconds of a journal that are read at the first start
_NOTE = "journal segments"


async def follow_journal(folder: Path, store: HistoryStore) -> None:
    """Read until canceled. Errors are logged once and do not stop it."""
    complained = False
    while True:
        try:
            await asyncio.to_thread(read_new_segments, folder, store, time.time())
            complained = False
        except (HistoryError, OSError) as error:
            if not complained:
                log.warning("the journal in %s could not be read: %s", folder, error)
            complained = True
        await asyncio.sleep(EVERY)


def read_new_segments(folder: Path, store: HistoryStore, now: float) -> int:
    """Read new segments; return their number. Blocks.

    The names of read segments are stored together with their counts, so that a killed dashboard
    counts none twice. Names begin with the time, so that old segments are recognized by name.

    Raises:
        HistoryError: the history cannot be written.
        OSError: the journal cannot be read.
    """
    oldest = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now - _LOOK_BACK))
    known = set((store.note(_NOTE) or "").split("\n"))
    recent = [path for path in finished(folder) if path.name >= oldest]
    read = 0
    kept = [path.name for path in recent if path.name in known]
    for path in recent:
        if path.name in known:
            continue
        try:
            by_worker, failures = _counted(path)
        except FileNotFoundError:
            continue
        kept.append(path.name)
        note = (_NOTE, "\n".join(kept))
        for worker, counts in by_worker.items():
            store.record("journal", None, worker, counts, failures, note)
            failures = []
        if not by_worker:
            store.record("journal", None, "", {}, failures, note)
        read += 1
    return read


def _counted(
    path: Path,
) -> tuple[dict[str, dict[tuple[int, OutcomeKey], OutcomeTotals]], list[FailedAttempt]]:
    counts: defaultdict[str, dict[tuple[int, OutcomeKey], OutcomeTotals]] = defaultdict(dict)
    failures: list[FailedAttempt] = []
    for record in segment_records(path):
        if not isinstance(record, DeliveryRecord):
            continue
        second = record.started_at // 1_000_000
        name = titled(record.event_key, record.way)
        key = OutcomeKey(record.queue, name, record.subscriber, record.outcome)
        totals = counts[record.worker].setdefault((second - second % BUCKET, key), OutcomeTotals())
        totals.add(record.duration_ms, record.wait_ms)
        if record.outcome != "success" and len(failures) < 10_000:
            failures.append(
                FailedAttempt(
                    record.id,
                    record.correlation_id,
                    name,
                    record.subscriber,
                    record.queue,
                    record.attempt,
                    record.outcome,
                    record.started_at / 1_000_000,
                    record.duration_ms,
                    record.wait_ms,
                    record.error_type,
                    record.error or record.reason,
                    None,
                    record.worker,
                )
            )
    return counts, failures
